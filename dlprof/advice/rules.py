"""What to change, what it gains, and why the usual changes are not advised where they would not help.

Every rule looks at the findings and answers with advice, with a refusal that is worth telling, or with nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dlprof.advice import data, loader, machine, step
from dlprof.advice.common import (
    COMPUTES,
    FINE_WAIT,
    SAME,
    WORTH_CODING,
    WORTH_TRYING,
    Answer,
    Rule,
    crowded,
    wait_evidence,
    wait_share,
    wanted_beyond_shm,
    workers_in_force,
)
from dlprof.model.advice import Advice, Findings, Refusal
from dlprof.model.kinds import Component, Confidence
from dlprof.model.pipeline import BOTTLENECK_OF
from dlprof.model.report import Evidence, HotLine

_MOST_OF_THE_WAIT = 0.5
"""Part of the wait from which a component is what is waited for."""
_COMPREHENSION = re.compile(r"(\.<locals>\.<\w+>)+$")


def advise(findings: Findings) -> tuple[list[Advice], list[Refusal]]:
    """Apply every rule.

    Args:
        findings: What was measured and concluded.

    Returns:
        Advice that gains by the forecast first, the largest middle gain before the others; then that without a
        forecast, then that which is forecast to gain nothing. Refusals in the order of the rules.
    """
    answers = [rule(findings) for rule in RULES.values()]
    advice = [answer for answer in answers if isinstance(answer, Advice)]
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    advice.sort(key=_rank)
    return advice, refusals


def _rank(advice: Advice) -> tuple[int, float]:
    if advice.id == "stop-tuning-input":
        return 3, 0.0
    if advice.speedup is None:
        return 1, 0.0
    return (0 if advice.speedup[1] >= WORTH_TRYING else 2), -advice.speedup[1]


def _raise_num_workers(findings: Findings) -> Answer:
    knee = findings.suggested_workers
    if findings.loader is None or knee is None:
        return None
    if not findings.reproduced:
        return Refusal("raise-num-workers", "not-reproduced")
    if findings.taking_turns:
        return Refusal("raise-num-workers", "taking-turns")
    workers = workers_in_force(findings)
    computes = findings.facts.computing_ratio >= COMPUTES
    if crowded(findings) or (computes and findings.cores <= 1):
        # Where the making of batches waits for cores, the simulated cores are not those that there are.
        return Refusal("raise-num-workers", "no-cores", {"cores": int(findings.cores)})
    # Whatever is waited for may not serve more at once than was seen: a disk, a server, a limit on requests.
    untested = not computes and knee.to > max(workers, 1)
    # Also the cautious end of the forecast has to gain; where it is that of a source that serves no more, that is said.
    if knee.to > workers and knee.speedup[1] >= WORTH_TRYING and (untested or knee.speedup[0] >= SAME):
        evidence = [*wait_evidence(findings), Evidence("cores", findings.cores, "count")]
        if findings.worker_busy_ratio is not None:
            evidence.append(Evidence("worker_busy_ratio", round(findings.worker_busy_ratio, 3), "ratio"))
        if untested:
            evidence.append(Evidence("blocked_ratio", round(1 - findings.facts.computing_ratio, 3), "ratio"))
            evidence.append(Evidence("waiting_at_once", max(workers, 1), "count"))
        return Advice("raise-num-workers", "num_workers", workers, knee.to, knee.speedup, tuple(evidence))
    if wait_share(findings) < FINE_WAIT:
        return Refusal("raise-num-workers", "no-wait", {"share": wait_share(findings)})
    if computes and workers >= findings.cores:
        return Refusal("raise-num-workers", "no-cores", {"cores": int(findings.cores)})
    if findings.facts.shares_nothing_out:
        return Refusal("raise-num-workers", "repeats")
    more = wanted_beyond_shm(findings)
    if more is not None:
        return Refusal("raise-num-workers", "shm", {"wanted": more.to})
    best = max((forecast.speedup for forecast in findings.worker_forecasts), key=lambda each: each[1])
    return Refusal("raise-num-workers", "small-gain", {"gain": best})


def _shard_dataset(findings: Findings) -> Answer:
    """Each worker gives all samples of an iterable dataset: it has them repeated, or would have to with more workers.

    What is gained is not forecast, since a worker that passes over the others' samples may have to make them first.
    """
    if not findings.facts.shares_nothing_out:
        return None
    workers = workers_in_force(findings)
    if workers > 1:
        return Advice("shard-dataset", None, None, None, None, (Evidence("times_repeated", workers, "count"),))
    shared, alone = findings.workers_if_shared, findings.suggested_workers
    if shared is None or alone is None or not findings.reproduced or findings.taking_turns or crowded(findings):
        return None
    if shared.to <= 1 or shared.step_ms[1] * WORTH_TRYING > alone.step_ms[1]:
        return None
    return Advice("shard-dataset", None, workers, shared.to, None, tuple(wait_evidence(findings)))


def _lower_num_workers(findings: Findings) -> Answer:
    knee = findings.suggested_workers
    workers = workers_in_force(findings)
    if findings.loader is None or knee is None or not workers or not findings.reproduced:
        return None
    # Without any worker nothing is saved but the step time itself; with fewer, memory and cores are.
    least = WORTH_TRYING if knee.to == 0 else 1 / SAME
    # Nobody lowers a setting on a forecast that may be wrong.
    sure = knee.confidence is not Confidence.LOW
    if knee.to < workers and sure and knee.speedup[1] >= least:
        evidence = [*wait_evidence(findings), Evidence("cores", findings.cores, "count")]
        return Advice("lower-num-workers", "num_workers", workers, knee.to, knee.speedup, tuple(evidence))
    if knee.to < workers and knee.speedup[1] >= 1 / SAME:
        # Fewer would do as well, and are not worth a change: neither advised nor said to be needed.
        return None
    busy = findings.worker_busy_ratio
    return Refusal("lower-num-workers", "needed", {"share": busy}) if busy is not None else None


def _stop_tuning_input(findings: Findings) -> Answer:
    if findings.loader is None or findings.mean is None or wait_share(findings) >= FINE_WAIT:
        return None
    if findings.judgement.bottleneck in BOTTLENECK_OF.values():
        # Data work that takes the cores from the step is not waited for.
        return None
    evidence = wait_evidence(findings)
    saved = findings.judgement.all_input_saved
    if saved is not None and saved.mid < 1:
        evidence.append(Evidence("speedup_with_instant_data", round(1 / (1 - saved.mid), 3), "x"))
    # The step as it is, so no speedup; what is left to gain is the evidence.
    return Advice("stop-tuning-input", None, None, None, None, tuple(evidence))


def _remove(id_: str, component: Component, missing: str | None) -> Rule:
    """The rule that a component of the data work is worth getting rid of, or making much cheaper."""

    def rule(findings: Findings) -> Answer:
        if not findings.reproduced:
            return None
        forecast = findings.without.get(component)
        if forecast is None:
            return Refusal(id_, missing) if missing and findings.loader is not None else None
        if forecast.speedup[1] < WORTH_CODING or forecast.speedup[0] <= 1:
            return Refusal(id_, "small-gain", {"gain": forecast.speedup})
        waited, spent = findings.waits_ms.get(component, 0.0), findings.per_batch_ms.get(component, 0.0)
        if waited >= _MOST_OF_THE_WAIT * sum(findings.waits_ms.values()):
            cost = Evidence(f"wait_for_{component}", round(waited, 3), "ms")
        else:
            # It takes the cores from something else, which is what is waited for.
            cost = Evidence(f"{component}_ms_per_batch", round(spent, 3), "ms")
        return Advice(id_, None, None, None, forecast.speedup, (*wait_evidence(findings), cost))

    return rule


def _own_code(id_: str, component: Component) -> Rule:
    """The rule that code of the user's own is worth making cheaper; nobody asks why it is not advised."""
    remove = _remove(id_, component, None)

    def rule(findings: Findings) -> Answer:
        answer = remove(findings)
        # Where each item costs next to nothing, it is the calls that cost.
        calls = component is Component.DATASET_GETITEM and isinstance(data.fetch_whole_batches(findings), Advice)
        seen = any(line.state == "cpu" for line in findings.lines)
        return answer if isinstance(answer, Advice) and seen and not calls else None

    return rule


def _vectorize_collate(findings: Findings) -> Answer:
    answer = _remove("vectorize-collate", Component.COLLATE_FN, None)(findings)
    collate_fn = str(findings.loader.get("collate_fn")) if findings.loader else ""
    if isinstance(answer, Advice) and collate_fn.startswith("torch.utils.data."):
        return Refusal("vectorize-collate", "torchs-own")
    if not isinstance(answer, Advice):
        return answer
    if findings.facts.python_tokenizer_ratio >= data.IN_PYTHON:
        # Looks tell such a tokenizer from the collate_fn that calls it. What they leave to collate_fn is little, and
        # mostly their error.
        return Refusal("vectorize-collate", "after-tokenizer", {"share": findings.facts.python_tokenizer_ratio})
    return _unless_elsewhere(answer, collate_fn, findings)


def _unless_elsewhere(advice: Advice, collate_fn: str, findings: Findings) -> Answer:
    """Refuse where most of the time is spent in functions that collate_fn calls, or nothing tells that it is not."""
    lines = findings.lines
    if not lines:
        return Refusal("vectorize-collate", "lines-unknown", {"gain": advice.speedup})
    # Of a partial function the function is not known.
    others = [] if collate_fn.startswith("functools.") else [it for it in lines if not _is_of(it.function, collate_fn)]
    # Where another component costs more, its lines are among them.
    mostly = findings.judgement.component is Component.COLLATE_FN and _share(others) * 2 > _share(lines)
    if mostly or len(others) == len(lines):
        return Refusal("vectorize-collate", "elsewhere", {"function": others[0].function, "line": others[0].where})
    return advice


def _share(lines: Iterable[HotLine]) -> float:
    return sum(line.share for line in lines)


def _is_of(function: str, collate_fn: str) -> bool:
    # A comprehension is part of the function around it; a collate_fn that is an object is known by its type.
    function = _COMPREHENSION.sub("", function)
    names = (function, function.removesuffix(".__call__"))
    return any(collate_fn == name or collate_fn.endswith(f".{name}") for name in names)


RULES: dict[str, Rule] = {
    "raise-num-workers": _raise_num_workers,
    "lower-num-workers": _lower_num_workers,
    "shard-dataset": _shard_dataset,
    "match-shards-to-workers": machine.match_shards_to_workers,
    "keep-workers-alive": loader.keep_workers_alive,
    "raise-prefetch-factor": loader.raise_prefetch_factor,
    "allow-out-of-order": loader.allow_out_of_order,
    "raise-shm-size": machine.raise_shm_size,
    "raise-open-files": machine.raise_open_files,
    "share-by-file-system": machine.share_by_file_system,
    "shrink-worker-memory": machine.shrink_worker_memory,
    "raise-cpu-quota": machine.raise_cpu_quota,
    "widen-cpu-affinity": machine.widen_cpu_affinity,
    "limit-worker-threads": machine.limit_worker_threads,
    "cache-dataset-locally": data.cache_dataset_locally,
    "read-sequentially": data.read_sequentially,
    "pretokenize-dataset": _remove("pretokenize-dataset", Component.TOKENIZER, "no-tokenizer"),
    "use-fast-tokenizer": data.use_fast_tokenizer,
    "batch-tokenizer-calls": data.batch_tokenizer_calls,
    "decode-faster": _remove("decode-faster", Component.DECODE, "no-decoder"),
    "fetch-whole-batches": data.fetch_whole_batches,
    "vectorize-collate": _vectorize_collate,
    "speed-up-getitem": _own_code("speed-up-getitem", Component.DATASET_GETITEM),
    "speed-up-transforms": _own_code("speed-up-transforms", Component.TRANSFORM),
    "pack-tensors": data.pack_tensors,
    "return-tensors-not-objects": data.return_tensors_not_objects,
    "pad-to-batch-not-max": data.pad_to_batch_not_max,
    "pin-memory": loader.pin_memory,
    "copy-non-blocking": loader.copy_non_blocking,
    "unpin-memory": loader.unpin_memory,
    "checkpoint-less-often": step.checkpoint_less_often,
    "remove-host-syncs": step.remove_host_syncs,
    "fuse-small-kernels": step.fuse_small_kernels,
    "gradient-checkpointing-or-zero3": step.gradient_checkpointing_or_zero3,
    "balance-ranks": step.balance_ranks,
    "use-mixed-precision": step.use_mixed_precision,
    "raise-batch-size": step.raise_batch_size,
    "stop-tuning-input": _stop_tuning_input,
}
"""By what they advise. Of advice without a forecast the earlier stands first."""
