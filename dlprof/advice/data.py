"""Rules about the code that makes batches: the dataset, the tokenizer, reading, and what a batch consists of."""

from __future__ import annotations

from dlprof.advice.common import WORTH_CODING, Answer, Rule, candidate, speedup, wait_evidence, wait_share
from dlprof.advice.common import workers_in_force as _workers
from dlprof.model.advice import Advice, Findings, Refusal
from dlprof.model.kinds import Bottleneck, Component
from dlprof.model.report import Evidence

MUCH_WAIT = 1 - 1 / WORTH_CODING
"""Share of input wait below which no change of the data work's code can be worth it."""
PADDED = 0.5
"""Part of the tokens that fill up, from which padding to the longest of the batch is advised."""
IN_PYTHON = 0.5
"""Part of the data work that a tokenizer in Python takes, from which another one is advised."""
MANY_ITEMS = 64
CHEAP_ITEM_MS = 0.05
"""An item that costs less is mostly the call for it. *Measured:* torch's TensorDataset takes 0.007 ms a row."""
MANY_CALLS = 8
SHORT_CALL_MS = 0.3
"""A shorter call of a tokenizer is largely the way into it and back."""
SLOW_READS_MB_PER_S = 100.0
"""A disk that is read from front to back mostly gives more: a rule of thumb, since reads are not counted."""
LEAST_READ_BYTES = 65_536
OPENING = 0.5
"""Part of the unpickling that opens tensors' shared memory, from which their number is what costs."""
_HAND_OVER = (Component.PICKLE, Component.TRANSPORT, Component.UNPICKLE)


def pad_to_batch_not_max(findings: Findings) -> Answer:
    """All batches are equally long, and most of their tokens fill up."""
    if findings.pad_ratio is None or findings.pad_ratio < PADDED or not findings.facts.same_length:
        return None
    evidence = Evidence("pad_ratio", round(findings.pad_ratio, 3), "ratio")
    return Advice("pad-to-batch-not-max", None, None, None, None, (evidence,))


def use_fast_tokenizer(findings: Findings) -> Answer:
    """A tokenizer written in Python takes most of the data work."""
    ratio = findings.facts.python_tokenizer_ratio
    if ratio < IN_PYTHON or wait_share(findings) < MUCH_WAIT:
        return None
    evidence = (*wait_evidence(findings), Evidence("python_tokenizer_ratio", round(ratio, 3), "ratio"))
    return Advice("use-fast-tokenizer", None, None, None, None, evidence)


def batch_tokenizer_calls(findings: Findings) -> Answer:
    """The tokenizer is called many times a batch, and each call is short."""
    calls, spent = findings.facts.tokenizer_calls_per_batch, findings.per_batch_ms.get(Component.TOKENIZER, 0.0)
    forecast = findings.without.get(Component.TOKENIZER)
    if calls < MANY_CALLS or forecast is None or not findings.reproduced or forecast.speedup[1] < WORTH_CODING:
        return None
    if spent / calls > SHORT_CALL_MS:
        return Refusal("batch-tokenizer-calls", "long-calls", {"call_ms": spent / calls})
    evidence = (
        *wait_evidence(findings),
        Evidence("tokenizer_calls_per_batch", round(calls, 1), "count"),
        Evidence("tokenizer_ms_per_call", round(spent / calls, 4), "ms"),
    )
    return Advice("batch-tokenizer-calls", None, None, None, None, evidence)


def fetch_whole_batches(findings: Findings) -> Answer:
    """Many items a batch that are fetched one by one, each at next to no cost."""
    items = findings.facts.items_per_batch
    forecast = findings.without.get(Component.DATASET_GETITEM)
    spent = findings.per_batch_ms.get(Component.DATASET_GETITEM, 0.0)
    if findings.loader is None or findings.loader.get("iterable") or forecast is None or not findings.reproduced:
        return None
    if items < MANY_ITEMS or spent / items > CHEAP_ITEM_MS:
        return None
    if forecast.speedup[1] < WORTH_CODING or forecast.speedup[0] <= 1:
        return Refusal("fetch-whole-batches", "small-gain", {"gain": forecast.speedup})
    evidence = (
        *wait_evidence(findings),
        Evidence("items_per_batch", round(items), "count"),
        Evidence("us_per_item", round(spent / items * 1e3, 1), "µs"),
    )
    return Advice("fetch-whole-batches", None, None, None, forecast.speedup, evidence)


def read_sequentially(findings: Findings) -> Answer:
    """Reads from a disk that give less than it can: small ones, from all over."""
    waited, per_step = findings.per_batch_ms.get(Component.STORAGE_IO, 0.0), _disk_bytes(findings)
    if not _reads_bound(findings) or _network_share(findings) >= 0.5 or per_step < LEAST_READ_BYTES or not waited:
        return None
    rate = per_step / waited / 1e3
    if rate >= SLOW_READS_MB_PER_S:
        return Refusal("read-sequentially", "fast-enough", {"rate": round(rate)})
    evidence = (*_read_evidence(findings), Evidence("read_rate", round(rate, 1), "MB/s"))
    return Advice("read-sequentially", None, None, None, None, evidence)


def cache_dataset_locally(findings: Findings) -> Answer:
    """Reads wait for the network."""
    if not _reads_bound(findings) or _network_share(findings) < 0.5:
        return None
    forecast = findings.without[Component.STORAGE_IO]
    return Advice("cache-dataset-locally", None, None, None, forecast.speedup, tuple(_read_evidence(findings)))


def _reads_bound(findings: Findings) -> bool:
    forecast = findings.without.get(Component.STORAGE_IO)
    return forecast is not None and findings.reproduced and forecast.speedup[1] >= WORTH_CODING


def _disk_bytes(findings: Findings) -> float:
    load = findings.environment.get("during_the_steps") or {}
    return float(load.get("read_from_disk_per_step_bytes") or 0.0)


def _network_share(findings: Findings) -> float:
    """Part of the reads' waiting that is for the network, by the lines at which it was seen; 0 where none was."""
    waits = [line for line in findings.lines if line.state in ("network", "storage")]
    whole = sum(line.share for line in waits)
    return sum(line.share for line in waits if line.state == "network") / whole if whole else 0.0


def _read_evidence(findings: Findings) -> list[Evidence]:
    evidence = wait_evidence(findings)
    waited = findings.per_batch_ms.get(Component.STORAGE_IO)
    if waited is not None:
        evidence.append(Evidence("reading_per_batch", round(waited, 2), "ms"))
    if _disk_bytes(findings):
        evidence.append(Evidence("read_from_disk_per_step", round(_disk_bytes(findings)), "bytes"))
    return evidence


def _hand_over(id_: str, *, opening: bool) -> Rule:
    """The rule that handing a batch over costs more than making it, for what it consists of.

    Args:
        id_: The advice.
        opening: Whether it is about the tensors, each of which is opened for itself, or about other objects.
    """

    def rule(findings: Findings) -> Answer:
        found = candidate(findings, Bottleneck.LOADER_OVERHEAD, *_HAND_OVER)
        if not _workers(findings) or found is None or found.saved.mid < MUCH_WAIT:
            return None
        spent = {each: findings.per_batch_ms.get(each, 0.0) for each in _HAND_OVER}
        handed = sum(spent.values())
        # A worker that computes answers late: then the hand-over waits, and is not the cause.
        if handed <= sum(findings.per_batch_ms.values()) - handed:
            return None
        ratio = findings.facts.rebuilding_ratio
        if ratio is None or (ratio >= OPENING) is not opening:
            return None
        evidence = [
            *wait_evidence(findings),
            Evidence("hand_over_per_batch", round(handed, 2), "ms"),
            Evidence("rebuilding_ratio", round(ratio, 3), "ratio"),
        ]
        if findings.facts.batch is not None:
            evidence.append(Evidence("batch_size", findings.facts.batch.size_bytes, "bytes"))
        gain = speedup(found.saved) if findings.reproduced else None
        return Advice(id_, None, None, None, gain, tuple(evidence))

    return rule


pack_tensors = _hand_over("pack-tensors", opening=True)
return_tensors_not_objects = _hand_over("return-tensors-not-objects", opening=False)
