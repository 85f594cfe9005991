"""Every form of DataLoader, under every start method: nothing changes, and everything is recorded once.

``forms_script.py`` holds the forms. torch 2.13 has no thread workers: ``worker_method`` is only a field of
``WorkerInfo``, and DataLoader takes no such argument; the last test says when that changes.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hooked_scripts import Ended, Scripts
from test_training_loops import profile_of

from dlprof.model.kinds import Flag, Kind, Role
from dlprof.model.profile import Profile, Spans

SCRIPT = Path(__file__).with_name("forms_script.py")
# Plain runs give the same under every start method, so the quickest stands for all.
RUNS = {
    "each": ("each", "0", "2"),
    "fork": ("folded", "fork"),
    "spawn": ("folded", "spawn"),
    "forkserver": ("folded", "forkserver"),
}
PLAIN = {"each": "each", "fork": "fork", "spawn": "fork", "forkserver": "fork"}
# The second worker of an iterable dataset reads less than the first; the rest of its share is not asked for.
NO_GETITEM = ("getitems", "persistent")


@dataclass(frozen=True)
class Run:
    """A script that has ended, with what its ``worker_init_fn`` noted."""

    ended: Ended
    noted: dict[str, str]
    between: tuple[int, int]

    @property
    def accounts(self) -> list[dict]:
        return [json.loads(line) for line in self.ended.stdout.splitlines()[:-1]]


class Runs:
    """The runs of this module: those with the hooks when first asked for, beside them the plain ones."""

    def __init__(self, folder: Path, aside: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._plain = {
            name: aside.submit(self._run, f"plain-{name}", Scripts.plain, RUNS[name])
            for name in sorted(set(PLAIN.values()))
        }

    def plain(self, name: str) -> Run:
        return self._plain[name].result()

    @functools.cache  # noqa: B019 - as long as the module's tests
    def hooked(self, name: str) -> Run:
        return self._run(f"hooked-{name}", Scripts.hooked, RUNS[name])

    @functools.cache  # noqa: B019
    def profile(self, name: str) -> Profile:
        recording = self.hooked(name).ended.recording
        assert recording is not None
        return profile_of(recording)

    def _run(self, label, how, arguments) -> Run:
        folder = self._folder / label
        (folder / "noted").mkdir(parents=True)
        began = time.monotonic_ns()
        ended = how(Scripts(folder), SCRIPT, str(folder / "noted"), *arguments)
        between = began, time.monotonic_ns()
        return Run(ended, {path.name: path.read_text() for path in (folder / "noted").iterdir()}, between)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Iterator[Runs]:
    with ThreadPoolExecutor(1) as aside:
        yield Runs(tmp_path_factory.mktemp("forms"), aside)


each_run = pytest.mark.parametrize("name", RUNS)


def iterations(profile: Profile) -> list[int]:
    """Those that the script began itself, in their order: not those of a loader inside a dataset."""
    requests = of_main(profile, Kind.NEXT)
    return sorted(set(requests.where((requests.flags & Flag.NESTED) == 0).iterator.tolist()))


def of_main(profile: Profile, *kinds: Kind) -> Spans:
    return of_pids(profile, {profile.main_pid}, *kinds)


def of_pids(profile: Profile, pids: set[int | None], *kinds: Kind) -> Spans:
    mine = [index for index, track in enumerate(profile.tracks) if track.pid in pids]
    spans = profile.spans.of(*kinds)
    return spans.where(np.isin(spans.track, mine))


def taken(profile: Profile) -> Spans:
    requests = of_main(profile, Kind.NEXT)
    return requests.where((requests.flags & (Flag.ENDED | Flag.NESTED)) == 0)


def fetches(profile: Profile) -> Spans:
    found = profile.spans.of(Kind.FETCH)
    return found.where((found.flags & Flag.NESTED) == 0)


def keys(spans: Spans) -> list[tuple[int, int]]:
    return list(zip(spans.iterator.tolist(), spans.batch.tolist(), strict=True))


@each_run
def test_the_script_does_the_same(runs, name):
    plain, hooked = runs.plain(PLAIN[name]), runs.hooked(name)
    assert hooked.ended.stderr == plain.ended.stderr
    assert hooked.ended.status == plain.ended.status == 0
    assert hooked.ended.stdout == plain.ended.stdout
    assert b"nan" not in plain.ended.stdout


@each_run
def test_worker_init_fn_is_called_as_often_and_in_the_same_state(runs, name):
    assert runs.hooked(name).noted == runs.plain(PLAIN[name]).noted
    assert len(runs.hooked(name).noted) > 5


@each_run
def test_nothing_is_odd(runs, name):
    assert [notice for notice in runs.profile(name).notices if notice.slug != "other-process-ignored"] == []


@each_run
def test_every_batch_that_the_script_took_is_recorded_once(runs, name):
    profile, accounts = runs.profile(name), runs.hooked(name).accounts
    numbers = iterations(profile)
    assert len(numbers) == len(accounts)
    found = taken(profile)
    assert set(Counter(keys(found)).values()) == {1}
    per_iteration = Counter(found.iterator.tolist())
    assert [per_iteration[number] for number in numbers] == [len(account["samples"]) for account in accounts]
    requests = of_main(profile, Kind.NEXT)
    ended = set(requests.where(requests.flags == Flag.ENDED).iterator.tolist())
    assert [number in ended for number in numbers] == [account["ended"] for account in accounts]


@each_run
def test_every_batch_was_made_once_and_before_it_arrived(runs, name):
    profile = runs.profile(name)
    made = Counter(keys(fetches(profile)))
    assert {key: made[key] for key in keys(taken(profile))} == dict.fromkeys(keys(taken(profile)), 1)
    begun = dict(zip(keys(fetches(profile)), fetches(profile).start_ns.tolist(), strict=True))
    made_at = dict(zip(keys(fetches(profile)), fetches(profile).end_ns.tolist(), strict=True))
    arrived = dict(zip(keys(taken(profile)), taken(profile).end_ns.tolist(), strict=True))
    assert all(begun[key] <= made_at[key] <= arrived[key] for key in arrived)


@each_run
def test_every_sample_is_recorded_once(runs, name):
    profile, accounts = runs.profile(name), runs.hooked(name).accounts
    items = profile.spans.of(Kind.GETITEM)
    form = dict(zip(iterations(profile), accounts, strict=True))
    place = {key: index for index, key in enumerate(keys(fetches(profile)))}
    found = fetches(profile)
    number_in_iteration: Counter[int] = Counter()
    requests = taken(profile)
    for key in keys(requests):
        account = form[key[0]]
        wanted = account["samples"][number_in_iteration[key[0]]]
        number_in_iteration[key[0]] += 1
        row = place[key]
        assert found.value[row] == wanted, account
        within = (
            (items.track == found.track[row])
            & (items.start_ns >= found.start_ns[row])
            & (items.end_ns <= found.end_ns[row])
        )
        if account["form"] == "nested":
            # Each item takes a batch of four from the loader inside.
            wanted *= 5
        if not fetched_whole(account):
            assert int(items.weight[within].sum()) == wanted, account


def fetched_whole(account: dict) -> bool:
    """Whether the dataset gives a batch in one go, so that torch asks it for no single item."""
    return account["form"] == "getitems" or (account["folded"] and account["persistent"])


@each_run
def test_every_worker_is_known(runs, name):
    profile, accounts = runs.profile(name), runs.hooked(name).accounts
    workers = {i.number: i.workers for i in profile.iterations if i.pid == profile.main_pid}
    mine = [workers[number] for number in iterations(profile)]
    assert [len(pids) for pids in mine] == [account["workers"] for account in accounts]
    roles = {process.pid: process.role for process in profile.processes}
    assert {roles[pid] for pids in mine for pid in pids} == {Role.WORKER}
    made = fetches(profile)
    for pids, number, account in zip(mine, iterations(profile), accounts, strict=True):
        makers = {profile.tracks[track].pid for track in made.where(made.iterator == number).track.tolist()}
        wanted = set(pids) or {profile.main_pid}
        # One that was told to end before it had begun has made nothing.
        assert makers == wanted if account["ended"] else makers <= wanted


@each_run
def test_spans_lie_inside_the_run_and_do_not_end_before_they_begin(runs, name):
    profile = runs.profile(name)
    began, ended = runs.hooked(name).between
    assert np.all(profile.spans.end_ns >= profile.spans.start_ns)
    assert began < profile.spans.start_ns.min()
    assert profile.spans.end_ns.max() < ended


@each_run
def test_a_batch_is_handed_over_before_it_is_received(runs, name):
    profile = runs.profile(name)
    sent = profile.spans.of(Kind.SEND)
    sent = sent.where(sent.batch >= 0)
    received = of_main(profile, Kind.UNPICKLE)
    assert set(Counter(keys(sent)).values()) == {1}
    assert {key: count for key, count in Counter(keys(received)).items() if count > 1} == {}
    handed = dict(zip(keys(sent), sent.start_ns.tolist(), strict=True))
    arrived = dict(zip(keys(received), received.end_ns.tolist(), strict=True))
    assert all(handed[key] <= arrived[key] for key in handed.keys() & arrived.keys())
    # The last batch of a worker may be received, and the worker ended, before its thread has noted that it was sent.
    last = {iteration: max(batch for of, batch in arrived if of == iteration) for iteration, _ in arrived}
    workers = {i.number: len(i.workers) for i in profile.iterations if i.pid == profile.main_pid}
    assert all(batch > last[of] - workers[of] for of, batch in arrived.keys() - handed.keys())
    from_workers = {i.number for i in profile.iterations if i.pid == profile.main_pid and i.workers}
    assert {key for key in keys(taken(profile)) if key[0] in from_workers} <= set(keys(received))


def test_torch_has_no_thread_workers_yet():
    assert "worker_method" not in inspect.signature(torch.utils.data.DataLoader).parameters
