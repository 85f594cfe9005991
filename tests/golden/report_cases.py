"""Reports made by hand, for the tests of `dlprof.render`. Each function returns a realistic or a hostile `Report`.

The numbers of the first three follow cases measured on two cores (text, images and compute-bound training).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import traces
from builders import ms, us

from dlprof import __version__
from dlprof.analysis.trace_rank import Rank, analyse
from dlprof.diagnose_trace import diagnose_trace
from dlprof.formats.torch_trace import read_trace
from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence, ExitReason
from dlprof.model.report import (
    SCHEMA,
    AdviceRow,
    BudgetRow,
    Device,
    Evidence,
    Exit,
    Forecast,
    HotLine,
    Input,
    Kernel,
    NotAdvised,
    NoticeRow,
    Overhead,
    Report,
    Run,
    SlowSample,
    Spread,
    StepRow,
    StepTimes,
    Total,
    Totals,
    Verdict,
    Worker,
)
from dlprof.render.wording import advice_text, headline, inconclusive_reason, notice_text, why_not

ENVIRONMENT = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "platform": "Linux-6.8.0-x86_64",
    "cpu": {"cores": 2, "affinity": [0, 1], "quota_cores": None},
    "memory_bytes": 8_345_000_000,
    "memory_limit_bytes": None,
    "shm_free_bytes": 67_108_864,
    "open_files_limit": 1024,
}


def steps_like(mean: float, wait: float, measured: int, traced: int, slow: dict[int, float]) -> list[StepRow]:
    """Steps that sway around ``mean`` ms, with a few slow ones (index → factor) and slower traced ones at the end."""
    factors = [
        (1 + 0.06 * math.sin(index * 2.4) + 0.04 * math.sin(index * 0.7 + 1)) * slow.get(index, 1.0)
        for index in range(measured + traced)
    ]
    usual = sum(factors[:measured]) / measured
    rows = []
    for index, factor in enumerate(factors):
        scale = factor / usual * (1.55 if index >= measured else 1.0)
        rows.append(StepRow(index + 5, round(mean * scale, 3), round(wait * scale, 3), index >= measured))
    return rows


def budget_of(mean: float, **shares: float) -> list[BudgetRow]:
    """Budget rows from shares by cause; the rest goes to ``other``."""
    rows = [
        BudgetRow(Cause(cause), round(mean * share, 3), share, "light" if cause == "input_wait" else "traced")
        for cause, share in shares.items()
    ]
    rest = 1 - sum(shares.values())
    return [*rows, BudgetRow(Cause.OTHER, round(mean * rest, 3), round(rest, 4), "traced")]


def advice(
    id: str,
    setting: str | None,
    from_: Any,
    to: Any,
    speedup: tuple[float, float, float] | None,
    evidence: list[Evidence],
    loader: dict[str, Any],
    device: str = "cpu",
) -> AdviceRow:
    """An advice row with the words that `advice_text` gives it."""
    how = advice_text(id, setting, from_, to, speedup, evidence, loader, device)
    return AdviceRow(id, setting, from_, to, speedup, evidence, how)


def workers_forecast(
    from_: int, mean: float, rows: Sequence[tuple[int, float, float, float, str, str | None]]
) -> list[Forecast]:
    """Forecasts of ``num_workers``: (to, p10, p50, p90, confidence, limited by)."""
    return [
        Forecast(
            "num_workers",
            from_,
            to,
            (low, middle, high),
            (round(mean / high, 3), round(mean / middle, 3), round(mean / low, 3)),
            Confidence(confidence),
            limited,
        )
        for to, low, middle, high, confidence, limited in rows
    ]


def tokenizer() -> Report:
    """Text tokenized in the training process, no workers, two cores."""
    loader = {
        "dataset": "train_text.TextDataset",
        "batch_size": 16,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "persistent_workers": False,
        "in_order": True,
        "drop_last": False,
        "sampler": "RandomSampler",
    }
    step = StepTimes(61.9, 61.2, 70.4, 16.2, 258.5, 0.31)
    budget = budget_of(61.9, device_compute=0.318, input_wait=0.621, python=0.043)
    verdict = (Bottleneck.CPU_PREPROCESSING, Component.TOKENIZER, 0.583, Confidence.HIGH)
    evidence = [
        Evidence("tokenizer_ms_per_batch", 36.1, "ms"),
        Evidence("input_wait", 0.621, "ratio"),
        Evidence("cores_usable", 2, "count"),
    ]
    return Report(
        schema=SCHEMA,
        dlprof=__version__,
        created="2026-11-30T14:02:11+00:00",
        host="bench-2",
        run=Run(
            ["python", "train_text.py", "--epochs", "3"],
            50,
            10,
            1,
            "cpu",
            None,
            1,
            Exit(0, ExitReason.STEPS_REACHED),
        ),
        verdict=Verdict(*verdict, headline(*verdict, step, budget, "cpu")),
        step=step,
        budget=budget,
        totals=Totals(
            collate_fn=Total(0.42, 60),
            tokenizer=Total(36.1, 60),
            dataset=Total(1.71, 60),
            device_step=Total(19.7, 60),
        ),
        device=None,
        input=Input(
            loader=loader,
            per_batch_ms={
                Component.TOKENIZER: Spread(36.1, 35.6, 43.2),
                Component.DATASET_GETITEM: Spread(1.71, 1.66, 2.05),
                Component.COLLATE_FN: Spread(0.42, 0.41, 0.55),
                Component.SAMPLER: Spread(0.06, 0.06, 0.08),
            },
            worker_busy_ratio=None,
            queue_depth_mean=None,
            workers=[],
            pad_ratio=0.34,
            slowest_samples=[SlowSample(8123, 6.41), SlowSample(511, 5.2), SlowSample(19004, 4.97)],
            hot_lines=[],
        ),
        forecast=workers_forecast(
            0,
            61.9,
            [
                (1, 36.2, 38.9, 42.7, "high", None),
                (2, 24.9, 26.8, 30.1, "high", "cores: 2"),
                (4, 25.8, 30.6, 36.9, "low", "cores: 2"),
                (8, 26.1, 33.0, 43.8, "low", "cores: 2"),
            ],
        ),
        advice=[
            advice("raise-num-workers", "num_workers", 0, 2, (2.06, 2.31, 2.49), evidence, loader),
            advice("pretokenize-dataset", None, None, None, (2.1, 2.4, 2.62), evidence[:2], loader),
        ],
        not_advised=[
            NotAdvised("pin-memory", why_not("pin-memory", "no-device")),
            NotAdvised("raise-prefetch-factor", why_not("raise-prefetch-factor", "no-workers")),
            NotAdvised("vectorize-collate", why_not("vectorize-collate", "torchs-own")),
        ],
        steps=steps_like(61.9, 38.4, 50, 10, {17: 1.5}),
        ranks=[],
        environment=ENVIRONMENT,
        notices=[
            NoticeRow("fewer-steps", 1, notice_text("fewer-steps", wanted=60, measured=50)),
        ],
        overhead=Overhead(0.004, 1.55, 0),
    )


def images() -> Report:
    """Full-size JPEGs decoded in two workers on two cores: more workers do not help, smaller pictures do."""
    base = tokenizer()
    loader = {**dict(base.input.loader if base.input else {}), "dataset": "train_images.Photos", "num_workers": 2}
    loader |= {"prefetch_factor": 2, "persistent_workers": True, "batch_size": 32}
    step = StepTimes(148.3, 146.0, 171.8, 6.74, 215.8, 1.92)
    budget = budget_of(148.3, input_wait=0.713, device_compute=0.241, python=0.021, synchronization=0.009)
    verdict = (Bottleneck.CPU_PREPROCESSING, Component.DECODE, 0.52, Confidence.MEDIUM)
    evidence = [Evidence("decode_ms_per_batch", 231.0, "ms"), Evidence("worker_busy_ratio", 0.97, "ratio")]
    return replace(
        base,
        run=replace(base.run, command=["python", "train_images.py", "--data", "/data/photos"], steps_measured=24),
        verdict=Verdict(*verdict, headline(*verdict, step, budget, "cpu")),
        step=step,
        budget=budget,
        totals=Totals(collate_fn=Total(6.2, 30), dataset=Total(268.4, 30), device_step=Total(35.7, 30)),
        input=Input(
            loader=loader,
            per_batch_ms={
                Component.STORAGE_IO: Spread(5.1, 3.9, 14.2),
                Component.DECODE: Spread(231.0, 226.4, 270.3),
                Component.TRANSFORM: Spread(31.8, 31.1, 38.0),
                Component.DATASET_GETITEM: Spread(2.4, 2.3, 3.0),
                Component.COLLATE_FN: Spread(6.2, 6.0, 7.9),
                Component.CPU_CONTENTION: Spread(18.6, 12.0, 51.0),
                Component.PICKLE: Spread(0.9, 0.8, 1.2),
                Component.TRANSPORT: Spread(1.1, 0.9, 2.2),
                Component.UNPICKLE: Spread(1.6, 1.5, 2.1),
            },
            worker_busy_ratio=0.97,
            queue_depth_mean=0.08,
            workers=[
                Worker(41207, 13, 3.48, 0.31, 0.11, 212.4, 214.0),
                Worker(41208, 11, 3.39, 0.35, 0.12, 211.9, None),
            ],
            pad_ratio=None,
            slowest_samples=[SlowSample(204, 31.4), SlowSample(77, 28.8)],
            hot_lines=[
                HotLine(
                    "train_images.py:31",
                    "Photos.__getitem__",
                    '        image = Image.open(path).convert("RGB")',
                    0.78,
                    "cpu",
                ),
                HotLine("train_images.py:32", "Photos.__getitem__", "return self.augment(image)", 0.11, "cpu"),
                HotLine("train_images.py:30", "Photos.__getitem__", "data = path.read_bytes()", 0.02, "storage"),
            ],
        ),
        forecast=workers_forecast(
            2,
            148.3,
            [
                (0, 298.0, 307.5, 320.1, "high", None),
                (1, 268.0, 277.2, 290.6, "high", None),
                (4, 133.0, 146.0, 166.4, "low", "cores: 2"),
                (8, 129.8, 145.1, 178.5, "low", "cores: 2"),
            ],
        ),
        advice=[
            advice("decode-faster", None, None, None, (1.52, 1.94, 2.3), evidence, loader),
        ],
        not_advised=[
            NotAdvised("raise-num-workers", why_not("raise-num-workers", "no-cores", cores=2)),
            NotAdvised("pin-memory", why_not("pin-memory", "no-device")),
        ],
        steps=steps_like(148.3, 105.7, 24, 6, {0: 5.2, 9: 1.3}),
        notices=[
            NoticeRow("short-run", 1, notice_text("short-run", steps=24)),
            NoticeRow("first-batches-from-full-queue", 4, notice_text("first-batches-from-full-queue", count=4)),
        ],
        overhead=Overhead(0.006, 1.21, 0),
    )


def gpu() -> Report:
    """A GPU that is busy nearly all the time: nothing to gain in the loader."""
    base = tokenizer()
    loader = {**dict(base.input.loader if base.input else {}), "num_workers": 4, "prefetch_factor": 2}
    loader |= {"pin_memory": True, "persistent_workers": True, "dataset": "tokens.PackedTokens"}
    step = StepTimes(212.6, 212.1, 216.9, 4.7, 75.2, 4.1)
    budget = budget_of(
        212.6, device_compute=0.912, h2d_copy=0.004, input_wait=0.009, synchronization=0.021, kernel_launch=0.031
    )
    verdict = (Bottleneck.DEVICE_COMPUTE, Component.COMPUTE, 0.912, Confidence.HIGH)
    evidence = [Evidence("input_wait", 0.009, "ratio"), Evidence("device_busy_ratio", 0.912, "ratio")]
    return replace(
        base,
        run=Run(
            ["torchrun", "--nproc-per-node", "1", "pretrain.py", "config/small.yaml"],
            50,
            10,
            4,
            "cuda:0",
            "NVIDIA H200",
            1,
            Exit(0, ExitReason.STEPS_REACHED),
        ),
        verdict=Verdict(*verdict, headline(*verdict, step, budget, "cuda:0")),
        step=step,
        budget=budget,
        totals=Totals(
            collate_fn=Total(1.2, 60), dataset=Total(3.4, 60), h2d=Total(0.8, 120), device_step=Total(193.9, 60)
        ),
        device=Device(
            0.912,
            18.7,
            1_048_576,
            21.4,
            0.0,
            [
                Kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", 88.2, 96),
                Kernel("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", 41.7, 24),
                Kernel("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>", 6.12, 310),
            ],
        ),
        input=Input(
            loader=loader,
            per_batch_ms={
                Component.DATASET_GETITEM: Spread(3.4, 3.3, 4.4),
                Component.COLLATE_FN: Spread(1.2, 1.2, 1.5),
                Component.PIN_MEMORY: Spread(0.3, 0.3, 0.5),
            },
            worker_busy_ratio=0.021,
            queue_depth_mean=7.9,
            workers=[Worker(900 + i, 15, 0.08, 0.0, 0.004, 180.2, 180.3) for i in range(4)],
            pad_ratio=0.0,
            slowest_samples=[],
            hot_lines=[],
        ),
        forecast=workers_forecast(
            4, 212.6, [(1, 212.0, 212.5, 213.4, "high", None), (2, 211.9, 212.4, 213.2, "high", None)]
        ),
        advice=[advice("stop-tuning-input", None, None, None, None, evidence, loader, "cuda:0")],
        not_advised=[
            NotAdvised("raise-num-workers", why_not("raise-num-workers", "no-wait", share=0.009)),
            NotAdvised("pin-memory", why_not("pin-memory", "already")),
        ],
        steps=steps_like(212.6, 1.9, 50, 10, {}),
        environment={
            **ENVIRONMENT,
            "cpu": {"cores": 64, "affinity": "0-63", "quota_cores": 16.0},
            "memory_bytes": 1.08e12,
            "gpus": [
                {
                    "index": 0,
                    "name": "NVIDIA H200",
                    "matched_by": "pid",
                    "memory_total_bytes": 150_754_820_096,
                    "memory_used_max_bytes": 21_474_836_480,
                    "memory_of_run_max_bytes": 20_937_965_568,
                    "utilization_mean_ratio": 0.93,
                    "utilization_samples": 84,
                    "pcie_link": "5 x16",
                    "pcie_link_max": "5 x16",
                    "pcie_received_mean_bytes_per_s": 1_204_000_000.0,
                    "pcie_received_max_bytes_per_s": 3_511_000_000,
                    "other_processes_max": 0,
                }
            ],
            "cuda": "13.0",
        },
        notices=[],
        overhead=Overhead(0.001, 1.04, 0),
    )


def short() -> Report:
    """A run that crashed after three steps: no verdict, and null wherever JSON allows it."""
    base = tokenizer()
    step = StepTimes(None, None, None, None, None, None)
    reason = inconclusive_reason("few-steps", steps=3)
    verdict = (Bottleneck.INCONCLUSIVE, None, None, Confidence.LOW)
    return replace(
        base,
        run=Run(
            ["python", "train_text.py"],
            3,
            0,
            None,
            "cpu",
            None,
            1,
            Exit(1, ExitReason.EXCEPTION, "ValueError: expected sequence of length 12 at dim 1 (got 9)"),
        ),
        verdict=Verdict(*verdict, headline(*verdict, step, [], "cpu", reason=reason)),
        step=step,
        budget=[],
        totals=Totals(),
        input=Input(
            loader={"num_workers": 0, "batch_size": None, "pin_memory": False},
            per_batch_ms={},
            worker_busy_ratio=None,
            queue_depth_mean=None,
            workers=[Worker(77, 1, 0.0, 0.0, 0.0, None, None)],
            pad_ratio=None,
            slowest_samples=[],
            hot_lines=[],
        ),
        forecast=[],
        advice=[],
        not_advised=[],
        steps=[StepRow(5, 61.2, 38.0, False), StepRow(6, 64.9, 40.1, False), StepRow(7, 58.3, 36.2, False)],
        environment={},
        notices=[
            NoticeRow("short-run", 1, notice_text("short-run", steps=3)),
            NoticeRow("no-trace", 1, notice_text("no-trace")),
        ],
        overhead=Overhead(None, None, 0),
    )


MARKUP = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>"
CONTROL = 'a\x00\x1b[31m\u202e"quoted" & <b>\n# heading | cell | @everyone [link](javascript:alert(3)) `code` $x$'


def hostile() -> Report:
    """Markup, control characters, quotes, newlines and 10,000 characters in every string that a script can choose."""
    base = gpu()
    long = "/very/long" * 1000 + "/" + MARKUP
    assert base.device is not None
    assert base.input is not None
    evidence = [Evidence(MARKUP, 1.0, MARKUP), Evidence(CONTROL, float("nan"), "")]
    how = f"{CONTROL} {MARKUP}\n\n    x = '{MARKUP}'\n    ``` \n    y = 1\n\n{long}"
    return replace(
        base,
        host=MARKUP,
        created=MARKUP,
        run=replace(
            base.run,
            command=["python", MARKUP + ".py", CONTROL, long],
            device_name=MARKUP,
            world_size=2,
            exit=Exit(139, ExitReason.WORKER_DIED, CONTROL + MARKUP),
        ),
        verdict=replace(base.verdict, headline=f"Compute bounds the step of {MARKUP} {CONTROL}"),
        device=replace(base.device, top_kernels=[Kernel(MARKUP, 3, 1), Kernel(CONTROL, 2, 1), Kernel(long, 1, 0.5)]),
        input=replace(
            base.input,
            loader={"dataset": MARKUP, CONTROL: CONTROL, "num_workers": 4, "sampler": {MARKUP: [long, None]}},
            hot_lines=[HotLine(long, MARKUP, f"    {MARKUP}  # {CONTROL}", 0.4, "lock")],
        ),
        forecast=[
            *base.forecast,
            Forecast(MARKUP, CONTROL, long, (1, 2, 3), (1, 1.5, 2), Confidence.LOW, MARKUP),
        ],
        advice=[
            AdviceRow(MARKUP, MARKUP, CONTROL, long, (1.0, 1.2, float("nan")), evidence, how),
            AdviceRow("raise-num-workers", "num_workers", MARKUP, CONTROL, (1.0, 1.2, 1.4), evidence, how),
            AdviceRow("unknown-advice", CONTROL, 1, 2, None, [], how),
        ],
        not_advised=[NotAdvised(MARKUP, CONTROL + MARKUP + long)],
        ranks=[
            {"rank": 0, "host": MARKUP, "step_ms": 212.6},
            {"rank": 1, "host": CONTROL, "step_ms": None, MARKUP: 1},
        ],
        environment={MARKUP: CONTROL, "nested": {CONTROL: {MARKUP: long}}, "empty": {}},
        notices=[NoticeRow(MARKUP, 2, MARKUP + CONTROL), NoticeRow("hook-failed", 1, long)],
    )


def trace() -> Report:
    """Traces of two ranks, of which the second waits for its input and the first for the second."""
    late = traces.step(input=ms(14), h2d=ms(1), operator=ms(3), compute=ms(20), all_reduce=ms(1), python=us(400)) * 12
    early = traces.step(input=us(90), h2d=ms(1), operator=ms(3), compute=ms(20), all_reduce=ms(15), python=us(400)) * 12
    ranks: list[Rank] = []
    with tempfile.TemporaryDirectory() as folder:
        for rank, marks in enumerate((early, late)):
            path = Path(folder) / f"rank{rank}.pt.trace.json"
            path.write_bytes(traces.text(traces.trace(marks, rank=rank, ranks=2)))
            ranks += analyse(read_trace(path))
    return replace(diagnose_trace(ranks, ["traces"]), created="2026-11-20T10:15:00+00:00", host="node-3")


CASES: dict[str, Callable[[], Report]] = {
    "tokenizer": tokenizer,
    "images": images,
    "gpu": gpu,
    "short": short,
    "hostile": hostile,
    "trace": trace,
}
