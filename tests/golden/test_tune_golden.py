from __future__ import annotations

import pytest
from goldtest import REPORTS, check
from tune_cases import CASES

from dlprof.render import render_tune


@pytest.mark.parametrize("format_", ["html", "md", "txt"])
def test_the_result_is_the_golden_one(format_: str, update: bool) -> None:
    ((file_name, page),) = render_tune(CASES["won"](), [format_])
    check(page, REPORTS / "tune" / file_name, update)


SAYS = {
    "won": [
        "With num_workers=2 a step takes 29.2 ms instead of 61.9 ms: 2.12",
        "Raise num_workers from 0 to 2",
        "DataLoader(..., num_workers=2)",
        "num_workers=2 (the winner)",
        "killed by signal 9",
    ],
    "not-better": [
        "No setting that was tried is significantly better than what you have",
        "Runs with the same settings differed by up to 15 %",
        "The budget ran out",
        "Leave the DataLoader as it is for now",
    ],
    "nothing-to-gain": ["No loader setting can make the step 5 % faster, by forecast, so none was tried."],
    "interrupted": ["Interrupted before another setting was measured", "Interrupted while it ran."],
}


@pytest.mark.parametrize("case", SAYS)
def test_what_the_result_must_say_whatever_the_golden_file_holds(case: str) -> None:
    ((_, page),) = render_tune(CASES[case](), ["txt"])
    assert isinstance(page, bytes)
    said = " ".join(page.decode().split())
    for sentence in SAYS[case]:
        assert sentence in said
