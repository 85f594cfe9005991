"""Device starvation by pairs of events: what they measure, and that nothing waits and nothing is initialised."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
from accelerators import FakeDevice
from recordings import asked, begin, events, rows

from dlprof.capture import device as under_test
from dlprof.capture.device import StarvationPairs, accelerator_in_use, device_facts
from dlprof.capture.recorder import Recorder
from dlprof.model.kinds import Kind

MS = 1_000_000


@pytest.fixture
def gpu(monkeypatch):
    """A torch whose accelerator is pretended."""
    fake = FakeDevice()
    current = SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(accelerator=current, cuda=fake))
    return fake


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path), asked())


@pytest.fixture
def pairs(recorder):
    return StarvationPairs(recorder)


class Script:
    """A training loop: ``ask`` is one request for a batch that takes ``wait_ms``, then ``work_ms`` are queued."""

    def __init__(self, gpu: FakeDevice, pairs: StarvationPairs, recorder: Recorder) -> None:
        self.gpu, self.pairs, self.recorder = gpu, pairs, recorder
        self.batch = 0

    def ask(self, wait_ms: float, work_ms: float = 0) -> None:
        thread = self.recorder.thread()
        pair = self.pairs.entered(thread)
        start = self.gpu.host_ms
        self.gpu.host_ms += wait_ms
        if pair is not None:
            self.pairs.left(pair, int(start * MS), int(self.gpu.host_ms * MS), self.batch, 1)
        self.batch += 1
        self.gpu.queue_work(work_ms)

    def starved(self, folder) -> list[tuple[int, float, float, float]]:
        self.pairs.finish()
        self.recorder.flush_all()
        return [(r.batch, r.start_ns / MS, r.end_ns / MS, r.value / MS) for r in rows(folder, Kind.STARVED)]


@pytest.fixture
def script(gpu, pairs, recorder):
    return Script(gpu, pairs, recorder)


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_a_device_with_nothing_queued_starves_for_the_whole_request(script, tmp_path):
    script.ask(30)
    assert script.starved(tmp_path) == [(0, 0, 30, 30)]


def test_work_still_queued_at_entry_shortens_it_from_the_front(script, tmp_path):
    script.ask(10, work_ms=20)
    script.ask(30, work_ms=20)
    script.gpu.host_ms += 100
    assert script.starved(tmp_path) == [(0, 0, 10, 10), (1, 30, 40, 10)]


def test_work_that_outlasts_the_request_leaves_nothing(script, tmp_path):
    script.ask(10, work_ms=100)
    script.ask(30)
    script.gpu.host_ms += 100
    assert script.starved(tmp_path) == [(0, 0, 10, 10), (1, 40, 40, 0)]


def test_an_item_each_step_is_the_devices_time_and_not_the_inputs(script, tmp_path):
    # The script waits for the device outside the request: there the stream is empty, as the pair says, but shortly.
    for _ in range(3):
        script.ask(1, work_ms=50)
        script.gpu.host_ms = script.gpu.busy_until_ms
    assert [row[3] for row in script.starved(tmp_path)] == [1, 1, 1]


def test_the_devices_clock_may_count_more_than_the_request(script, gpu, tmp_path):
    script.ask(10)
    pair = script.pairs._pending[0]
    pair.exit.at_ms += 1
    gpu.host_ms += 5
    assert script.starved(tmp_path) == [(0, 0, 10, 11)]


def device_steps(script, folder) -> list[tuple[int, float, float]]:
    script.pairs.finish()
    script.recorder.flush_all()
    return [(r.batch, r.start_ns / MS, r.value / MS) for r in rows(folder, Kind.DEVICE_STEP)]


def test_the_devices_own_step_is_known_though_the_host_runs_ahead(script, tmp_path):
    for _ in range(4):
        script.ask(1, work_ms=20)
    script.gpu.host_ms += 100
    assert device_steps(script, tmp_path) == [(0, 0, 21), (1, 1, 20), (2, 2, 20)]


def test_a_request_that_was_left_out_makes_no_long_step(script, gpu, tmp_path):
    script.ask(10)
    gpu.capturing = True
    script.ask(10)
    gpu.capturing = False
    script.ask(10)
    script.ask(10)
    assert [batch for batch, _, _ in device_steps(script, tmp_path)] == [2]


# ---- nothing waits ---------------------------------------------------------------------------------------------------


def test_only_what_has_happened_is_read_and_events_are_used_again(script, gpu, tmp_path):
    for _ in range(20):
        script.ask(1, work_ms=1)
        gpu.host_ms += 2
    assert len(gpu.events) <= 6
    assert len(script.starved(tmp_path)) == 20


def test_a_device_that_is_far_behind_is_not_waited_for(script, gpu, recorder, tmp_path):
    script.ask(1, work_ms=1_000_000)
    for _ in range(100):
        script.ask(1)
    assert len(gpu.events) <= 2 * 65
    assert len(script.starved(tmp_path)) == 1
    (notice,) = events(tmp_path, "notice")
    assert (notice["slug"], notice["events"]) == ("device-events-dropped", 36)


def test_what_is_unread_at_the_end_is_left_without_a_notice(script, tmp_path):
    script.ask(1, work_ms=1000)
    script.ask(1)
    assert len(script.starved(tmp_path)) == 1
    assert events(tmp_path, "notice") == []


# ---- leaving the script alone ----------------------------------------------------------------------------------------


def test_nothing_is_touched_before_the_script_has_initialised_the_device(script, gpu, tmp_path):
    gpu.initialized = False
    script.ask(1)
    assert gpu.calls == []
    assert gpu.events == []
    gpu.initialized = True
    script.ask(1)
    assert [row[0] for row in script.starved(tmp_path)] == [1]


def test_no_event_while_a_graph_is_captured(script, gpu, tmp_path):
    gpu.capturing = True
    script.ask(1)
    assert gpu.calls == []
    assert gpu.events == []


def test_a_capture_begun_within_the_request_leaves_the_pair_out(script, gpu, recorder, tmp_path):
    pair = script.pairs.entered(recorder.thread())
    gpu.capturing = True
    script.pairs.left(pair, 0, 1, 0, 1)
    gpu.capturing = False
    assert script.starved(tmp_path) == []


def test_a_thread_that_trains_is_timed_though_it_is_not_the_main_one(script, tmp_path):
    def train() -> None:
        script.pairs.trains_here()
        script.ask(30)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    script.ask(10)
    assert [row[:1] + row[3:] for row in script.starved(tmp_path)] == [(0, 30)]


def test_other_threads_are_left_out(script, gpu):
    thread = threading.Thread(target=script.ask, args=(1,))
    thread.start()
    thread.join()
    assert gpu.calls == []


def test_another_device_gets_events_of_its_own(script, gpu, tmp_path):
    script.ask(1)
    gpu.index = 1
    script.ask(2)
    gpu.index = 0
    script.ask(3)
    assert [row[3] for row in script.starved(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("call", ["record", "query", "elapsed_time"])
def test_a_failure_turns_the_pairs_off_and_nothing_else(script, gpu, recorder, call, tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    script.ask(1)
    monkeypatch.setattr(gpu.Event, call, fails)
    script.ask(1)
    script.ask(1)
    # What had been read before stays.
    assert len(script.starved(tmp_path)) == (call == "record")
    (notice,) = events(tmp_path, "notice")
    assert notice["slug"] == "device-events-failed"
    assert "illegal memory access" in notice["error"]
    assert recorder.on


def test_a_forked_child_keeps_the_parents_events_alive_and_alone(script, gpu, monkeypatch):
    monkeypatch.setattr(under_test, "_kept_after_fork", [])
    script.ask(1)
    before = list(gpu.calls)
    script.pairs.abandon()
    script.ask(1)
    assert gpu.calls == before
    assert len(under_test._kept_after_fork) == 1


def test_an_accelerator_without_events_has_no_pairs(script, gpu, tmp_path):
    gpu.Event = None
    script.ask(1)
    assert script.starved(tmp_path) == []
    assert events(tmp_path, "notice") == []


# ---- which accelerator -----------------------------------------------------------------------------------------------


def test_without_torch_there_is_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert accelerator_in_use() is None


def test_this_machines_torch_is_asked_without_initialising_anything():
    torch = pytest.importorskip("torch")
    before = torch.cuda.is_initialized()
    accelerator_in_use()
    assert torch.cuda.is_initialized() == before


def test_an_older_torch_without_accelerators(monkeypatch):
    fake = FakeDevice()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    found = accelerator_in_use()
    assert found is not None
    assert (found.type, found.module) == ("cuda", fake)


def test_an_extensions_accelerator_goes_by_its_own_name(monkeypatch):
    fake = FakeDevice()
    current = SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="npu"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(accelerator=current, npu=fake))
    assert device_facts() == {"device": "npu:0", "device_name": "Pretended 0"}


def test_a_device_that_is_not_initialised_is_not_in_use(gpu):
    gpu.initialized = False
    assert accelerator_in_use() is None
    assert device_facts() == {}


# ---- in a session ----------------------------------------------------------------------------------------------------


def request(session, gpu, wait_ms, *, ended=False, nested=False):
    asked_for = session.before_request(1)
    gpu.host_ms += wait_ms
    if nested:
        request(session, gpu, 0)
    session.after_request(asked_for, ended=ended, batch=None, number=0, iterator=1, ready=-1)


def test_a_session_makes_one_pair_a_batch_and_none_for_the_end_or_within_another_request(gpu, tmp_path):
    session = begin(tmp_path)
    request(session, gpu, 5, nested=True)
    request(session, gpu, 5)
    request(session, gpu, 5, ended=True)
    session._starvation.finish()
    session.recorder.flush_all()
    assert [row.value for row in rows(tmp_path, Kind.STARVED)] == [5 * MS, 5 * MS]
