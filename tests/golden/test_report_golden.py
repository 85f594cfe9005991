from __future__ import annotations

import pytest
from goldtest import REPORTS, check
from report_cases import CASES

from dlprof.formats.report_json import encode_report
from dlprof.render import render_each, render_text

GOLDEN = {
    "gpu": ("html", "json", "md", "txt"),
    "hostile": ("html", "md", "txt"),
    "trace": ("html", "json", "md", "pdf", "txt"),
}
"""Cases of which no recorded run tells the story, and their formats."""


@pytest.mark.parametrize(("case", "format_"), [(case, format_) for case in GOLDEN for format_ in GOLDEN[case]])
def test_report_is_the_golden_one(case: str, format_: str, update: bool) -> None:
    report = CASES[case]()
    if format_ == "json":
        check(encode_report(report), REPORTS / case / "report.json", update)
        return
    ((file_name, page),) = render_each(report, [format_])
    check(page, REPORTS / case / file_name, update)


SAYS = {
    "tokenizer": [
        "CPU preprocessing bounds the step: the tokenizer keeps the training loop waiting for 58 % of it",
        "Raise num_workers from 0 to 2",
        "DataLoader(..., num_workers=2, persistent_workers=True)",
        "Tokenize the dataset once, before training",
    ],
    "images": ["decoding keeps the training loop waiting", "Decode fewer pixels", "train_images.py:31"],
    "gpu": ["the GPU computes for 91 % of it", "tuning the loader will not help", "Leave the DataLoader as it is"],
    "trace": [
        "Rank 1 arrives last at the collectives: the others wait 14.0 ms per step for it.",
        "the training loop waits for a batch",
        "A trace does not show why batches take so long; dlprof run --steps 50 train.py does.",
    ],
    "short": ["Inconclusive: only 3 steps were measured", "ValueError: expected sequence of length 12"],
}


@pytest.mark.parametrize("case", SAYS)
def test_what_a_report_must_say_whatever_the_golden_file_holds(case: str) -> None:
    said = " ".join(render_text(CASES[case]()).split())
    for sentence in SAYS[case]:
        assert sentence in said
