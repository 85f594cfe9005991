"""The rules beside those on workers: each fires on its evidence, at its bound and not below it, and can be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from known_findings import findings, forecast

from dlprof.advice.common import COMPUTES, CROWDED, FINE_WAIT, WORTH_CODING, WORTH_TRYING
from dlprof.advice.data import (
    CHEAP_ITEM_MS,
    IN_PYTHON,
    LEAST_READ_BYTES,
    MANY_CALLS,
    MANY_ITEMS,
    MUCH_WAIT,
    OPENING,
    PADDED,
    SHORT_CALL_MS,
    SLOW_READS_MB_PER_S,
)
from dlprof.advice.loader import PAGEABLE
from dlprof.advice.machine import HELPED, THROTTLED
from dlprof.advice.rules import RULES, advise
from dlprof.advice.step import IN_FLOAT32, ROOM, WORTH_SHARE
from dlprof.model.advice import Advice, Findings, InputFacts, Refusal
from dlprof.model.diagnosis import Breakdown, Candidate
from dlprof.model.kinds import Bottleneck, Cause, Component
from dlprof.model.pipeline import Interval
from dlprof.model.profile import BatchShape
from dlprof.model.report import Device, HotLine, Kernel
from dlprof.render.wording import advice_text, advice_title, metric_name, why_not

LITTLE = 1e-6
MB = 2**20


def batch(tensors: int = 2, size: int = 8 * MB) -> BatchShape:
    return BatchShape(1, (((4, 4), "float32"),) * tensors, size, 4, 0)


def facts(**values: Any) -> InputFacts:
    return InputFacts(**{"batch": batch(), **values})


def with_loader(found: Findings, **settings: Any) -> Findings:
    return replace(found, loader={**(found.loader or {}), **settings})


def step_of(**shares: float) -> Breakdown:
    ns = {Cause(cause): 1e7 * share for cause, share in shares.items()}
    ns[Cause.OTHER] = 1e7 - sum(ns.values())
    return Breakdown(1e7, ns, dict.fromkeys(ns, "light"))


def candidates(found: Findings, bottleneck: Bottleneck, component: Component, saved: float) -> Findings:
    each = Candidate(bottleneck, component, Interval(saved, saved, saved))
    return replace(found, judgement=replace(found.judgement, candidates=(each,)))


def startup(saved: float = 0.4, **settings: Any) -> Findings:
    found = candidates(
        findings(mean=step_of(input_wait=0.1), workers=2), Bottleneck.LOADER_OVERHEAD, Component.WORKER_STARTUP, saved
    )
    return with_loader(found, **{"length": 10, "persistent_workers": False, **settings})


def anew(found: Findings, **settings: Any) -> Findings:
    return with_loader(replace(found, facts=facts(made_anew=True)), made_anew=True, **settings)


def other_setting(setting: str, from_: Any, to: Any, gain: float = 1.4, **more: Any) -> Findings:
    wanted = replace(forecast(to, gain, from_=from_), setting=setting)
    return with_loader(findings(wait=0.3, workers=2, setting_forecasts=(wanted,), **more), prefetch_factor=2)


def shm(free: int, failure: str = "") -> Findings:
    machine = {"shm_bytes": 64 * MB, "shm_free_bytes": free}
    found = findings(workers=4, facts=facts(batch=batch(size=5 * MB)), environment=machine, failure=failure)
    return with_loader(found, prefetch_factor=2)


def small_shm(gain: float = 1.5, fitting: int = 1, wanted: int = 4, **more: Any) -> Findings:
    """One worker is all that fits, and with more of them a step would be shorter."""
    best = forecast(wanted, gain, from_=1)
    machine = {"shm_bytes": 64 * MB, "shm_free_bytes": 64 * MB}
    known = {"facts": facts(batch=batch(size=12 * MB)), "environment": machine, "workers_if_shm": best}
    found = findings(workers=1, knee=forecast(fitting, 1.0, from_=1), **(known | more))
    return with_loader(found, prefetch_factor=2)


def files(limit: int, failure: str = "") -> Findings:
    found = findings(
        workers=4, facts=facts(batch=batch(tensors=100)), environment={"open_files_limit": limit}, failure=failure
    )
    return with_loader(found, prefetch_factor=2)


def quota(cores: float | None = 1.0, throttled: float = 0.4, used: float = 0.8) -> Findings:
    load = {"throttled_ratio": throttled, "cores_used": used}
    return findings(environment={"cpu_quota": cores, "cpu_affinity": 4, "during_the_steps": load})


def affinity(cores: int = 1, no_core: float = 2.0, wait: float = 0.2, **machine: Any) -> Findings:
    environment = {"cpu_affinity": cores, "cpu_count": 4, "cpu_quota": None, **machine}
    return findings(wait=wait, workers=2, facts=facts(no_core_ratio=no_core), environment=environment)


def threads(helpers: float = 0.6, no_core: float = 0.5, workers: int = 2) -> Findings:
    return findings(workers=workers, facts=facts(helper_ratio=helpers, no_core_ratio=no_core))


def shards(working: int | None = 1, *, iterable: bool = True) -> Findings:
    return with_loader(findings(workers=4, facts=facts(workers_with_batches=working)), iterable=iterable)


def unshared(workers: int = 0, shared_ms: float = 10.0, **more: Any) -> Findings:
    """An iterable dataset of which each worker gives all samples; one worker alone takes 20 ms a step."""
    alone = replace(forecast(1, 2.0), step_ms=(20.0, 20.0, 20.0))
    shared = replace(forecast(3, 4.0), step_ms=(shared_ms,) * 3)
    return findings(
        workers=workers, knee=alone, **{"facts": facts(shares_nothing_out=True), "workers_if_shared": shared, **more}
    )


def reading(
    *, ms: float = 40.0, size: float = 2e6, gain: float = 2.0, states: tuple[str, ...] = ("storage",), **more: Any
) -> Findings:
    lines = tuple(HotLine(f"train.py:{n}", "read", "", 0.4, state) for n, state in enumerate(states))
    return findings(
        workers=1,
        without={Component.STORAGE_IO: gain},
        per_batch_ms={Component.STORAGE_IO: ms},
        environment={"during_the_steps": {"read_from_disk_per_step_bytes": size}},
        lines=lines,
        **more,
    )


def tokenizing(calls: float = 32, call_ms: float = 0.1, gain: float = 1.8, **more: Any) -> Findings:
    return findings(
        without={Component.TOKENIZER: gain},
        per_batch_ms={Component.TOKENIZER: calls * call_ms},
        facts=facts(tokenizer_calls_per_batch=calls),
        **more,
    )


def indexing(items: float = 4096, item_ms: float = 0.007, gain: float = 2.4, **settings: Any) -> Findings:
    found = findings(
        without={Component.DATASET_GETITEM: gain},
        per_batch_ms={Component.DATASET_GETITEM: items * item_ms},
        facts=facts(items_per_batch=items),
    )
    return with_loader(found, **settings)


def handing_over(rebuilding: float | None, saved: float = 0.4, making_ms: float = 2.0, workers: int = 2) -> Findings:
    spent = {Component.UNPICKLE: 50.0, Component.PICKLE: 12.0, Component.DATASET_GETITEM: making_ms}
    found = findings(workers=workers, per_batch_ms=spent, facts=facts(rebuilding_ratio=rebuilding))
    return candidates(found, Bottleneck.LOADER_OVERHEAD, Component.UNPICKLE, saved)


def padding(ratio: float | None = 0.8, *, same: bool = True) -> Findings:
    return findings(pad_ratio=ratio, facts=facts(same_length=same))


def python_tokenizer(ratio: float = 0.8, wait: float = 0.5) -> Findings:
    return findings(wait=wait, facts=facts(python_tokenizer_ratio=ratio))


def copying(pageable: float | None = 1.0, share: float = 0.2, *, pinned: bool = False, **more: Any) -> Findings:
    device = Device(0.5, 10.0, 1e8, 5.0, pageable)
    return with_loader(
        findings(mean=step_of(h2d_copy=share), device=device, **{"accelerator": True, **more}), pin_memory=pinned
    )


def on_device(accelerator: bool = True, **shares: float) -> Findings:
    return findings(mean=step_of(**shares), accelerator=accelerator)


def late_rank(waited_ms: float) -> Findings:
    """The other ranks wait so long, in each step of 100 ms."""
    mean = Breakdown(1e8, {Cause.OTHER: 1e8}, {Cause.OTHER: "light"})
    return findings(mean=mean, notices={"trace-straggler": {"rank": 7, "waited_ms": waited_ms}})


def files_up_to(hard: int | None, failure: str = "") -> Findings:
    """1328 open files are needed and 1327 allowed."""
    found = files(1327, failure)
    return replace(found, environment={**found.environment, "open_files_hard_limit": hard})


def multiplying(ms: float = 5.0, name: str = "volta_sgemm_128x64_nn", **more: Any) -> Findings:
    """A step of 10 ms, in which this kernel takes so much."""
    device = Device(0.9, 1.0, None, None, None, [Kernel("vectorized_elementwise", 2.0, 9), Kernel(name, ms, 3)])
    return replace(on_device(device_compute=0.9), device=device, **more)


def launching(filled: float | None = 0.2, launch: float = 0.3, *, size: int | None = 32) -> Findings:
    gpus = [{"memory_used_max_bytes": None if filled is None else filled * 80e9, "memory_total_bytes": 80e9}]
    return with_loader(replace(on_device(kernel_launch=launch), environment={"gpus": gpus}), batch_size=size)


def full(failure: str = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB") -> Findings:
    return replace(launching(0.99, 0.0), failure=failure)


def growing() -> Findings:
    values = {"batch_bytes": 2e6, "now_bytes": 1e9, "then_bytes": 4e10, "limit_bytes": 2e10}
    return findings(workers=2, notices={"worker-memory-grows": values})


NOTHING = findings(loader=None, mean=None)
STORED = 100 * LEAST_READ_BYTES
RATE_MS = STORED / SLOW_READS_MB_PER_S / 1e3
CODING = WORTH_CODING - LITTLE

FIRES = {
    "shard-dataset": [
        unshared(),
        unshared(workers=1),
        unshared(workers=2),
        unshared(workers=2, reproduced=False, workers_if_shared=None),
        unshared(shared_ms=20 / WORTH_TRYING),
    ],
    "keep-workers-alive": [startup(), startup(saved=1 - 1 / WORTH_TRYING + LITTLE)],
    "raise-prefetch-factor": [
        other_setting("prefetch_factor", 2, 4),
        other_setting("prefetch_factor", 2, 4, gain=WORTH_TRYING),
    ],
    "allow-out-of-order": [other_setting("in_order", True, to=False)],
    "raise-shm-size": [
        shm(60 * MB - 1),
        shm(64 * MB, failure="unable to allocate shared memory(shm) for file"),
        small_shm(),
        small_shm(WORTH_TRYING + LITTLE),
    ],
    "raise-open-files": [files(1327), files(4096, failure="OSError: [Errno 24] Too many open files")],
    "share-by-file-system": [files_up_to(2048), files_up_to(4095), files_up_to(4096, "Too many open files")],
    "use-mixed-precision": [
        multiplying(),
        multiplying(10 * IN_FLOAT32),
        multiplying(name="sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32"),
        multiplying(name="void gemmSN_NN_kernel<float, 256, 4>"),
    ],
    "raise-batch-size": [launching(), launching(ROOM), launching(launch=WORTH_SHARE)],
    "gradient-checkpointing-or-zero3": [full(), replace(full(), environment={})],
    "shrink-worker-memory": [growing()],
    "raise-cpu-quota": [quota(), quota(throttled=THROTTLED)],
    "widen-cpu-affinity": [affinity(), affinity(no_core=CROWDED), affinity(wait=FINE_WAIT), affinity(cpu_quota=2.0)],
    "limit-worker-threads": [threads(), threads(helpers=HELPED), threads(no_core=CROWDED)],
    "match-shards-to-workers": [shards(), shards(3)],
    "cache-dataset-locally": [reading(states=("network",)), reading(states=("network", "storage"))],
    "read-sequentially": [reading(), reading(size=STORED, ms=RATE_MS * 1.001), reading(gain=WORTH_CODING)],
    "use-fast-tokenizer": [python_tokenizer(), python_tokenizer(IN_PYTHON), python_tokenizer(wait=MUCH_WAIT)],
    "batch-tokenizer-calls": [tokenizing(), tokenizing(calls=MANY_CALLS), tokenizing(call_ms=SHORT_CALL_MS)],
    "fetch-whole-batches": [indexing(), indexing(items=MANY_ITEMS), indexing(item_ms=CHEAP_ITEM_MS)],
    "pack-tensors": [handing_over(0.9), handing_over(OPENING), handing_over(0.9, saved=MUCH_WAIT)],
    "return-tensors-not-objects": [handing_over(0.1), handing_over(OPENING - LITTLE)],
    "pad-to-batch-not-max": [padding(), padding(PADDED)],
    "pin-memory": [copying(), copying(PAGEABLE), copying(share=1 - 1 / WORTH_TRYING + LITTLE)],
    "copy-non-blocking": [copying(0.0, pinned=True), copying(PAGEABLE - LITTLE, pinned=True)],
    "unpin-memory": [with_loader(findings(), pin_memory=True)],
    "checkpoint-less-often": [on_device(accelerator=False, checkpoint=0.3), on_device(checkpoint=WORTH_SHARE)],
    "remove-host-syncs": [on_device(synchronization=0.2), on_device(synchronization=WORTH_SHARE)],
    "fuse-small-kernels": [on_device(kernel_launch=0.2), on_device(kernel_launch=WORTH_SHARE)],
    "balance-ranks": [late_rank(20.0)],
}
SILENT = {
    "shard-dataset": [
        unshared(facts=facts()),
        unshared(shared_ms=20 / WORTH_TRYING + LITTLE),
        unshared(workers_if_shared=None),
        unshared(workers_if_shared=forecast(1, 2.0)),
        unshared(reproduced=False),
        unshared(taking_turns=True),
        unshared(facts=facts(shares_nothing_out=True, no_core_ratio=CROWDED)),
    ],
    "keep-workers-alive": [findings(), startup(persistent_workers=True)],
    "raise-prefetch-factor": [
        findings(wait=FINE_WAIT - LITTLE, workers=2),
        replace(other_setting("prefetch_factor", 2, 4), reproduced=False),
    ],
    "allow-out-of-order": [other_setting("in_order", False, to=False), findings()],
    "raise-shm-size": [
        shm(60 * MB),
        shm(-1),
        replace(shm(MB), loader={"num_workers": 0}),
        shm(64 * MB, "ValueError"),
        small_shm(WORTH_TRYING - LITTLE),
        small_shm(fitting=4),
        small_shm(reproduced=False),
        small_shm(taking_turns=True),
        small_shm(facts=facts(batch=batch(size=12 * MB), no_core_ratio=CROWDED)),
    ],
    "raise-open-files": [files(1328), files(-1), files_up_to(4095)],
    "share-by-file-system": [files(1327), files_up_to(4096), files_up_to(-1), files_up_to(None), files(1328)],
    "use-mixed-precision": [
        multiplying(10 * IN_FLOAT32 - 0.01),
        multiplying(name="sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"),
        multiplying(name="ampere_fp16_s16816gemm_fp16_128x64"),
        multiplying(name="elementwise_kernel<float>"),
        multiplying(accelerator=False),
        replace(multiplying(), device=None),
    ],
    "raise-batch-size": [
        launching(ROOM + LITTLE),
        launching(None),
        launching(launch=WORTH_SHARE - LITTLE),
        launching(size=None),
        replace(launching(), accelerator=False),
        replace(launching(), environment={}),
    ],
    "gradient-checkpointing-or-zero3": [full(""), full("MemoryError")],
    "shrink-worker-memory": [findings(workers=2)],
    "raise-cpu-quota": [quota(None), quota(throttled=THROTTLED - LITTLE), quota(cores=4.0, used=3.9), findings()],
    "widen-cpu-affinity": [
        affinity(4),
        affinity(no_core=CROWDED - LITTLE),
        affinity(wait=FINE_WAIT - LITTLE),
        affinity(cpu_quota=1.0),
        replace(affinity(), facts=facts(no_core_ratio=2.0, computing_ratio=COMPUTES - LITTLE)),
    ],
    "limit-worker-threads": [
        threads(helpers=HELPED - LITTLE),
        threads(no_core=CROWDED - LITTLE),
        threads(workers=0),
    ],
    "match-shards-to-workers": [shards(4), shards(None), shards(1, iterable=False)],
    "cache-dataset-locally": [
        reading(),
        reading(states=()),
        reading(states=("network",), gain=CODING),
        replace(reading(states=("network",)), reproduced=False),
    ],
    "read-sequentially": [
        reading(states=("network",)),
        reading(size=LEAST_READ_BYTES - 1),
        reading(gain=CODING),
        replace(reading(), environment={}),
    ],
    "use-fast-tokenizer": [python_tokenizer(IN_PYTHON - LITTLE), python_tokenizer(wait=MUCH_WAIT - LITTLE)],
    "batch-tokenizer-calls": [tokenizing(calls=MANY_CALLS - 1), tokenizing(gain=CODING)],
    "fetch-whole-batches": [
        indexing(items=MANY_ITEMS - 1),
        indexing(item_ms=CHEAP_ITEM_MS + LITTLE),
        indexing(iterable=True),
    ],
    "pack-tensors": [
        handing_over(OPENING - LITTLE),
        handing_over(None),
        handing_over(0.9, saved=MUCH_WAIT - LITTLE),
        handing_over(0.9, making_ms=62.0),
        handing_over(0.9, workers=0),
    ],
    "return-tensors-not-objects": [handing_over(OPENING), handing_over(0.1, making_ms=62.0)],
    "pad-to-batch-not-max": [padding(PADDED - LITTLE), padding(None), padding(same=False)],
    "pin-memory": [copying(PAGEABLE - LITTLE), copying(None), copying(pinned=True)],
    "copy-non-blocking": [
        copying(PAGEABLE, pinned=True),
        copying(0.0, share=1 - 1 / WORTH_TRYING - LITTLE, pinned=True),
        copying(0.0, pinned=True, accelerator=False),
    ],
    "unpin-memory": [findings(), copying(pinned=True)],
    "checkpoint-less-often": [on_device(checkpoint=WORTH_SHARE - LITTLE)],
    "remove-host-syncs": [on_device(synchronization=WORTH_SHARE - LITTLE), on_device(False, synchronization=0.3)],
    "fuse-small-kernels": [on_device(kernel_launch=WORTH_SHARE - LITTLE), on_device(False, kernel_launch=0.3)],
    "balance-ranks": [findings(), replace(late_rank(20.0), mean=None)],
}
REFUSES = {
    "keep-workers-alive": [
        (with_loader(findings(workers=2), persistent_workers=False), "one-epoch"),
        (startup(saved=1 - 1 / WORTH_TRYING - LITTLE), "small-share"),
    ],
    "raise-prefetch-factor": [
        (findings(workers=0), "no-workers"),
        (other_setting("prefetch_factor", 2, 4, gain=WORTH_TRYING - LITTLE), "steady"),
        (other_setting("prefetch_factor", 2, 4, taking_turns=True), "steady"),
        (other_setting("prefetch_factor", 2, 4, facts=facts(), environment={"shm_free_bytes": 79 * MB}), "no-shm"),
    ],
    "allow-out-of-order": [(other_setting("in_order", True, to=False, gain=1.0), "steady")],
    "read-sequentially": [(reading(size=STORED, ms=RATE_MS), "fast-enough")],
    "batch-tokenizer-calls": [(tokenizing(call_ms=SHORT_CALL_MS + LITTLE), "long-calls")],
    "fetch-whole-batches": [(indexing(gain=CODING), "small-gain")],
    "pin-memory": [
        (copying(accelerator=False), "no-device"),
        (copying(share=1 - 1 / WORTH_TRYING - LITTLE), "not-the-cause"),
    ],
}
BESIDE = (
    "raise-num-workers",
    "lower-num-workers",
    "stop-tuning-input",
    "decode-faster",
    "vectorize-collate",
    "speed-up-getitem",
    "speed-up-transforms",
)


def pairs(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(rule, case) for rule, cases in table.items() for case in cases]


def test_every_rule_has_its_cases_here_or_beside() -> None:
    assert set(FIRES) == set(SILENT) == set(RULES) - {*BESIDE, "pretokenize-dataset"}


@pytest.mark.parametrize(("rule", "found"), pairs(FIRES))
def test_it_fires(rule: str, found: Findings) -> None:
    advice = RULES[rule](found)
    assert isinstance(advice, Advice)
    assert advice.id == rule
    assert advice.evidence


@pytest.mark.parametrize(("rule", "found"), [*pairs(SILENT), *((rule, NOTHING) for rule in FIRES)])
def test_it_is_silent(rule: str, found: Findings) -> None:
    assert RULES[rule](found) is None


@pytest.mark.parametrize(("rule", "case"), pairs(REFUSES))
def test_it_says_why_not(rule: str, case: tuple[Findings, str]) -> None:
    refusal = RULES[rule](case[0])
    assert isinstance(refusal, Refusal)
    assert (refusal.id, refusal.reason) == (rule, case[1])
    said = why_not(rule, refusal.reason, **refusal.values)
    assert said.endswith(".")
    assert "{" not in said
    # Not the slug in place of a sentence.
    assert not said.lower().startswith(refusal.reason.replace("-", " "))


PASTED = {
    "share-by-file-system": ('set_sharing_strategy("file_system")', "about 1,328 in all", "2,048 at most"),
    "use-mixed-precision": ('torch.autocast("cuda", dtype=torch.bfloat16)', "At least 50 % of the step"),
    "raise-batch-size": ("    DataLoader(..., batch_size=64)", "30 % of the step", "filled to 20 % at most"),
    "gradient-checkpointing-or-zero3": ("gradient_checkpointing_enable()", "FullyShardedDataParallel", "at most 99 %"),
    "keep-workers-alive": ("    DataLoader(..., persistent_workers=True)", "66.7 ms per epoch"),
    "raise-prefetch-factor": ("    DataLoader(..., prefetch_factor=4)",),
    "allow-out-of-order": ("    DataLoader(..., in_order=False)",),
    "raise-shm-size": ("--shm-size=128m", "shm_size: 128mb", "medium: Memory, sizeLimit: 128Mi", "62.9 MB"),
    "raise-open-files": ("ulimit -n 4096", 'set_sharing_strategy("file_system")'),
    "shrink-worker-memory": ("np.array(values)", "40.0 GB at the end of the epoch, of 20.0 GB"),
    "raise-cpu-quota": ("docker run --cpus=2", "cpus: 2", '{limits: {cpu: "2"}}', "--cpus-per-task=2", "for 40 %"),
    "widen-cpu-affinity": ("--cpus-per-task=4", "--cpuset-cpus=0-3", "os.sched_setaffinity"),
    "limit-worker-threads": ("torch.set_num_threads(1)", "OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false", "60 %"),
    "shard-dataset": ("self.files[first::step]", "    DataLoader(..., num_workers=3)", "sample would come 3 times"),
    "match-shards-to-workers": ("    DataLoader(..., num_workers=1)", "num_shards=4"),
    "cache-dataset-locally": ("simplecache", "__getitems__"),
    "read-sequentially": ("40.0 ms and gives 2 MB: 50.0 MB/s", "np.fromfile"),
    "use-fast-tokenizer": ("use_fast=True", "takes 80 % of the data work"),
    "batch-tokenizer-calls": ("return tokenizer(texts", "32 times per batch, for 0.1 ms each"),
    "fetch-whole-batches": ("def __getitems__(self, indices)", "4,096 items per batch", "7 µs each"),
    "pack-tensors": ("torch.cat(", "takes 62.0 ms for 8.39 MB"),
    "return-tensors-not-objects": ("torch.as_tensor(", "takes 62.0 ms"),
    "pad-to-batch-not-max": ('padding="longest"', "80 % of the tokens"),
    "pin-memory": ("    DataLoader(..., pin_memory=True)", "20 % of the step"),
    "copy-non-blocking": ("non_blocking=True", "20 % of the step"),
    "unpin-memory": ("    DataLoader(..., pin_memory=False)",),
    "checkpoint-less-often": ("save_steps=1000", "30 % of the measured steps"),
    "remove-host-syncs": (".detach()", "20 % of the step"),
    "fuse-small-kernels": ("torch.compile(", "20 % of the step"),
    "balance-ranks": ("DistributedSampler(", "wait 20.0 ms per step", "20 % of the step"),
}


@pytest.mark.parametrize(("rule", "expected"), PASTED.items())
def test_what_to_do_and_what_to_paste(rule: str, expected: tuple[str, ...]) -> None:
    found = FIRES[rule][0]
    advice = RULES[rule](found)
    assert isinstance(advice, Advice)
    said = advice_text(
        rule, advice.setting, advice.from_, advice.to, advice.speedup, advice.evidence, found.loader or {}, "cuda:0"
    )
    for each in expected:
        assert each in said.replace("\N{NO-BREAK SPACE}", " ")
    assert "{%" not in said
    assert "None" not in said
    title = advice_title(rule, advice.from_, advice.to)
    assert "None" not in title
    assert title != rule.replace("-", " ").capitalize()
    # Each number has a name for people.
    assert all("_" not in metric_name(item.metric) for item in advice.evidence)


def test_the_trainers_names_are_given_where_the_trainer_made_the_loader() -> None:
    for rule, name in (("keep-workers-alive", "persistent_workers"), ("raise-prefetch-factor", "prefetch_factor")):
        found = with_loader(FIRES[rule][0], made_by="transformers.trainer")
        advice = RULES[rule](found)
        assert isinstance(advice, Advice)
        said = advice_text(rule, advice.setting, advice.from_, advice.to, None, advice.evidence, found.loader or {})
        assert f"    TrainingArguments(..., dataloader_{name}=" in said


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_is_made_anew_is_to_be_made_once(persistent: bool) -> None:
    found = anew(startup(persistent_workers=persistent))
    advice = RULES["keep-workers-alive"](found)
    assert isinstance(advice, Advice)
    # No setting does it.
    assert (advice.setting, advice.to) == (None, None)
    how = advice_text(advice.id, None, None, None, None, advice.evidence, found.loader or {})
    assert "Make it once" in how
    assert "    loader = DataLoader(..., persistent_workers=True)\n    for epoch" in how


@pytest.mark.parametrize("made_anew", [False, True])
def test_persistent_workers_are_pasted_where_there_is_something_to_keep(made_anew: bool) -> None:
    how = advice_text("raise-num-workers", "num_workers", 0, 2, (1.4, 1.5, 1.6), (), {"made_anew": made_anew})
    assert ("    DataLoader(..., num_workers=2, persistent_workers=True)" in how) is not made_anew
    assert ("Make the loader once" in how) is made_anew


# ---- how much --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "to"),
    [
        (shm(0), 256),  # 60 MB are needed, twice that and what others hold
        (shm(64 * MB, failure="No space left on device"), 256),
        (quota(cores=1.0, throttled=0.4, used=0.8), 2),
        (quota(cores=1.5, throttled=0.6, used=1.4), 4),
        (quota(cores=2.0, throttled=0.9, used=2.0), 4),
        (files(100), 4096),
    ],
)
def test_the_suggested_value_is_what_was_needed(found: Findings, to: int) -> None:
    advice, _ = advise(found)
    assert to in [each.to for each in advice]


def test_checkpoints_are_forecast_to_be_a_tenth_as_often() -> None:
    found = candidates(
        on_device(accelerator=False, checkpoint=0.2, python=0.2), Bottleneck.HOST_OVERHEAD, Component.PYTHON, 0.4
    )
    advice = RULES["checkpoint-less-often"](found)
    assert isinstance(advice, Advice)
    assert advice.speedup == pytest.approx((1 / 0.82,) * 3)
    unsure = RULES["checkpoint-less-often"](replace(found, reproduced=False))
    assert isinstance(unsure, Advice)
    assert unsure.speedup is None


def test_a_hand_over_that_the_simulator_does_not_reproduce_has_no_forecast() -> None:
    found = handing_over(0.9, saved=0.5)
    for reproduced, expected in ((True, pytest.approx((2.0, 2.0, 2.0))), (False, None)):
        advice = RULES["pack-tensors"](replace(found, reproduced=reproduced))
        assert isinstance(advice, Advice)
        assert advice.speedup == expected


# ---- more workers ----------------------------------------------------------------------------------------------------


def more_workers(**values: Any) -> Advice | Refusal | None:
    found = findings(workers=2, knee=forecast(6, 2.0, from_=2), facts=facts(**values))
    return RULES["raise-num-workers"](found)


def test_where_data_work_waits_for_cores_more_workers_are_refused() -> None:
    refused = more_workers(no_core_ratio=CROWDED)
    assert isinstance(refused, Refusal)
    assert refused.reason == "no-cores"
    assert isinstance(more_workers(no_core_ratio=CROWDED - LITTLE), Advice)
    # Of work that mostly waits for something else that little time on a core waits for one says nothing.
    assert isinstance(more_workers(no_core_ratio=CROWDED, computing_ratio=COMPUTES - LITTLE), Advice)


def test_with_one_core_more_workers_are_for_work_that_waits() -> None:
    for cores, computing, advised in ((1.0, COMPUTES, False), (1.0, COMPUTES - LITTLE, True), (1.1, 1.0, True)):
        found = findings(knee=forecast(2, 2.0), facts=facts(computing_ratio=computing), cores=cores)
        assert isinstance(RULES["raise-num-workers"](found), Advice) is advised


def test_that_more_may_wait_at_once_than_was_seen_is_said() -> None:
    for computing, said in ((COMPUTES, False), (COMPUTES - LITTLE, True)):
        advice = more_workers(computing_ratio=computing)
        assert isinstance(advice, Advice)
        evidence = {each.metric: each.value for each in advice.evidence}
        assert ("blocked_ratio" in evidence) is said
        how = advice_text("raise-num-workers", "num_workers", 2, 6, advice.speedup, advice.evidence, {})
        assert ("was seen to serve 2 at once and may not serve 6" in how) is said
        assert ("--set num_workers=6" in how) is said


def test_workers_that_would_repeat_samples_are_refused_and_one_worker_is_not() -> None:
    refused = RULES["raise-num-workers"](unshared(workers=1))
    assert isinstance(refused, Refusal)
    assert "give every sample again" in why_not("raise-num-workers", refused.reason, **refused.values)
    advice = RULES["raise-num-workers"](unshared())
    assert isinstance(advice, Advice)
    assert advice.to == 1


def test_how_often_a_sample_comes_is_said_where_workers_repeat_it() -> None:
    advice = RULES["shard-dataset"](unshared(workers=2))
    assert isinstance(advice, Advice)
    how = advice_text("shard-dataset", None, None, None, None, advice.evidence, {})
    assert "every sample comes 2 times" in how
    assert "num_workers=" not in how


# ---- in which order --------------------------------------------------------------------------------------------------


def test_what_gains_stands_before_what_is_not_forecast_and_that_before_what_gains_nothing() -> None:
    found = replace(
        with_loader(findings(wait=0.02, workers=4, busy=0.2, knee=forecast(2, 1.0, from_=4)), pin_memory=True),
        without={Component.DECODE: forecast(0.0, 1.3)},
    )
    advice, _ = advise(found)
    assert [each.id for each in advice] == ["decode-faster", "unpin-memory", "lower-num-workers", "stop-tuning-input"]


def test_more_shared_memory_is_for_workers_that_gain_and_says_how_many() -> None:
    found = small_shm(gain=1.5)
    advice = RULES["raise-shm-size"](found)
    assert isinstance(advice, Advice)
    # Four workers, each with three batches of 12 MB, and twice that since batches differ.
    assert (advice.from_, advice.to) == (64, 512)
    assert advice.speedup == pytest.approx((1.48, 1.5, 1.52))
    said = advice_text(
        advice.id, advice.setting, advice.from_, advice.to, advice.speedup, advice.evidence, found.loader or {}
    )
    assert "with 4 workers, which would be faster" in said
    assert "set num_workers=4" in said
    refused = RULES["raise-num-workers"](found)
    assert isinstance(refused, Refusal)
    assert "With 4 workers a step would be shorter, but /dev/shm does not hold" in why_not(
        refused.id, refused.reason, **refused.values
    )


def test_where_shared_memory_was_full_before_any_batch_no_size_is_said() -> None:
    found = replace(shm(64 * MB, failure="unable to allocate shared memory(shm) for file"), facts=facts(batch=None))
    advice = RULES["raise-shm-size"](found)
    assert isinstance(advice, Advice)
    said = advice_text(advice.id, advice.setting, advice.from_, advice.to, None, advice.evidence, found.loader or {})
    assert "before the first batch" in said
    assert "0 B" not in said
