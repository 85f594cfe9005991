from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import dlprof
from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence
from dlprof.model.pipeline import BOTTLENECK_OF
from dlprof.model.report import BudgetRow, Evidence, StepTimes
from dlprof.render.numbers import percent
from dlprof.render.templates import messages
from dlprof.render.wording import (
    advice_text,
    advice_title,
    bottleneck_name,
    cause_name,
    component_name,
    confidence_reason,
    device_word,
    dlprof_target,
    headline,
    inconclusive_reason,
    metric_name,
    notice_text,
    why_not,
)

STEP = StepTimes(61.3, 60.0, 70.0, 16.0, 130.0, 1.0)
NO_STEP = StepTimes(None, None, None, None, None, None)
BUDGET = [BudgetRow(Cause.INPUT_WAIT, 8.0, 0.13, "light"), BudgetRow(Cause.DEVICE_COMPUTE, 53.3, 0.87, "traced")]
WAITING = [BudgetRow(Cause.INPUT_WAIT, 38.6, 0.63, "light"), BudgetRow(Cause.DEVICE_COMPUTE, 22.7, 0.37, "traced")]
NO_VERDICT = (Bottleneck.BALANCED, Bottleneck.INCONCLUSIVE)


def is_clean(sentence: str) -> bool:
    """No placeholder, no computer word, no doubled space or stop."""
    return bool(sentence) and not re.search(r"[{}]|\bNone\b|\bnan\b|  |\.\.|\bundefined\b", sentence)


@pytest.mark.parametrize("bottleneck", Bottleneck)
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "xla:1"])
def test_every_bottleneck_and_component_has_a_headline(bottleneck: Bottleneck, device: str) -> None:
    for component, confidence in itertools.product([None, *Component], Confidence):
        share = None if bottleneck in NO_VERDICT else 0.62
        said = headline(bottleneck, component, share, confidence, STEP, WAITING, device)
        assert is_clean(said)
        assert said.endswith(".")
        assert said.count(". ") == 0
        if share is not None:
            outside = component is Component.WORKER_STARTUP and bottleneck is not Bottleneck.DEVICE_COMPUTE
            cost = "100 ms for each step of 61.3 ms" if outside else "38.0 ms of 61.3 ms"
            assert f"62 % of it ({cost})" in said
        if device == "cpu":
            assert "GPU" not in said


@pytest.mark.parametrize("bottleneck", Bottleneck)
def test_a_headline_without_any_number(bottleneck: Bottleneck) -> None:
    said = headline(bottleneck, None, None, Confidence.LOW, NO_STEP, [], "cpu")
    assert is_clean(said)
    assert "not measured" not in said


def test_headline_names_the_cause_and_its_cost() -> None:
    said = headline(Bottleneck.CPU_PREPROCESSING, Component.TOKENIZER, 0.62, Confidence.HIGH, STEP, WAITING, "cuda:0")
    assert said == (
        "CPU preprocessing bounds the step: the tokenizer keeps the training loop waiting "
        "for 62 % of it (38.0 ms of 61.3 ms)."
    )


@pytest.mark.parametrize("bottleneck", sorted(set(BOTTLENECK_OF.values())))
@pytest.mark.parametrize("wait", [0.0, 0.06, 0.13, 0.39, 0.4, 0.9])
def test_no_headline_claims_a_wait_above_the_measured_one(bottleneck: Bottleneck, wait: float) -> None:
    budget = [BudgetRow(Cause.INPUT_WAIT, wait * 61.3, wait, "light")]
    said = headline(bottleneck, None, 0.4, Confidence.HIGH, STEP, budget, "cpu").replace("\N{NO-BREAK SPACE}", " ")
    if wait < 0.4:
        assert f"waiting for at most {percent(wait)} of it, ".replace("\N{NO-BREAK SPACE}", " ") in said
        assert f"without {bottleneck_name(bottleneck)} a step would be 40 % shorter (24.5 ms of 61.3 ms)" in said
    else:
        assert "waiting for 40 % of it (24.5 ms of 61.3 ms)" in said


def test_nor_one_that_is_above_it_by_less_than_is_shown() -> None:
    budget = [BudgetRow(Cause.INPUT_WAIT, 0.398 * 61.3, 0.398, "light")]
    said = headline(Bottleneck.STORAGE_IO, None, 0.4, Confidence.HIGH, STEP, budget, "cpu")
    assert "waiting for 40 % of it (24.4 ms of 61.3 ms)" in said.replace("\N{NO-BREAK SPACE}", " ")


def test_what_is_held_up_outside_the_wait_for_input_is_not_measured_by_it() -> None:
    said = headline(Bottleneck.HOST_OVERHEAD, Component.PYTHON, 0.4, Confidence.HIGH, STEP, BUDGET, "cpu")
    assert "holds the step up for 40 % of it" in said.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("bottleneck", "component", "causes", "says"),
    [
        (Bottleneck.H2D_COPY, None, {Cause.H2D_COPY: 0.42}, "up for 42 % of it (25.7 ms of 61.3 ms)."),
        (Bottleneck.COMMUNICATION, Component.COLLECTIVE, {Cause.COMMUNICATION: 0.3}, "for 30 % of it (18.4 ms of"),
        (
            Bottleneck.HOST_OVERHEAD,
            Component.KERNEL_LAUNCH,
            {Cause.PYTHON: 0.25, Cause.KERNEL_LAUNCH: 0.44, Cause.SYNCHRONIZATION: 0.001},
            "launching many small kernels holds the device up for 44 % of it (27.0 ms of 61.3 ms), "
            "Python in the training loop for 25 %.",
        ),
    ],
)
def test_what_a_headline_names_has_the_number_that_the_budget_has(bottleneck, component, causes, says) -> None:
    budget = [BudgetRow(cause, share * 61.3, share, "traced") for cause, share in causes.items()]
    said = headline(bottleneck, component, 0.69, Confidence.HIGH, STEP, budget, "cuda:0")
    assert says in said.replace("\N{NO-BREAK SPACE}", " ")


def test_low_confidence_says_probably() -> None:
    said = headline(Bottleneck.STORAGE_IO, None, 0.3, Confidence.LOW, STEP, BUDGET, "cpu")
    assert said.startswith("Reading data probably bounds the step: ")


@pytest.mark.parametrize(
    ("wait", "ending"),
    [(0.02, "so tuning the loader will not help."), (0.12, "so tuning the loader can gain little."), (0.3, "30 %.")],
)
def test_compute_bound_says_what_the_loader_can_gain(wait: float, ending: str) -> None:
    budget = [BudgetRow(Cause.INPUT_WAIT, 1.0, wait, "light")]
    said = headline(Bottleneck.DEVICE_COMPUTE, None, 0.7, Confidence.HIGH, STEP, budget, "cuda:0")
    assert said.endswith(ending)
    assert "the GPU computes for 70 % of it" in said


def test_balanced_names_the_largest_part_that_is_not_compute() -> None:
    said = headline(Bottleneck.BALANCED, None, None, Confidence.MEDIUM, STEP, BUDGET, "cpu")
    assert "waiting for input, takes 13 % (7.97 ms of 61.3 ms)" in said


def test_inconclusive_gives_its_reason() -> None:
    reason = inconclusive_reason("threshold", first="the tokenizer", low=0.15, high=0.26)
    said = headline(Bottleneck.INCONCLUSIVE, None, None, Confidence.LOW, STEP, BUDGET, "cpu", reason=reason)
    assert said.startswith("Inconclusive: removing the tokenizer would save between 15 % and 26 % of the step")
    assert inconclusive_reason("something-new", what=3) == "Something new (what 3)"


@pytest.mark.parametrize("confidence", Confidence)
@pytest.mark.parametrize("steps", [0, 1, 9, 12, 50])
@pytest.mark.parametrize("notices", [[], ["drift"], ["no-trace"]])
def test_confidence_has_a_reason(confidence: Confidence, steps: int, notices: list[str]) -> None:
    assert is_clean(confidence_reason(confidence, steps, notices))


def test_names_exist_for_the_whole_vocabulary() -> None:
    catalogue = messages()
    assert {cause.value for cause in Cause} == set(catalogue["cause"])
    assert {component.value for component in Component} == set(catalogue["component"])
    assert {bottleneck.value for bottleneck in Bottleneck} == set(catalogue["bottleneck"])
    assert cause_name(Cause.INPUT_WAIT) == "waiting for input"
    assert component_name(Component.TOKENIZER) == "tokenizer"
    assert bottleneck_name(Bottleneck.H2D_COPY) == "copies between host and device"


@pytest.mark.parametrize(("device", "word"), [("cpu", "CPU"), ("cuda:3", "GPU"), ("mps", "GPU"), ("hpu:0", "device")])
def test_device_word(device: str, word: str) -> None:
    assert device_word(device) == word


# ---------------------------------------------------------------- advice


def advised(id: str, setting: str | None = None, from_: Any = None, to: Any = None, **loader: Any) -> str:
    evidence = [Evidence("tokenizer_ms_per_batch", 36.1, "ms")]
    return advice_text(id, setting, from_, to, (1.4, 1.6, 1.8), evidence, loader)


@pytest.mark.parametrize("id", messages()["advice"])
def test_every_advice_of_the_catalogue_can_be_worded(id: str) -> None:
    said = advised(id, "num_workers", 2, 4)
    assert said
    assert "None" not in said
    assert "{{" not in said
    assert not said.startswith(id)
    title = advice_title(id, 2, 4)
    assert "\n" not in title
    assert title[0].isupper()
    assert not title.endswith(".")


def test_workers_come_with_the_lines_to_paste() -> None:
    said = advised("raise-num-workers", "num_workers", 0, 2)
    assert "\n    DataLoader(..., num_workers=2, persistent_workers=True)" in said
    assert "training process itself" in said


def test_a_prefetch_factor_in_force_is_kept() -> None:
    assert "prefetch_factor=8" in advised("raise-num-workers", "num_workers", 1, 2, prefetch_factor=8)


def test_no_workers_means_no_prefetching_either() -> None:
    said = advised("lower-num-workers", "num_workers", 2, 0)
    assert "    DataLoader(..., num_workers=0)\n" in said
    assert "take both out" in said


def test_a_trainer_gets_its_own_names() -> None:
    said = advised("raise-num-workers", "num_workers", 0, 2, made_by="transformers.trainer")
    assert "TrainingArguments(..., dataloader_num_workers=2, dataloader_persistent_workers=True" in said


def test_an_advice_without_a_section_still_says_what_to_set() -> None:
    assert advised("raise-foo", "foo", 1, 2) == "Set it where the DataLoader is made:\n\n    DataLoader(..., foo=2)"
    assert advised("raise-foo") == ""
    assert advice_title("raise-foo", 1, 2) == "Raise foo: 1 → 2"
    assert advice_title("raise-foo") == "Raise foo"


def test_metrics_lose_their_unit() -> None:
    assert metric_name("sampler_ms_per_batch") == "sampler per batch"
    assert metric_name("worker_busy_ratio") == "workers busy"
    assert metric_name("queue_wait_ms") == "queue wait"


# ---------------------------------------------------------------- reasons and notices

VALUES = {
    "cores": 2,
    "share": 0.03,
    "gain": (0.9, 1.0, 1.1),
    "cause": "the tokenizer",
}


@pytest.mark.parametrize(
    ("id", "reason"), [(id, reason) for id, reasons in messages()["why-not"].items() for reason in reasons]
)
def test_every_reason_can_be_worded(id: str, reason: str) -> None:
    said = why_not(id, reason, **VALUES)
    assert is_clean(said)
    assert said.endswith(".")
    assert reason.replace("-", " ").capitalize() != said.rstrip(".")


def test_a_general_reason_does_for_any_advice() -> None:
    assert why_not("pack-tensors", "already") == "It is already in force."
    assert why_not("pack-tensors", "too-strange", share=0.5) == "Too strange (share 50 %)."
    assert why_not("raise-num-workers", "no-cores") == "No cores."


NOTICES = sorted(messages()["notice"])

NOTICE_VALUES: dict[str, Any] = {
    "wanted": 50,
    "measured": 12,
    "traced": 3,
    "reason": "too many events",
    "command": "/opt/other/bin/python",
    "first_ms": 30.0,
    "last_ms": 61.0,
    "pid": 41207,
    "signal": "SIGKILL",
    "count": 3,
    "limit": "500 MB",
    "hook": "DataLoader.__iter__",
    "error": "TypeError",
    "steps": 12,
}


@pytest.mark.parametrize("slug", NOTICES)
def test_every_notice_is_worded_with_and_without_its_values(slug: str) -> None:
    for values in ({}, NOTICE_VALUES):
        said = notice_text(slug, **values)
        assert is_clean(said)
        assert said.endswith(".")
        assert 1 <= len(re.findall(r"[.](?:\s|$)", said)) <= 3
        assert slug.replace("-", " ") != said.lower().rstrip(".")


def test_every_notice_that_is_left_anywhere_is_worded() -> None:
    package = Path(dlprof.__file__).parent
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    left = set(re.findall(r"(?:[Nn]otice|_note|note)\(\s*\"([a-z-]+)\"", source))
    assert len(left) > 15
    assert left <= set(NOTICES)


def test_an_unknown_notice_says_its_slug_and_values() -> None:
    assert notice_text("clock-went-back", jump_ms=12.0, pid=41) == "Clock went back (jump 12.0 ms, pid 41)."
    assert notice_text("clock-went-back") == "Clock went back."


def test_a_hostile_value_stays_on_one_short_line() -> None:
    said = notice_text("hook-failed", hook="x\n\x1b[31m", error="e" * 10_000)
    assert "\n" not in said
    assert "\x1b" not in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("id", "setting", "from_", "to"),
    [("raise-num-workers", "num_workers", 0, 2), ("keep-workers-alive", "persistent_workers", False, True)],
)
def test_above_the_lines_to_paste_stands_which_loader_they_are_for(id: str, setting: str, from_: Any, to: Any) -> None:
    lines = advised(id, setting, from_, to, made_at="train.py:40").splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("    DataLoader("))
    assert lines[at - 1] == "    # train.py:40"
    assert not any("# train.py" in line for line in advised(id, setting, from_, to).splitlines())


def test_what_is_no_line_of_the_script_is_not_said_to_be() -> None:
    said = advised("raise-num-workers", "num_workers", 0, 2, made_by="transformers.trainer", made_at="trainer.py:9")
    assert "trainer.py:9" not in said


def test_a_list_in_a_notice_is_shown_whole() -> None:
    loaders = "; ".join(f"{n} Data, train.py:{n}" for n in range(60))
    assert loaders in notice_text("set-unused", settings="99.num_workers=2", loaders=loaders)
    assert "It made none." in notice_text("set-unused", settings="num_workers=2", loaders="")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/usr/bin/python3.11", "train.py", "--lr", "1"], "train.py -- --lr 1"),
        (["/usr/bin/python3.11", "my train.py", "a"], "'my train.py' a"),
        (["/usr/bin/python3.11", "-m", "package.train", "x"], "-m package.train x"),
        (["torchrun", "--nproc-per-node", "4", "train.py"], "-- torchrun --nproc-per-node 4 train.py"),
        (["python", "train.py"], "-- python train.py"),
        (["/usr/bin/python3.11", "train.py", "x" * 400], "..."),
        (["/usr/bin/python3.11", "train.py", "a\nb"], "..."),
        ([], "..."),
    ],
)
def test_the_line_to_measure_a_setting_is_that_of_the_run(command: list[str], said: str) -> None:
    evidence = [Evidence("blocked_ratio", 0.9, "ratio"), Evidence("waiting_at_once", 1, "count")]
    how = advice_text("raise-num-workers", "num_workers", 0, 4, (1, 2, 3), evidence, {}, command=command)
    assert f"\n    dlprof run --set num_workers=4 {said}" in how
    assert dlprof_target(command) == said
