from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.render.numbers import (
    NOT_MEASURED,
    TIMES,
    TO,
    column,
    count,
    gain,
    milliseconds,
    number,
    percent,
    seconds,
    size_bytes,
    times,
    with_unit,
)

FORMATS = (milliseconds, seconds, percent, times, size_bytes, count, number)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (0.004, "< 0.01 ms"),
        (0.38, "0.38 ms"),
        (3.8249, "3.82 ms"),
        (38.24, "38.2 ms"),
        (382.4, "382 ms"),
        (999.96, "1,000 ms"),
        (1240, "1.24 s"),
        (150_000, "2.5 min"),
    ],
)
def test_milliseconds_take_the_unit_that_suits(value: float, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0001, "< 0.1 %"),
        (0.009, "0.9 %"),
        (0.02, "2 %"),
        (0.0996, "10 %"),
        (0.618, "62 %"),
        (0.9999, "> 99.9 %"),
        (1, "100 %"),
    ],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.93, "0.93"), (1.754, "1.75"), (1.999, "2.0"), (3.21, "3.2"), (14, "14")]
)
def test_times(ratio: float, text: str) -> None:
    assert times(ratio) == f"{text}{TIMES}"


def test_a_gain_is_as_fine_as_its_interval() -> None:
    assert gain((1.4, 1.6, 1.8)) == f"1.6{TIMES} (1.4{TO}1.8{TIMES})"
    assert gain((1.51, 1.57, 1.62)) == f"1.57{TIMES} (1.51{TO}1.62{TIMES})"
    assert gain((1.001, 1.002, 1.003)) == f"1.00{TIMES}"
    assert gain(None) == gain((1.0, math.nan, 1.0)) == NOT_MEASURED


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (512, "512 B"), (1_048_576, "1.05 MB"), (8.345e9, "8.35 GB"), (3e13, "30.0 TB")]
)
def test_size(value: float, text: str) -> None:
    assert size_bytes(value) == text


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_says_so(value: float | None) -> None:
    assert {form(value) for form in FORMATS} == {NOT_MEASURED}
    assert column([value]) == [NOT_MEASURED]


@given(
    st.floats(-1e300, 1e300)
    | st.sampled_from([math.nan, math.inf, -math.inf])
    | st.none()
    | st.integers(-(10**18), 10**18)
)
def test_no_format_shows_a_computer_word(value: float | None) -> None:
    for form in FORMATS:
        text = form(value).lower()
        assert text
        assert not any(word in text for word in ("nan", "inf", "none"))


def test_a_column_has_one_number_of_decimals() -> None:
    assert column([412.3, 3.81, None]) == ["412.3", "3.8", NOT_MEASURED]
    assert column([3.81, 0.4]) == ["3.81", "0.40"]
    assert column([]) == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (36.1, "ms", "36.1 ms"),
        (0.62, "ratio", "62 %"),
        (2, "count", "2"),
        (5e6, "bytes", "5 MB"),
        (7, "", "7"),
        (21.4, "GB/s", "21.4 GB/s"),
        (math.nan, "GB/s", NOT_MEASURED),
    ],
)
def test_units_travel_with_the_number(value: float, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text
