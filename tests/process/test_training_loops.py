"""What is recorded of real training loops, and that recording changes nothing in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hooked_scripts import BOOTSTRAP, Ended, Scripts

from dlprof.analysis.steps import find_steps
from dlprof.formats.recording import Recording, assemble, how_it_ended, read_recording, training_process
from dlprof.formats.settings_file import FOLDER_VARIABLE, Settings
from dlprof.model.kinds import ExitReason, Flag, Kind, Role
from dlprof.model.profile import Profile, RunFacts

LOOP = """
import hashlib, random, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Map(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        return torch.randn(8) + random.random() + np.random.rand(), index

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in range(48):
            yield torch.randn(8) + random.random() + np.random.rand(), number * 10 + (info.id if info else 0)

def main(workers, form, persistent):
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    dataset = Stream() if form == "iterable" else Map()
    loader = DataLoader(
        dataset, batch_size=8, num_workers=workers, shuffle=form == "map", persistent_workers=persistent
    )
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    digest = hashlib.sha256()
    for epoch in range(2):
        for inputs, index in loader:
            digest.update(inputs.numpy().tobytes() + index.numpy().tobytes())
            loss = model(inputs).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(epoch, loss.item())
    for state in (torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()):
        digest.update(repr(state).encode())
    digest.update(model.weight.detach().numpy().tobytes())
    print(digest.hexdigest())

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "persistent")
    sys.exit(3)
"""
EPOCHS, BATCHES, BATCH_SIZE = 2, 12, 8


@dataclass(frozen=True, eq=False)
class Scripted:
    """A script that a test runs with the hooks, and how."""

    source: str
    arguments: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path) -> Ended:
        scripts = Scripts(folder)
        return scripts.hooked(scripts.write(self.source), *self.arguments, **self.options)


def of_script(source: str, *arguments: str, **options: Any) -> pytest.MarkDecorator:
    """Marks a test as one of this script, whose end it gets as ``ended``."""
    script = Scripted(source, arguments, options)
    return pytest.mark.parametrize("ended", [pytest.param(script, id="script")], indirect=True)


@pytest.fixture(scope="module")
def begun(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Scripted, Future[Ended]]]:
    """The scripts of all tests that were selected, two at a time: most of their time is torch's import."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    wanted = [test.callspec.params.get("ended") for test in tests]
    with ThreadPoolExecutor(2) as aside:
        yield {
            script: aside.submit(script.run, tmp_path_factory.mktemp("script"))
            for script in wanted
            if isinstance(script, Scripted)
        }


@pytest.fixture
def ended(request: pytest.FixtureRequest, begun: dict[Scripted, Future[Ended]]) -> Ended:
    return begun[request.param].result()


def profile_of(recording: Recording, status: int = 0) -> Profile:
    main_pid = training_process(recording)
    ending = how_it_ended(recording, status, main_pid)
    run = RunFacts(("train.py",), "2026-01-01T00:00:00+00:00", "host", None, 2, 0, ending, 0, 0)
    return assemble(recording, run, {"cores": 2})[0]


# While torch.profiler is on for some of the steps; test_loader_forms.py has both forms with each number of workers.
@pytest.mark.parametrize(
    ("workers", "persistence", "form"),
    [
        (0, "anew", "map"),
        (0, "anew", "iterable"),
        (1, "anew", "map"),
        (2, "anew", "iterable"),
        (2, "persistent", "map"),
    ],
)
def test_every_batch_is_recorded_once_and_nothing_changes(
    scripts: Scripts, workers: int, persistence: str, form: str
) -> None:
    script = scripts.write(LOOP)
    arguments = (str(workers), form, persistence)
    plain, hooked = scripts.both(script, *arguments, trace_steps=3)
    assert (hooked.status, hooked.stdout, hooked.stderr) == (plain.status, plain.stdout, plain.stderr)
    assert plain.status == 3
    assert hooked.recording is not None
    profile = profile_of(hooked.recording, 3)
    # An iterable dataset is read whole by every worker.
    batches = BATCHES if form == "map" else 6 * max(workers, 1)
    _assert_complete(profile, batches, workers)


def _assert_complete(profile: Profile, batches: int, workers: int) -> None:
    assert not profile.notices
    spans = profile.spans
    requests = spans.of(Kind.NEXT)
    taken = requests.where((requests.flags & int(Flag.ENDED)) == 0)
    wanted = Counter((epoch + 1, batch) for epoch in range(EPOCHS) for batch in range(batches))
    assert Counter(zip(taken.iterator.tolist(), taken.batch.tolist(), strict=True)) == wanted
    ended = requests.where((requests.flags & int(Flag.ENDED)) != 0)
    assert len(ended) == EPOCHS
    fetches = spans.of(Kind.FETCH)
    made = Counter(zip(fetches.iterator.tolist(), fetches.batch.tolist(), strict=True))
    assert all(made[key] == 1 for key in wanted)
    assert len(spans.of(Kind.GETITEM)) * 1 <= EPOCHS * batches * BATCH_SIZE + EPOCHS * (workers or 1)
    weight = int(spans.of(Kind.GETITEM).weight.sum())
    assert weight >= EPOCHS * batches * BATCH_SIZE * 0.5
    arrival = dict(zip(zip(taken.iterator, taken.batch, strict=True), taken.end_ns, strict=True))
    for iterator, batch, end in zip(fetches.iterator, fetches.batch, fetches.end_ns, strict=True):
        if (iterator, batch) in arrival:
            assert end <= arrival[iterator, batch]
    roles = {Role.MAIN, Role.WORKER, Role.FEEDER} if workers else {Role.MAIN}
    assert {track.role for track in profile.tracks} >= roles
    assert np.all(spans.end_ns >= spans.start_ns)
    if workers:
        received = spans.of(Kind.UNPICKLE)
        sent = {(int(i), int(b)): int(e) for i, b, e in _triples(spans.of(Kind.SEND), "start_ns")}
        for iterator, batch, end in _triples(received, "end_ns"):
            assert sent[int(iterator), int(batch)] <= end


def _triples(spans, column):
    return zip(spans.iterator, spans.batch, getattr(spans, column), strict=True)


@of_script(LOOP, "2", "map", "anew", steps=5, warmup=2, trace_steps=3)
def test_the_script_is_stopped_after_the_steps(ended: Ended) -> None:
    assert ended.status == 0
    assert b"Traceback" not in ended.stderr
    # Ten batches were taken: after them the loop's next request raised SystemExit.
    assert len(ended.stdout.splitlines()) == 10
    profile = profile_of(ended.recording)
    assert profile.run.ending.reason is ExitReason.STEPS_REACHED
    assert len(profile.spans.of(Kind.TRACED)) == 1
    assert len(profile.spans.of(Kind.OPERATOR)) > 0


@of_script(
    """
import atexit
import torch
from torch.utils.data import DataLoader
atexit.register(print, "atexit ran")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
try:
    for batch in DataLoader(torch.randn(400, 4), batch_size=4):
        model(batch).sum().backward()
        optimizer.step()
finally:
    print("finally ran")
""",
    steps=5,
)
def test_clean_up_runs_when_the_script_is_stopped(ended: Ended) -> None:
    assert ended.status == 0
    assert ended.stdout.split(b"\n")[:2] == [b"finally ran", b"atexit ran"]


@of_script(
    """
import os, signal
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number, batch in enumerate(DataLoader(torch.randn(400, 4), batch_size=4, num_workers=1)):
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    model(batch).sum().backward()
    optimizer.step()
""",
)
def test_a_killed_script_leaves_its_finished_steps(ended: Ended) -> None:
    assert ended.status == -signal.SIGKILL
    profile = profile_of(ended.recording, 128 + signal.SIGKILL)
    assert profile.run.ending.reason is ExitReason.SIGNAL
    # The twenty-first batch had arrived, so twenty requests after the first are there, and twenty bodies.
    assert len(profile.spans.of(Kind.NEXT)) == 21
    assert len(profile.spans.of(Kind.BODY)) == 20


ENDING = """
import os
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(torch.randn(40, 4), batch_size=4):
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("ended", "status", "reason"),
    [
        pytest.param(Scripted(ENDING + ending), status, reason, id=ending)
        for ending, status, reason in (
            ("raise ValueError('no')", 1, ExitReason.EXCEPTION),
            ("raise SystemExit(7)", 7, ExitReason.SCRIPT_ENDED),
            ("os._exit(9)", 9, ExitReason.SCRIPT_ENDED),
            ("pass", 0, ExitReason.SCRIPT_ENDED),
        )
    ],
    indirect=["ended"],
)
def test_how_the_script_ended_is_known(ended: Ended, status: int, reason: ExitReason) -> None:
    assert ended.status == status
    assert profile_of(ended.recording, status).run.ending.reason is reason


@of_script(
    """
import os, signal
import torch
from torch.utils.data import DataLoader, Dataset
class Deadly(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if index == 80:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(4)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Deadly(), batch_size=4, num_workers=1):
    model(batch).sum().backward()
    optimizer.step()
""",
)
def test_a_worker_that_dies_is_named(ended: Ended) -> None:
    assert ended.status == 1
    assert profile_of(ended.recording, 1).run.ending.reason is ExitReason.WORKER_DIED


@of_script(
    """
import torch
from torch.utils.data import DataLoader
from torch.profiler import profile, ProfilerActivity
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with profile(activities=[ProfilerActivity.CPU]) as prof:
    for batch in DataLoader(torch.randn(80, 4), batch_size=4):
        model(batch).sum().backward()
        optimizer.step()
print(sum(event.count for event in prof.key_averages() if event.key == "aten::linear"))
""",
    steps=None,
    warmup=2,
    trace_steps=5,
)
def test_the_users_own_profiler_keeps_its_events(ended: Ended) -> None:
    assert ended.stdout == b"20\n"
    profile = profile_of(ended.recording)
    assert [notice.slug for notice in profile.notices] == ["trace-skipped-user-profiler"]


@of_script(
    """
import torch
from torch.utils.data import DataLoader
from torch.profiler import profile, ProfilerActivity
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number, batch in enumerate(DataLoader(torch.randn(80, 4), batch_size=4)):
    if number == 13:
        prof = profile(activities=[ProfilerActivity.CPU])
        prof.start()
    model(batch).sum().backward()
    optimizer.step()
prof.stop()
print(sum(event.count for event in prof.key_averages() if event.key == "aten::linear"))
""",
    steps=None,
    warmup=2,
    trace_steps=8,
)
def test_a_profiler_that_the_user_starts_inside_ours_gets_its_events(ended: Ended) -> None:
    # Ours began at batch 12; theirs saw batches 13 to 19.
    assert ended.stdout == b"7\n"
    assert "trace-yielded-user-profiler" in {notice.slug for notice in profile_of(ended.recording).notices}


def test_a_shadowed_sitecustomize_runs(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("print('mine ran')\nVALUE = 3\n")
    recording = tmp_path / "recording"
    recording.mkdir()
    Settings(None, 2, 0, 1_000_000, os.getpid()).save(recording)
    path = os.pathsep.join([str(BOOTSTRAP), str(tmp_path / "mine")])
    env = dict(os.environ, PYTHONPATH=path, **{FOLDER_VARIABLE: str(recording)})
    code = "import sitecustomize, sys; print(sitecustomize.VALUE, [p for p in sys.path if 'bootstrap' in p])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("mine ran\n3 []\n", "")


def test_a_python_without_a_training_loop_leaves_no_recording(scripts: Scripts) -> None:
    ended = scripts.hooked(scripts.write("import json\nprint(json.dumps([1]))\n"))
    assert (ended.status, ended.stdout, ended.stderr) == (0, b"[1]\n", b"")
    assert list(ended.recording.events.values()) == [[]]
    assert not ended.recording.files


def test_recording_that_cannot_be_written_leaves_the_script_alone(scripts: Scripts, tmp_path: Path) -> None:
    script = scripts.write(LOOP)
    folder = tmp_path / "gone"
    folder.mkdir()
    Settings(None, 2, 0, 1_000_000, os.getpid()).save(folder)
    env = dict(os.environ, PYTHONPATH=str(BOOTSTRAP), **{FOLDER_VARIABLE: str(folder)})
    breaking = "import os, shutil, runpy, sys; shutil.rmtree(os.environ['DLPROF_RECORDING']);"
    code = breaking + f" sys.argv = ['x', '0', 'map', 'anew']; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=120)
    assert done.returncode == 3
    assert done.stderr == b""
    assert done.stdout == scripts.plain(script, "0", "map", "anew").stdout
    assert not folder.exists()


@of_script(
    """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number, batch in enumerate(DataLoader(torch.randn(400, 4), batch_size=4)):
    model(batch).sum().backward()
    if number % 16 == 15:
        optimizer.step()
        optimizer.zero_grad()
    print(number)
""",
    steps=6,
    warmup=2,
    trace_steps=0,
)
def test_a_gradient_accumulation_of_more_than_the_steps_is_still_found(ended: Ended) -> None:
    assert ended.status == 0
    # Known to be a training loop at the first optimizer step, after 16 batches; then it stops at the next request.
    assert len(ended.stdout.splitlines()) == 16


@of_script(
    """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4)
for number, batch in enumerate(DataLoader(torch.randn(400, 4), batch_size=4)):
    model(batch)
    print(number)
""",
    steps=6,
    warmup=2,
    trace_steps=2,
)
def test_inference_counts_batches(ended: Ended) -> None:
    assert (ended.status, len(ended.stdout.splitlines())) == (0, 10)


@of_script(
    """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number in range(400):
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    print(number)
""",
    steps=6,
    warmup=2,
    trace_steps=2,
)
def test_without_a_loader_steps_are_optimizer_steps(ended: Ended) -> None:
    assert ended.status == 0
    assert len(ended.stdout.splitlines()) == 9


def test_read_recording_of_an_empty_folder_is_empty(tmp_path: Path) -> None:
    assert read_recording(tmp_path).files == ()


LEFT_EARLY = """
import torch
from torch.utils.data import DataLoader

train, held = DataLoader(range(30), 2), DataLoader(range(100, 140), 2, num_workers=2)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
for number, batch in enumerate(train):
    model(batch[:, None].float()).sum().backward()
    optimizer.step()
    if number in (4, 9):
        for count, other in enumerate(held):
            if count == 3:
                break
for other in held:
    pass
"""


@of_script(LEFT_EARLY)
def test_the_end_of_workers_is_recorded_and_in_no_step(ended: Ended) -> None:
    assert (ended.status, ended.stderr) == (0, b"")
    assert ended.recording is not None
    found = profile_of(ended.recording)
    over = found.spans.of(Kind.WORKERS_ENDED)
    with_workers = [each.number for each in found.iterations if each.workers]
    assert over.iterator.tolist() == with_workers
    assert len(with_workers) == 3
    steps = find_steps(found)
    assert len(steps.all) == 14 + 1
    phases = [(phase.batches, phase.end_ns) for phase in steps.phases]
    # The last one is read to its end: its workers are ended within the request that says so.
    assert phases[:2] == list(zip([4, 4], over.end_ns.tolist()[:2], strict=True))
    assert phases[2][0] == 20
    assert phases[2][1] >= over.end_ns[2]
    assert [number for number, step in enumerate(steps.all) if step.phases_ns] == [4, 9]
