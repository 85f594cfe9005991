"""Every labelled workload is whole, so that a wrong answer on it is dlprof's and not the label's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

WORKLOADS = Path(__file__).parents[1] / "workloads"
sys.path.insert(0, str(WORKLOADS))

import labels  # noqa: E402
from labels import LabelError, Variant, matches  # noqa: E402

VARIANTS = [variant for case in labels.cases() for variant in labels.variants(case)]


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.title)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


def test_every_folder_with_a_script_has_a_label() -> None:
    folders = {path.parent.name for name in labels.VARIANTS for path in WORKLOADS.glob(f"*/{name}.py")}
    assert folders == set(labels.cases())


def test_the_script_is_there_and_compiles(variant: Variant) -> None:
    compile(variant.script.read_text(), str(variant.script), "exec")


def test_the_planted_line_stands_once(variant: Variant) -> None:
    assert variant.line is None or variant.line_number is not None


def test_no_answer_is_right_and_never_right(variant: Variant) -> None:
    for answer in (*variant.accept, *variant.accept_busy):
        bottleneck, _, component = answer.partition("/")
        assert not any(
            matches(never, bottleneck, None if component == "-" else component or None) for never in variant.must_not
        )
    assert not set(variant.advice) & set(variant.must_not)


@pytest.mark.parametrize(
    ("answer", "bottleneck", "component", "same"),
    [
        ("storage_io", "storage_io", "storage_io", True),
        ("storage_io", "cpu_preprocessing", "decode", False),
        ("cpu_preprocessing/decode", "cpu_preprocessing", "decode", True),
        ("cpu_preprocessing/decode", "cpu_preprocessing", "transform", False),
        ("balanced/-", "balanced", None, True),
        ("cpu_preprocessing/-", "cpu_preprocessing", "decode", False),
    ],
)
def test_what_an_answer_matches(answer: str, bottleneck: str, component: str | None, same: bool) -> None:
    assert matches(answer, bottleneck, component) is same


BAD = {
    "no such key": 'cause = 1\nstory = "s"\nspeed = 1\n[control]\naccept = ["balanced"]',
    "story": 'cause = 1\n[control]\naccept = ["balanced"]',
    "fix_gain": 'cause = 1\nstory = "s"\n[slow]\naccept = ["balanced"]\n[fixed]\naccept = ["balanced"]',
    "either": 'cause = 1\nstory = "s"\n[slow]\naccept = ["balanced"]',
    "no such bottleneck": 'cause = 1\nstory = "s"\n[control]\naccept = ["slow_disk"]',
    "no such component": 'cause = 1\nstory = "s"\n[control]\naccept = ["storage_io/disk"]',
    "no such advice": 'cause = 1\nstory = "s"\n[control]\naccept = ["balanced"]\nadvice = ["buy-a-gpu"]',
    "state": 'cause = 1\nstory = "s"\n[control]\naccept = ["balanced"]\nline = "x = 1"',
}


@pytest.mark.parametrize("says", BAD)
def test_a_bad_label_is_refused(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "label.toml").write_text(BAD[says])
    monkeypatch.setattr(labels, "HERE", tmp_path)
    with pytest.raises(LabelError, match=says):
        labels.variants("case")
