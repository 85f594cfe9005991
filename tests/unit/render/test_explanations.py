"""Every id that dlprof can say is explained, every explanation is of such an id, and README's tables are the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlprof
from dlprof.advice.rules import RULES
from dlprof.model.kinds import Bottleneck, Cause, Component
from dlprof.render.explanations import KINDS, every, explain, explanation_lines, nearest, overview, with_tables
from dlprof.render.templates import explanations, messages
from dlprof.render.wording import bottleneck_name, cause_name, component_name
from dlprof.words import LANGUAGES, speaking

PACKAGE = Path(dlprof.__file__).parent
ROOT = PACKAGE.parent
ERRORS = {"UsageError", "UnreadableInputError", "DlprofError"}
FIRST_WAVE = [
    "raise-num-workers",
    "lower-num-workers",
    "raise-prefetch-factor",
    "keep-workers-alive",
    "pin-memory",
    "copy-non-blocking",
    "allow-out-of-order",
    "pretokenize-dataset",
    "use-fast-tokenizer",
    "batch-tokenizer-calls",
    "vectorize-collate",
    "pad-to-batch-not-max",
    "decode-faster",
    "fetch-whole-batches",
    "pack-tensors",
    "return-tensors-not-objects",
    "limit-worker-threads",
    "raise-cpu-quota",
    "widen-cpu-affinity",
    "raise-shm-size",
    "share-by-file-system",
    "raise-open-files",
    "read-sequentially",
    "shard-dataset",
    "cache-dataset-locally",
    "match-shards-to-workers",
    "shrink-worker-memory",
    "remove-host-syncs",
    "checkpoint-less-often",
    "fuse-small-kernels",
    "use-mixed-precision",
    "raise-batch-size",
    "gradient-checkpointing-or-zero3",
    "balance-ranks",
    "stop-tuning-input",
]
"""Advice that reports may hold, whether a rule gives it yet or not."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                yield name, node


def first_words(*names: str) -> set[str]:
    """First arguments, where they are written out, of all calls of these names in the package."""
    found = (node.args[0] for name, node in calls() if name in names and node.args)
    return {each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def test_every_error_is_explained_and_no_other() -> None:
    assert set(explanations()["error"]) == first_words(*ERRORS)


def test_every_notice_is_explained_and_no_other() -> None:
    assert set(explanations()["notice"]) == set(messages()["notice"])
    assert first_words("Notice", "notice") <= set(explanations()["notice"])


def test_every_advice_is_explained() -> None:
    assert set(RULES) | set(messages()["advice"]) | set(FIRST_WAVE) <= set(explanations()["advice"])


@pytest.mark.parametrize(("kind", "ids"), [("bottleneck", Bottleneck), ("component", Component), ("cause", Cause)])
def test_the_vocabulary_is_explained_and_nothing_else(kind: str, ids: type) -> None:
    assert set(explanations()[kind]) == {each.value for each in ids}  # type: ignore[attr-defined]


def test_the_catalogue_has_no_other_section_or_field() -> None:
    assert set(explanations()) == set(KINDS)
    for section in explanations().values():
        for id_, texts in section.items():
            assert list(texts) == ["what", "when", "do"], id_


@pytest.mark.parametrize("each", list(every()), ids=lambda each: f"{each.kind}-{each.id}")
def test_an_explanation_is_short_sentences(each) -> None:
    for text in (each.what, each.when, each.do):
        assert text == text.strip()
        assert text[-1] in ".?" or each.do == text
        assert len(text) < 240
        assert "|" not in text
    assert not {"None", "nan", "TODO"} & set(each.what.split())
    lines = explanation_lines(each)
    assert lines[0].startswith(f"{each.id}: ")
    assert all(len(line) <= 80 for line in lines)


def test_an_id_is_found_however_it_is_written() -> None:
    for written in ("raise-num-workers", "Raise_Num_Workers", " raise num workers "):
        assert [each.id for each in explain(written)] == ["raise-num-workers"]
    assert [each.kind for each in explain("checkpoint")] == ["component", "cause"]
    assert explain("raise") == []
    assert explain("") == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("kind", "named", "ids"),
    [
        ("bottleneck", bottleneck_name, Bottleneck),
        ("component", component_name, Component),
        ("cause", cause_name, Cause),
    ],
)
def test_what_stands_on_the_screen_is_known(kind, named, ids, language) -> None:
    for each in ids:
        with speaking(language):
            shown = named(each)
        # Whatever language is in force: a page may have been made in another.
        assert (kind, each.value) in {(found.kind, found.id) for found in explain(shown)}


@pytest.mark.parametrize(
    ("written", "kinds"),
    [
        ("launching kernels", {"component", "cause"}),
        ("The input pipeline", {"bottleneck"}),
        ("input pipeline", {"bottleneck"}),
        ("等待数据", {"cause"}),
        ("Launch fewer kernels", {"advice"}),
        ("Raise num_workers from 0 to 2", {"advice"}),
        ("trace-without-workers", {"notice"}),
    ],
)
def test_words_of_a_page_are_known(written: str, kinds: set[str]) -> None:
    assert {each.kind for each in explain(written)} == kinds


def test_a_notice_that_a_trace_gets_names_no_option_that_analyze_lacks() -> None:
    for slug in ("short-run", "drift"):
        do = explanations()["notice"][slug]["do"]
        assert "dlprof run with more --" in do
        assert "a trace of more steps" in do


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("raise-workers", "raise-num-workers"),
        ("tokeniser", "tokenizer"),
        ("shm", "raise-shm-size"),
        ("no-loder", "no-loader"),
    ],
)
def test_the_nearest_names_are_offered(written: str, meant: str) -> None:
    assert meant in nearest(written)
    assert len(nearest(written)) <= 5


def test_nothing_is_near_nonsense() -> None:
    assert nearest("\x00\x00") == []
    assert nearest("") == []


def test_the_overview_holds_every_id() -> None:
    shown = " ".join(overview()).replace(",", " ").split()
    assert {each.id for each in every()} <= set(shown)


def test_readmes_tables_are_those_of_the_catalogue() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_tables(readme) == readme, "run: python -m dlprof.render.explanations"
    assert "| `raise-num-workers` |" in readme


def test_a_readme_without_its_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="explain: bottleneck"):
        with_tables("# dlprof")
