"""What is recorded where torch lacks the private places for our hooks: simulated, since torch itself needs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hooked_scripts import Ended, Scripts
from test_loader_forms import RUNS, SCRIPT, fetches, keys, of_main, taken
from test_training_loops import profile_of

from dlprof.model.kinds import Kind, Role
from dlprof.model.profile import Profile

NO_WORKER_LOOP = """
import dlprof.capture.install
def gone(*_):
    raise AttributeError("_worker_loop")
dlprof.capture.install.timed_worker_loop = gone
"""
NO_FETCHER = """
from dlprof.capture.dataloader import DataLoaderHooks
original = DataLoaderHooks._patch
def patch(hooks, owner, name, *args, **kwargs):
    return original(hooks, None if name in {missing!r} else owner, name, *args, **kwargs)
DataLoaderHooks._patch = patch
"""
GONE = {
    "loop": NO_WORKER_LOOP,
    "loop, fetcher": NO_WORKER_LOOP + NO_FETCHER.format(missing=["create_fetcher"]),
    "fetcher": NO_FETCHER.format(missing=["create_fetcher"]),
    "loop, tasks": NO_WORKER_LOOP + NO_FETCHER.format(missing=["_try_put_index"]),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[Ended, dict[str, str]]:
    folder = tmp_path_factory.mktemp("plain")
    return Scripts(folder).plain(SCRIPT, str(made(folder / "noted")), *RUNS["fork"]), noted(folder / "noted")


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def noted(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("gone", "method"),
    [
        ("loop", "forkserver"),
        ("loop, fetcher", "spawn"),
        ("fetcher", "fork"),
    ],
)
def test_public_seams_still_tell_of_every_worker_and_batch(plain, scripts, tmp_path, gone, method):
    (made(tmp_path / "simulated") / "sitecustomize.py").write_text(GONE[gone])
    ended = scripts.hooked(SCRIPT, str(made(tmp_path / "noted")), *RUNS[method], path=(tmp_path / "simulated",))
    assert (ended.stdout, ended.stderr, ended.status) == (plain[0].stdout, plain[0].stderr, 0)
    assert noted(tmp_path / "noted") == plain[1]
    profile = profile_of(ended.recording)
    assert {notice.slug for notice in profile.notices} == {"hook-missing"}
    assert_complete(profile, with_loop="loop" not in gone, with_fetcher="fetcher" not in gone)


def assert_complete(profile: Profile, *, with_loop: bool, with_fetcher: bool) -> None:
    workers = {pid for iteration in profile.iterations for pid in iteration.workers}
    roles = {process.pid: process.role for process in profile.processes}
    assert {roles[pid] for pid in workers} == {Role.WORKER}
    assert (len(profile.spans.of(Kind.SEND)) > 0) == with_loop
    assert bool(len(profile.spans.of(Kind.GETITEM))) == with_fetcher
    found = fetches(profile)
    count = Counter(keys(found))
    arrived = dict(zip(keys(taken(profile)), taken(profile).end_ns.tolist(), strict=True))
    iterable = {loader.number for loader in profile.loaders if loader.settings.get("iterable")}
    unknowable = {i.number for i in profile.iterations if i.pid == profile.main_pid and i.loader in iterable}
    wanted = [key for key in arrived if with_loop or with_fetcher or key[0] not in unknowable]
    assert {key: count[key] for key in wanted} == dict.fromkeys(wanted, 1)
    made_at = dict(zip(keys(found), found.end_ns.tolist(), strict=True))
    assert all(made_at[key] <= arrived[key] for key in wanted)
    asked = of_main(profile, Kind.TASK_SENT)
    sent = dict(zip(keys(asked), asked.start_ns.tolist(), strict=True))
    begun = dict(zip(keys(found), found.start_ns.tolist(), strict=True))
    assert all(sent[key] <= begun[key] for key in wanted if key in sent)


def test_without_the_tasks_batches_are_numbered_in_turn(scripts, tmp_path):
    (made(tmp_path / "simulated") / "sitecustomize.py").write_text(GONE["loop, tasks"])
    script = scripts.write(
        """
import torch
from torch.utils.data import DataLoader
for _ in range(2):
    for batch in DataLoader(torch.randn(70, 4), batch_size=10, num_workers=2):
        print(batch.sum().item())
"""
    )
    ended = scripts.hooked(script, path=(tmp_path / "simulated",))
    profile = profile_of(ended.recording)
    assert sorted(keys(fetches(profile))) == [(epoch, batch) for epoch in (1, 2) for batch in range(7)]
    made_by = {
        key: profile.tracks[track].pid
        for key, track in zip(keys(fetches(profile)), fetches(profile).track.tolist(), strict=True)
    }
    for iteration in profile.iterations:
        assert all(made_by[iteration.number, batch] == iteration.workers[batch % 2] for batch in range(7))
