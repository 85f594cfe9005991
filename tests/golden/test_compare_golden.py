from __future__ import annotations

import pytest
from compare_cases import CASES
from goldtest import REPORTS, check

from dlprof.formats.compare_json import encode_compare
from dlprof.render import render_compare


@pytest.mark.parametrize("format_", ["html", "pdf", "md", "txt"])
def test_the_result_is_the_golden_one(format_: str, update: bool) -> None:
    ((file_name, page),) = render_compare(CASES["workers"](), [format_])
    check(page, REPORTS / "compare" / file_name, update)


def test_its_json_is_the_golden_one(update: bool) -> None:
    check(encode_compare(CASES["workers"]()), REPORTS / "compare" / "compare.json", update)


SAYS = {
    "workers": [
        "The second run is 1.5",
        "above all less waiting for input",
        "num_workers 0 2",
        "By forecast from the first run, num_workers changes the step by",
        "Component before after",
    ],
    "slower": ["slower: a step takes 64.9 ms", "above all more waiting for input"],
    "itself": ["No significant difference", "Both are the same run.", "No loader setting differs."],
    "reports-only": [
        "Different scripts: train_text.py and train_images.py",
        "Different batch sizes: 16 and 32 samples a step. All times are per sample.",
        "Different machines: host, usable cores differ.",
        "only its report.json is there",
    ],
    "nothing-measured": [
        "The two runs cannot be told apart",
        "The second run measured 0 steps: too few to compare.",
    ],
}


@pytest.mark.parametrize("case", SAYS)
def test_what_the_result_must_say_whatever_the_golden_file_holds(case: str) -> None:
    ((_, page),) = render_compare(CASES[case](), ["txt"])
    assert isinstance(page, bytes)
    said = " ".join(page.decode().split())
    for sentence in SAYS[case]:
        assert sentence in said


def test_the_recorded_runs_differ_and_the_setting_explains_it() -> None:
    found = CASES["workers"]()
    assert found.step.speedup is not None
    assert found.step.speedup[0] > 1
    assert found.explained is not None
    assert found.explained.settings == ["num_workers"]
    assert encode_compare(found)
