from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from goldtest import compare
from report_cases import CASES

from dlprof.model.report import Report
from dlprof.render import render_html, render_markdown, render_text

REPORTS = Path(__file__).parents[2] / "reports"
RENDER: dict[str, Callable[[Report], str]] = {
    "report.html": render_html,
    "report.md": render_markdown,
    "report.txt": render_text,
}


@pytest.mark.parametrize("file_name", RENDER)
@pytest.mark.parametrize("case", CASES)
def test_report_is_the_golden_one(case: str, file_name: str, update: bool) -> None:
    compare(RENDER[file_name](CASES[case]()), REPORTS / case / file_name, update)


SAYS = {
    "tokenizer": [
        "CPU preprocessing bounds the step: the tokenizer keeps the training loop waiting for 58 % of it",
        "Raise num_workers from 0 to 2",
        "DataLoader(..., num_workers=2, persistent_workers=True)",
        "Tokenize the dataset once, before training",
    ],
    "images": ["decoding keeps the training loop waiting", "Decode fewer pixels", "train_images.py:31"],
    "compute": ["the GPU is busy for 91 % of it", "tuning the loader will not help", "Leave the DataLoader as it is"],
    "trace": [
        "Rank 1 arrives last at the collectives: the others wait 14.0 ms per step for it.",
        "the training loop waits for a batch",
        "dlprof run --steps 50 train.py shows which part of the data work it is",
    ],
    "short": ["Inconclusive: only 3 steps were measured", "ValueError: expected sequence of length 12"],
}


@pytest.mark.parametrize("case", SAYS)
def test_what_a_report_must_say_whatever_the_golden_file_holds(case: str) -> None:
    said = " ".join(render_text(CASES[case]()).split())
    for sentence in SAYS[case]:
        assert sentence in said
