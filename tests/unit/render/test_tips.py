"""Where tooltips lie and what they say."""

from __future__ import annotations

import itertools
import re

import pytest
from report_cases import CASES, images, tokenizer

from dlprof.model.report import Report
from dlprof.render.charts import NARROW, WIDE
from dlprof.render.tips import Tip, tips


def place(tip: Tip) -> dict[str, float]:
    return {key: float(value) for key, value in re.findall(r"(\w+):([\d.]+)%", tip.style)}


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("key", ["budget", "steps", "forecast"])
def test_tips_lie_side_by_side_within_the_drawing(key: str, width: int) -> None:
    found = [place(tip) for tip in tips(key, tokenizer(), width)]
    assert len(found) > 1
    for this, after in itertools.pairwise(found):
        assert this["left"] + this["width"] == pytest.approx(after["left"], abs=0.03)
    assert found[0]["left"] >= 0
    assert found[-1]["left"] + found[-1]["width"] <= 100.03
    assert all(each["top"] + each["height"] <= 100.03 for each in found)


def test_the_budgets_tips_are_as_wide_as_the_shares() -> None:
    report = tokenizer()
    widths = [place(tip)["width"] for tip in tips("budget", report, WIDE)]
    assert widths == pytest.approx(sorted((row.share * 100 for row in report.budget), reverse=True), abs=0.1)


def test_a_tip_says_which_step_how_long_and_how_much_of_it_is_waiting() -> None:
    found = tips("steps", images(), WIDE)
    assert found[0].text == "step 5: 667 ms, waiting 476 ms of it"
    assert found[-1].text.endswith("traced")
    # 5, 14 and 24 are the slowest.
    assert [tip.text.partition(":")[0] for tip in found if tip.reachable] == ["step 5", "step 14", "step 24"]


@pytest.mark.parametrize("case", CASES)
def test_the_text_grows_towards_the_middle_of_the_page(case: str) -> None:
    report: Report = CASES[case]()
    for tip in tips("steps", report, NARROW):
        middle = place(tip)["left"] + place(tip)["width"] / 2
        assert tip.side == ("start" if middle < 35 else "end" if middle > 65 else "middle")


def test_a_chart_that_says_all_itself_has_none() -> None:
    assert tips("components", tokenizer(), WIDE) == ()
