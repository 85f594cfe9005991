"""Reads and checks the labels of the workloads: what a right answer is, by construction and by the measured fix."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlprof.model.kinds import Bottleneck, Component

HERE = Path(__file__).resolve().parent
STATES = frozenset({"cpu", "storage", "network", "lock", "sleep"})
VARIANTS = ("slow", "fixed", "control")
ADVICE = frozenset(
    """
    raise-num-workers lower-num-workers raise-prefetch-factor keep-workers-alive pin-memory copy-non-blocking
    allow-out-of-order pretokenize-dataset use-fast-tokenizer batch-tokenizer-calls vectorize-collate
    pad-to-batch-not-max decode-faster fetch-whole-batches pack-tensors return-tensors-not-objects
    limit-worker-threads raise-cpu-quota widen-cpu-affinity raise-shm-size share-by-file-system raise-open-files
    read-sequentially shard-dataset cache-dataset-locally match-shards-to-workers shrink-worker-memory
    remove-host-syncs checkpoint-less-often fuse-small-kernels use-mixed-precision raise-batch-size
    gradient-checkpointing-or-zero3 balance-ranks stop-tuning-input unpin-memory move-transforms-to-device
    speed-up-getitem speed-up-transforms
    """.split()  # noqa: SIM905 - forty lines otherwise
)
"""The contract's advice ids, and those that workloads have shown to be missing there."""

_CASE_KEYS = frozenset({"cause", "story", "device", "needs", "launch", "options", "fix_gain", *VARIANTS})
_VARIANT_KEYS = frozenset(
    {"accept", "accept_busy", "must_not", "advice", "line", "state", "launch", "options", "status"}
)


class LabelError(ValueError):
    """A label that says something the contract has no word for, or leaves out what it must say."""


@dataclass(frozen=True)
class Variant:
    """One script of a case, and what a right answer on it is."""

    case: str
    name: str
    script: Path
    cause: int
    needs: tuple[str, ...]
    launch: tuple[str, ...]
    options: tuple[str, ...]
    accept: tuple[str, ...]
    accept_busy: tuple[str, ...]
    must_not: tuple[str, ...]
    advice: tuple[str, ...]
    line: str | None
    states: tuple[str, ...]
    """States that the planted line may be listed in; empty where none was planted."""
    status: int | None
    """Exit status that the run must have; None where any will do."""

    @property
    def title(self) -> str:
        """Case and script, as tables name it."""
        return f"{self.case}/{self.name}"

    @property
    def line_number(self) -> int | None:
        """Where the planted line stands, 1-based; None where none was planted."""
        if self.line is None:
            return None
        lines = self.script.read_text().splitlines()
        found = [number for number, text in enumerate(lines, 1) if self.line in text]
        if len(found) != 1:
            raise LabelError(f"{self.title}: {self.line!r} stands on {len(found)} lines of {self.script.name}, not one")
        return found[0]


def cases() -> list[str]:
    """Names of the folders that hold a label, sorted."""
    return sorted(path.parent.name for path in HERE.glob("*/label.toml"))


def label(case: str) -> dict[str, Any]:
    """The label as it stands in the file, with its keys checked.

    Raises:
        LabelError: A key that is unknown or missing.
    """
    with (HERE / case / "label.toml").open("rb") as file:
        found = tomllib.load(file)
    if unknown := set(found) - _CASE_KEYS:
        raise LabelError(f"{case}: no such key: {', '.join(sorted(unknown))}")
    if not isinstance(found.get("cause"), int) or not found.get("story"):
        raise LabelError(f"{case}: cause (a row of causes.md, or 0 for a control) and story are needed")
    if {"slow", "fixed"} <= found.keys():
        gain = found.get("fix_gain", {})
        if not (isinstance(gain.get("ratio"), int | float) and gain.get("how")):
            raise LabelError(f"{case}: fix_gain needs the measured ratio and how it was measured")
    elif "control" not in found or {"slow", "fixed"} & found.keys():
        raise LabelError(f"{case}: either slow and fixed, or control")
    return found


def variants(case: str) -> list[Variant]:
    """The scripts of a case with their labels.

    Raises:
        LabelError: A label that is not well formed.
    """
    found = label(case)
    return [_variant(case, found, name) for name in VARIANTS if name in found]


def _variant(case: str, found: dict[str, Any], name: str) -> Variant:
    own = found[name]
    title = f"{case}/{name}"
    if unknown := set(own) - _VARIANT_KEYS:
        raise LabelError(f"{title}: no such key: {', '.join(sorted(unknown))}")
    if not own.get("accept"):
        raise LabelError(f"{title}: accept is needed")
    for answer in (*own["accept"], *own.get("accept_busy", ())):
        _check_answer(title, answer)
    for answer in own.get("must_not", ()):
        if answer not in ADVICE:
            _check_answer(title, answer)
    if unknown := set(own.get("advice", ())) - ADVICE:
        raise LabelError(f"{title}: no such advice: {', '.join(sorted(unknown))}")
    states = own.get("state", [])
    states = [states] if isinstance(states, str) else states
    if ("line" in own) != bool(states) or not set(states) <= STATES:
        raise LabelError(f"{title}: line and state belong together; state is one of {', '.join(sorted(STATES))}")
    status = own.get("status", 0)
    return Variant(
        case=case,
        name=name,
        script=HERE / case / f"{name}.py",
        cause=found["cause"],
        needs=tuple(found.get("needs", ())),
        launch=tuple(own.get("launch", found.get("launch", ()))),
        options=(*found.get("options", ()), *own.get("options", ())),
        accept=tuple(own["accept"]),
        accept_busy=tuple(own.get("accept_busy", ())),
        must_not=tuple(own.get("must_not", ())),
        advice=tuple(own.get("advice", ())),
        line=own.get("line"),
        states=tuple(states),
        status=None if status == "any" else status,
    )


def _check_answer(title: str, answer: str) -> None:
    bottleneck, slash, component = answer.partition("/")
    if bottleneck not in set(Bottleneck):
        raise LabelError(f"{title}: no such bottleneck or advice: {answer}")
    if slash and component != "-" and component not in set(Component):
        raise LabelError(f"{title}: no such component: {answer}")


def matches(answer: str, bottleneck: str, component: str | None) -> bool:
    """Whether a verdict is this answer. ``B`` is B with any component or none, ``B/-`` is B without one."""
    wanted, slash, part = answer.partition("/")
    return wanted == bottleneck and (not slash or part == (component or "-"))
