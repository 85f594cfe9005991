"""How numbers look: significant digits, units, and what stands where nothing was measured.

Every function takes a plain number or None and returns a string without markup. None, NaN and infinities become
`NOT_MEASURED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dlprof.words import marked, tr

NOT_MEASURED = marked("not measured")
TIMES = "\N{MULTIPLICATION SIGN}"
TO = "\N{EN DASH}"
"""Between the ends of an interval; alone it stands for a cell without a value."""

_MILLISECONDS_PER_SECOND = 1000.0


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number (a bool is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def digits(value: float) -> str:
    """A positive or negative number with about three significant digits, without an exponent below 10^15."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.2e}"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.01 or size == 0:
        return _without_zeros(f"{value:.2f}")
    return "< 0.01" if value > 0 else "> -0.01"


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(value: float | None) -> str:
    """A duration given in milliseconds, in the unit that suits its size: ``38.2 ms``, ``1.24 s``."""
    if value is None or not math.isfinite(value):
        return tr(NOT_MEASURED)
    if abs(value) >= _MILLISECONDS_PER_SECOND:
        return seconds(value / _MILLISECONDS_PER_SECOND)
    return f"{digits(value)} ms"


def seconds(value: float | None) -> str:
    """A duration given in seconds: ``0.41 s``, ``12.3 s``, ``4.2 min``."""
    if value is None or not math.isfinite(value):
        return tr(NOT_MEASURED)
    return f"{digits(value / 60)} min" if value >= 120 else f"{digits(value)} s"


def percent(share: float | None) -> str:
    """A share of 0 to 1 as ``62 %``; one decimal below 10 %."""
    if share is None or not math.isfinite(share):
        return tr(NOT_MEASURED)
    value = share * 100
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < 100:
        return "> 99.9 %"
    if abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{_without_zeros(f'{value:.1f}')} %"


def times(ratio: float | None) -> str:
    """A ratio of step times: 1.75, 3.2 or 14, with a multiplication sign."""
    if ratio is None or not math.isfinite(ratio):
        return tr(NOT_MEASURED)
    decimals = 2 if ratio < 1.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:.{decimals}f}{TIMES}"


def gain(speedup: Sequence[float] | None) -> str:
    """A speedup with its interval, as fine as the interval allows: 1.6, in brackets 1.4 to 1.8.

    Args:
        speedup: low, middle, high; or None.
    """
    if speedup is None or not all(math.isfinite(value) for value in speedup):
        return tr(NOT_MEASURED)
    low, middle, high = speedup
    decimals = 2 if high - low < 0.2 else 1
    texts = [f"{value:.{decimals}f}" for value in (low, middle, high)]
    if len(set(texts)) == 1:
        return f"{texts[1]}{TIMES}"
    return f"{texts[1]}{TIMES} ({texts[0]}{TO}{texts[2]}{TIMES})"


def size_bytes(value: float | None) -> str:
    """A number of bytes in decimal units: ``1.2 MB``."""
    if value is None or not math.isfinite(value):
        return tr(NOT_MEASURED)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{digits(value)} {unit}"
        value /= 1000
    return f"{digits(value)} TB"


def count(value: float | None) -> str:
    """A whole number with thousands separators; a fraction keeps about three digits."""
    if value is None or not math.isfinite(value):
        return tr(NOT_MEASURED)
    return f"{value:,.0f}" if float(value).is_integer() else digits(value)


def number(value: float | None) -> str:
    """A number without a unit, about three significant digits."""
    return tr(NOT_MEASURED) if value is None or not math.isfinite(value) else digits(value)


def column(values: Iterable[float | None], missing: str | None = None) -> list[str]:
    """Numbers of one table column, all with the same number of decimals, chosen by the largest.

    Args:
        values: In the unit that the column's head names.
        missing: What stands for None; by itself that it was not measured.
    """
    values = list(values)
    missing = tr(NOT_MEASURED) if missing is None else missing
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(sizes, default=0.0)
    decimals = 0 if largest >= 1000 else 1 if largest >= 9.995 else 2
    return [missing if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}" for value in values]


def with_unit(value: float | None, unit: str) -> str:
    """A measured number with the unit that travelled with it.

    Args:
        value: The number.
        unit: ``ms``, ``s``, ``ratio`` (shown as a percentage), ``bytes``, ``x`` (a speedup), or any other word,
            which is put behind the number; may be empty.
    """
    formats = {"ms": milliseconds, "s": seconds, "ratio": percent, "bytes": size_bytes, "x": times, "count": count}
    if unit in formats:
        return formats[unit](value)
    text = number(value)
    return text if not is_number(value) or not unit else f"{text} {unit}"
