"""On a real device: verdicts on loops of known state, events against known gaps, and the same losses as without us."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import check
import pytest
import torch
from recordings import asked, rows

from dlprof.capture.device import StarvationPairs, accelerator_in_use, device_facts
from dlprof.capture.recorder import Recorder, now
from dlprof.capture.tracing import Tracer
from dlprof.model.kinds import Kind

MS = 1_000_000


@pytest.mark.parametrize("state", check.TRUTHS)
def test_the_verdict_on_a_loop_of_known_state(device, state, tmp_path):
    report = check.profile(state, tmp_path / "run", steps=40, trace_steps=8)
    assert check.faults(report, check.TRUTHS[state]) == [], report["verdict"]


def test_utilisation_and_memory_of_the_gpu_are_in_the_environment(device, tmp_path):
    if device.type != "cuda" or torch.version.hip:
        pytest.skip("NVML is NVIDIA's")
    report = check.profile("compute-bound", tmp_path / "run", steps=100, trace_steps=0)
    (gpu,) = report["environment"]["gpus"]
    assert gpu["name"]
    assert 0 < gpu["memory_used_max_bytes"] <= gpu["memory_total_bytes"]
    assert gpu["utilization_mean_ratio"] > 0.3


def test_nothing_initialises_the_device():
    code = (
        "import torch; from dlprof.capture.device import accelerator_in_use, device_facts;"
        "assert accelerator_in_use() is None and device_facts() == {}; assert not torch.cuda.is_initialized()"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- events ----------------------------------------------------------------------------------------------------------


class Loop:
    """Requests of known length on a device with a known amount of work queued."""

    def __init__(self, device, folder):
        self.recorder = Recorder(str(folder), asked())
        self.pairs = StarvationPairs(self.recorder)
        self.folder = folder
        self.batch = 0
        self.matrix = torch.rand(2048, 2048, device=device)
        self.matrix @ self.matrix
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            self.matrix @ self.matrix
        torch.accelerator.synchronize()
        self.product_s = (time.perf_counter() - begin) / 50

    def queue(self, seconds: float) -> None:
        for _ in range(round(seconds / self.product_s)):
            self.matrix @ self.matrix

    def ask(self, seconds: float) -> None:
        pair = self.pairs.entered(self.recorder.thread())
        start = now()
        time.sleep(seconds)
        if pair is not None:
            self.pairs.left(pair, start, now(), self.batch, 1)
        self.batch += 1

    def starved_ms(self, kind: Kind = Kind.STARVED) -> list[float]:
        torch.accelerator.synchronize()
        self.pairs.finish()
        self.recorder.flush_all()
        return [row.value / MS for row in rows(self.folder, kind)]


@pytest.fixture
def loop(device, tmp_path):
    return Loop(device, tmp_path)


def test_an_idle_device_starves_for_as_long_as_the_request(loop):
    loop.ask(0.05)
    (starved,) = loop.starved_ms()
    assert starved == pytest.approx(50, abs=5)


def test_a_device_with_work_for_the_whole_request_does_not(loop):
    loop.queue(0.2)
    loop.ask(0.02)
    (starved,) = loop.starved_ms()
    assert starved < 1


def test_work_for_half_of_the_request_leaves_the_other_half(loop):
    loop.queue(0.05)
    loop.ask(0.1)
    (starved,) = loop.starved_ms()
    assert starved == pytest.approx(50, abs=20)


def test_nothing_waits_for_the_device(loop):
    loop.queue(0.5)
    begin = time.perf_counter()
    for _ in range(10):
        loop.ask(0)
    assert time.perf_counter() - begin < 0.1


def test_the_devices_step_is_its_own_though_the_host_runs_ahead(loop):
    for _ in range(4):
        loop.ask(0)
        loop.queue(0.03)
    assert loop.starved_ms(Kind.DEVICE_STEP) == pytest.approx([30, 30, 30], rel=0.5)


def test_a_captured_graph_is_left_alone(loop, device):
    if device.type != "cuda":
        pytest.skip("graphs of CUDA")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = loop.matrix @ loop.matrix
        loop.ask(0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(product, loop.matrix @ loop.matrix)
    assert loop.starved_ms() == []


# ---- torch.profiler --------------------------------------------------------------------------------------------------


def test_kernels_and_both_kinds_of_copies_are_in_the_trace(device, tmp_path):
    from dlprof.formats.chrome_trace import read_torch_trace
    from dlprof.formats.recording import CLOCK_MARKER

    pageable, pinned = torch.rand(1 << 20), torch.rand(1 << 20).pin_memory()
    pageable.to(device)
    tracer = Tracer(Recorder(str(tmp_path), asked()))
    assert tracer.start()
    tracer.mark()
    (pageable.to(device) + pinned.to(device)).sum().item()
    tracer.export()
    (path,) = tmp_path.glob("*.torch.json")
    found = read_torch_trace(path, CLOCK_MARKER).events
    assert any(event.kind is Kind.KERNEL and event.on_device for event in found)
    copies = [event for event in found if event.kind is Kind.COPY_H2D]
    assert {event.size_bytes for event in copies} == {4 << 20}
    if device.type == "cuda" and not torch.version.hip:
        assert ["Pageable" in event.name for event in copies] == [True, False]


# ---- harm ------------------------------------------------------------------------------------------------------------

TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
device = torch.accelerator.current_accelerator()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Dropout(), torch.nn.Linear(256, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.rand(640, 64), torch.rand(640, 1))
for x, y in DataLoader(data, 8, shuffle=True):
    loss = (model(x.to(device)) - y.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


def test_losses_are_the_same_to_the_bit_with_and_without_dlprof(device, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    plain = [sys.executable, "train.py"]
    run = [sys.executable, "-m", "dlprof", "run", "--steps", "all", "--format", "json", "--out", "run", "--", *plain]
    said = [
        subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL)
        for command in (plain, run)
    ]
    assert [done.returncode for done in said] == [0, 0], said[1].stderr
    assert said[0].stdout == said[1].stdout
    assert said[0].stdout.count("\n") == 80


def test_the_device_has_its_name(device):
    torch.ones(1, device=device)
    found = accelerator_in_use()
    assert found is not None
    assert found.type == device.type
    assert device_facts()["device"].startswith(device.type)
