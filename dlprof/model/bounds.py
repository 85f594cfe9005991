"""``--fail-if``: bounds on what a report says, for machines that have to decide whether a run is good enough."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from dlprof.model.kinds import Bottleneck, Cause
from dlprof.model.report import Report

VERDICT = "verdict"
STEP_MS = "step_ms"
SPEEDUP_AVAILABLE = "speedup_available"
NAMES = (*(cause.value for cause in Cause), STEP_MS, SPEEDUP_AVAILABLE, VERDICT)
"""What can be bounded."""

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_EXPRESSION = re.compile(r"\s*(\w+)\s*(>=|<=|==|>|<)\s*(\S+?)\s*")
_NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+")


@dataclass(frozen=True, slots=True)
class Bound:
    """One expression: crossed where it holds.

    Attributes:
        text: As it was typed.
        name: One of ``NAMES``.
        operation: One of ``> >= < <= ==``; for ``verdict`` only ``==``.
        number: What is compared with; None for ``verdict``.
        percent: Whether ``number`` is a share of the step in percent.
        bottleneck: What the verdict is compared with; None for the others.
    """

    text: str
    name: str
    operation: str
    number: float | None = None
    percent: bool = False
    bottleneck: Bottleneck | None = None

    def crossed(self, report: Report) -> str | None:
        """What was found where the bound is crossed, else None.

        Args:
            report: With a step or a cause that was not measured no bound on it is crossed.
        """
        if self.name == VERDICT:
            return self.found(report) if report.verdict.bottleneck is self.bottleneck else None
        value = self._value(report)
        if value is None or self.number is None or not _OPERATORS[self.operation](value, self.number):
            return None
        return self.found(report)

    def found(self, report: Report) -> str | None:
        """What the report says of what is bounded, with its unit; None where it was not measured."""
        if self.name == VERDICT:
            return str(report.verdict.bottleneck)
        value = self._value(report)
        unit = {STEP_MS: " ms", SPEEDUP_AVAILABLE: "x"}.get(self.name, "%" if self.percent else " ms")
        return None if value is None else f"{value:.4g}{unit}"

    def _value(self, report: Report) -> float | None:
        if self.name == STEP_MS:
            return report.step.mean_ms
        if self.name == SPEEDUP_AVAILABLE:
            return max((row.speedup[1] for row in report.advice if row.speedup), default=1.0)
        row = next((row for row in report.budget if row.cause == self.name), None)
        if row is None:
            return None
        return 100 * row.share if self.percent else row.ms_per_step


def parse_bound(text: str) -> Bound:
    """Read ``NAME OP NUMBER[%]`` or ``verdict==BOTTLENECK``.

    Args:
        text: As it was typed; spaces around the parts do not matter.

    Raises:
        ValueError: It is neither; the message says what is accepted.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form NAME OP NUMBER, as in 'input_wait>20%'")
    name, operation, value = match.groups()
    if name not in NAMES:
        raise ValueError(f"there is no {name!r} to bound, only {', '.join(NAMES)}")
    if name == VERDICT:
        if operation != "==" or value not in set(Bottleneck):
            raise ValueError(f"{text!r}: a verdict is bounded as in 'verdict==storage_io', by {', '.join(Bottleneck)}")
        return Bound(text, name, operation, bottleneck=Bottleneck(value))
    percent = value.endswith("%")
    if not _NUMBER.fullmatch(value.removesuffix("%")):
        raise ValueError(f"{text!r}: {value} is not a number")
    if percent and name in (STEP_MS, SPEEDUP_AVAILABLE):
        raise ValueError(f"{text!r}: {name} is no share of the step and takes no %")
    return Bound(text, name, operation, float(value.removesuffix("%")), percent)
