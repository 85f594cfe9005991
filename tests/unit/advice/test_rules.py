"""Every rule fires, refuses or stays silent, and does so at its bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from known_findings import findings, forecast

from dlprof.advice.data import IN_PYTHON
from dlprof.advice.rules import FINE_WAIT, RULES, SAME, WORTH_CODING, WORTH_TRYING, advise
from dlprof.model.advice import Advice, Findings, InputFacts, Refusal
from dlprof.model.kinds import Bottleneck, Component, Confidence
from dlprof.model.pipeline import Interval
from dlprof.model.report import Forecast, HotLine
from dlprof.render.wording import why_not

JUST_BELOW = 1e-6
IN_COLLATE = HotLine("train.py:7", "collate", "rows = pad(rows)", 0.8, "cpu")


def costs(component: Component, removed: float | Forecast, **more: Any) -> Findings:
    """Removing a part of the data work gains that much; the lines are those of collate_fn."""
    collated = findings(without={component: removed}, lines=(IN_COLLATE,))
    return replace(collated, loader={**collated.loader, "collate_fn": "__main__.collate"}, **more)


def answer(rule: str, found: Findings) -> Advice | Refusal | None:
    return RULES[rule](found)


def assert_is_advice(found: Any, setting: str | None, from_: Any, to: Any) -> Advice:
    assert isinstance(found, Advice)
    assert (found.setting, found.from_, found.to) == (setting, from_, to)
    assert found.evidence
    return found


def assert_is_refusal(found: Any, reason: str) -> Refusal:
    assert isinstance(found, Refusal)
    assert found.reason == reason
    return found


# ---- raise-num-workers -----------------------------------------------------------------------------------------------

RAISE = "raise-num-workers"


def test_more_workers_are_advised_where_they_gain():
    found = assert_is_advice(
        answer(RAISE, findings(workers=1, busy=0.93, knee=forecast(3, 1.8, from_=1))), "num_workers", 1, 3
    )
    assert found.speedup == pytest.approx((1.78, 1.8, 1.82))
    assert {each.metric: each.value for each in found.evidence} == {
        "input_wait": 0.6,
        "cores": 4,
        "worker_busy_ratio": 0.93,
    }


def test_more_workers_are_advised_from_five_percent_on():
    assert isinstance(answer(RAISE, findings(knee=forecast(2, WORTH_TRYING))), Advice)
    refused = answer(RAISE, findings(knee=forecast(2, WORTH_TRYING - JUST_BELOW)))
    assert assert_is_refusal(refused, "small-gain").values["gain"][1] == pytest.approx(WORTH_TRYING)


def test_a_gain_that_may_be_a_loss_is_not_advised():
    assert_is_refusal(answer(RAISE, findings(knee=forecast(2, 1.1, spread=0.1))), "small-gain")


def test_where_nothing_is_waited_for_more_workers_are_refused():
    assert_is_refusal(answer(RAISE, findings(wait=FINE_WAIT - JUST_BELOW, knee=forecast(0, 1.0))), "no-wait")
    assert_is_refusal(answer(RAISE, findings(wait=FINE_WAIT, knee=forecast(0, 1.0))), "small-gain")


def test_where_no_cores_are_left_more_workers_are_refused():
    assert_is_refusal(answer(RAISE, findings(workers=4, knee=forecast(4, 1.0))), "no-cores")
    assert_is_refusal(answer(RAISE, findings(workers=3, knee=forecast(3, 1.0))), "small-gain")


def test_the_gain_that_was_too_small_is_the_best_there_was():
    best = findings(knee=forecast(0, 1.0), worker_forecasts=(forecast(0, 1.0), forecast(1, 1.04), forecast(2, 1.02)))
    assert assert_is_refusal(answer(RAISE, best), "small-gain").values["gain"][1] == 1.04


@pytest.mark.parametrize("missing", [{"loader": None}, {"suggested_workers": None}])
def test_without_a_loader_or_forecast_nothing_is_said_of_workers(missing):
    for rule in (RAISE, "lower-num-workers"):
        assert answer(rule, findings(workers=2, busy=0.5, knee=forecast(3, 2.0), **missing)) is None


# ---- lower-num-workers -----------------------------------------------------------------------------------------------

LOWER = "lower-num-workers"


def test_fewer_workers_are_advised_where_they_do_as_well():
    found = answer(LOWER, findings(wait=0.01, workers=8, busy=0.1, knee=forecast(2, 1.0, from_=8)))
    assert_is_advice(found, "num_workers", 8, 2)


def test_fewer_workers_may_cost_three_percent():
    assert isinstance(answer(LOWER, findings(workers=8, busy=0.1, knee=forecast(2, 1 / SAME))), Advice)
    refused = answer(LOWER, findings(workers=8, busy=0.1, knee=forecast(2, 1 / SAME - JUST_BELOW)))
    assert assert_is_refusal(refused, "needed").values == {"share": 0.1}


def test_workers_that_are_all_needed_stay():
    assert_is_refusal(answer(LOWER, findings(workers=2, busy=0.9, knee=forecast(2, 1.0))), "needed")
    assert answer(LOWER, findings(workers=2, busy=None, knee=forecast(2, 1.0))) is None


def test_workers_without_whom_it_would_go_as_well_are_neither_advised_against_nor_needed():
    assert answer(LOWER, findings(workers=2, busy=0.02, knee=forecast(0, 1.0, from_=2))) is None
    unsure = replace(forecast(1, 1.0, from_=2), confidence=Confidence.LOW)
    assert answer(LOWER, findings(workers=2, busy=0.02, knee=unsure)) is None


def test_without_workers_there_are_none_to_lower():
    assert answer(LOWER, findings(workers=0, knee=forecast(0, 1.0))) is None


# ---- stop-tuning-input -----------------------------------------------------------------------------------------------

STOP = "stop-tuning-input"


def test_where_the_wait_is_short_the_input_is_good_enough():
    found = assert_is_advice(answer(STOP, findings(wait=0.02, saved=Interval(0.01, 0.02, 0.03))), None, None, None)
    assert found.speedup is None
    assert {each.metric: each.value for each in found.evidence} == {
        "input_wait": 0.02,
        "speedup_with_instant_data": pytest.approx(1 / 0.98, abs=1e-3),
    }


def test_five_percent_of_waiting_are_worth_a_look():
    assert isinstance(answer(STOP, findings(wait=FINE_WAIT - JUST_BELOW)), Advice)
    assert answer(STOP, findings(wait=FINE_WAIT)) is None


@pytest.mark.parametrize("saved", [None, Interval(0.9, 1.0, 1.0)])
def test_how_much_there_is_to_gain_may_not_be_known(saved):
    found = answer(STOP, findings(wait=0.02, saved=saved))
    assert [each.metric for each in found.evidence] == ["input_wait"]


@pytest.mark.parametrize("missing", [{"loader": None}, {"mean": None}])
def test_without_a_loader_or_a_measured_step_nothing_is_said_of_the_input(missing):
    assert answer(STOP, findings(wait=0.0, **missing)) is None


def test_data_work_that_takes_the_cores_from_the_step_is_not_good_enough():
    # A quota of one core: nothing waits for batches, since making them slows the step itself.
    found = findings(wait=0.02)
    bound = replace(found.judgement, bottleneck=Bottleneck.CPU_PREPROCESSING, component=Component.CPU_CONTENTION)
    assert answer(STOP, replace(found, judgement=bound)) is None


# ---- a part of the data work -----------------------------------------------------------------------------------------

USUAL_PARTS = {
    "pretokenize-dataset": Component.TOKENIZER,
    "decode-faster": Component.DECODE,
    "vectorize-collate": Component.COLLATE_FN,
}
OWN_CODE = {"speed-up-getitem": Component.DATASET_GETITEM, "speed-up-transforms": Component.TRANSFORM}
PARTS = USUAL_PARTS | OWN_CODE


@pytest.mark.parametrize(("rule", "component"), PARTS.items())
def test_a_part_whose_removal_gains_is_worth_making_cheaper(rule, component):
    found = assert_is_advice(answer(rule, costs(component, 1.7, waits_ms={component: 9.0})), None, None, None)
    assert found.id == rule
    assert found.speedup[1] == 1.7
    assert [each.metric for each in found.evidence] == ["input_wait", f"wait_for_{component}"]


def test_the_evidence_says_how_long_the_part_is_waited_for():
    found = answer("pretokenize-dataset", findings(without={Component.TOKENIZER: 1.7}))
    assert (found.evidence[1].value, found.evidence[1].unit) == (21.5, "ms")


@pytest.mark.parametrize(("rule", "component"), PARTS.items())
def test_of_a_part_that_is_not_what_is_waited_for_the_evidence_says_what_a_batch_costs(rule, component):
    waits = {component: 0.3, Component.UNPICKLE: 10.9}
    found = answer(rule, costs(component, 1.7, waits_ms=waits, per_batch_ms={component: 50.04}))
    assert (found.evidence[1].metric, found.evidence[1].value) == (f"{component}_ms_per_batch", 50.04)


@pytest.mark.parametrize(("rule", "component"), PARTS.items())
def test_a_part_is_worth_it_from_ten_percent_on(rule, component):
    assert isinstance(answer(rule, costs(component, WORTH_CODING)), Advice)
    assert not isinstance(answer(rule, costs(component, WORTH_CODING - JUST_BELOW)), Advice)


@pytest.mark.parametrize(("rule", "component"), OWN_CODE.items())
def test_of_own_code_it_is_not_said_why_it_is_not_advised(rule, component):
    assert answer(rule, costs(component, WORTH_CODING - JUST_BELOW)) is None
    assert answer(rule, findings()) is None


@pytest.mark.parametrize(("rule", "component"), OWN_CODE.items())
def test_own_code_that_was_not_seen_on_a_core_is_not_advised_to_be_made_cheaper(rule, component):
    asleep = replace(IN_COLLATE, state="sleep")
    assert answer(rule, costs(component, 1.7, lines=(asleep,))) is None
    assert answer(rule, costs(component, 1.7, lines=())) is None


def test_items_that_cost_next_to_nothing_are_fetched_a_batch_at_a_time_instead():
    facts = InputFacts(items_per_batch=256)
    cheap = costs(Component.DATASET_GETITEM, 1.7, facts=facts, per_batch_ms={Component.DATASET_GETITEM: 2.0})
    dear = costs(Component.DATASET_GETITEM, 1.7, facts=facts, per_batch_ms={Component.DATASET_GETITEM: 200.0})
    assert isinstance(answer("fetch-whole-batches", cheap), Advice)
    assert answer("speed-up-getitem", cheap) is None
    assert isinstance(answer("speed-up-getitem", dear), Advice)


@pytest.mark.parametrize(("rule", "component"), USUAL_PARTS.items())
def test_a_usual_part_that_gains_too_little_is_said(rule, component):
    assert_is_refusal(answer(rule, findings(without={component: WORTH_CODING - JUST_BELOW})), "small-gain")
    assert_is_refusal(answer(rule, findings(without={component: forecast(0, 1.2, spread=0.2)})), "small-gain")


@pytest.mark.parametrize(("rule", "reason"), [("pretokenize-dataset", "no-tokenizer"), ("decode-faster", "no-decoder")])
def test_a_part_that_was_not_seen_is_said_where_there_is_a_loader(rule, reason):
    assert_is_refusal(answer(rule, findings()), reason)
    assert answer(rule, findings(loader=None)) is None


def test_a_collate_that_was_not_seen_is_not_worth_a_word():
    assert answer("vectorize-collate", findings()) is None


# ---- pin-memory ------------------------------------------------------------------------------------------------------


def test_pinning_is_refused_without_an_accelerator():
    assert_is_refusal(answer("pin-memory", findings()), "no-device")
    assert answer("pin-memory", findings(accelerator=True)) is None
    assert answer("pin-memory", findings(loader=None)) is None
    assert answer("pin-memory", findings(loader={"num_workers": 0, "pin_memory": True})) is None


# ---- all of them -----------------------------------------------------------------------------------------------------


def test_the_largest_middle_gain_comes_first_and_what_has_none_last():
    advice, _ = advise(
        findings(
            wait=0.02,
            knee=forecast(2, 1.3),
            without={Component.TOKENIZER: 1.8, Component.DECODE: 1.2, Component.COLLATE_FN: 2.4},
            loader={"num_workers": 0, "pin_memory": False, "collate_fn": "__main__.collate"},
            lines=(IN_COLLATE,),
        )
    )
    assert [each.id for each in advice] == [
        "vectorize-collate",
        "pretokenize-dataset",
        "raise-num-workers",
        "decode-faster",
        "stop-tuning-input",
    ]


def test_refusals_come_in_the_order_of_the_rules():
    _, refusals = advise(findings(wait=0.3, knee=forecast(0, 1.0)))
    order = list(RULES)
    assert [each.id for each in refusals] == sorted((each.id for each in refusals), key=order.index)
    assert {each.id for each in refusals} == {
        RAISE,
        "raise-prefetch-factor",
        "pretokenize-dataset",
        "decode-faster",
        "pin-memory",
    }


def test_every_rule_is_kept_under_the_name_of_what_it_advises():
    seen = {
        each.id: each
        for found in (
            findings(workers=1, knee=forecast(3, 1.5), without=dict.fromkeys(PARTS.values(), 1.7), busy=0.5),
            findings(wait=0.0, workers=4, knee=forecast(1, 1.0), busy=0.5),
        )
        for answers in advise(found)
        for each in answers
    }
    assert all(RULES[id] for id in seen)
    assert {each.id for each in seen.values()} <= set(RULES)


def test_nothing_is_said_twice():
    advice, refusals = advise(findings(workers=2, busy=0.5, knee=forecast(3, 1.5)))
    ids = [each.id for each in (*advice, *refusals)]
    assert len(ids) == len(set(ids))


def test_a_run_of_which_nothing_is_known_gets_no_advice():
    nothing = findings(mean=None, loader=None, suggested_workers=None)
    assert advise(nothing) == ([], [])


# ---- when a forecast cannot be trusted -------------------------------------------------------------------------------


def test_without_a_faithful_simulation_no_forecast_is_given():
    doubtful = replace(findings(wait=0.6, knee=forecast(4, 2.0)), reproduced=False)
    assert answer(RAISE, doubtful) == Refusal("raise-num-workers", "not-reproduced")
    assert answer(LOWER, doubtful) is None


def test_torchs_own_collate_function_is_not_to_be_rewritten():
    slow = costs(Component.COLLATE_FN, forecast(None, 1.5))
    own = replace(slow, loader={**slow.loader, "collate_fn": "torch.utils.data._utils.collate.default_collate"})
    assert isinstance(answer("vectorize-collate", slow), Advice)
    assert answer("vectorize-collate", own) == Refusal("vectorize-collate", "torchs-own")


@pytest.mark.parametrize(
    ("collate_fn", "function", "advised"),
    [
        ("__main__.collate", "collate", True),
        ("train.Collator", "Collator.__call__", True),
        ("train.make.<locals>.collate", "make.<locals>.collate", True),
        ("train.collate", "collate.<locals>.<listcomp>", True),
        ("train.make.<locals>.collate", "make.<locals>.collate.<locals>.<genexpr>", True),
        ("functools.partial", "anything", True),
        ("__main__.collate", "Tokenizer.encode", False),
        ("__main__.collate", "encode", False),
    ],
)
def test_a_collate_fn_that_calls_what_costs_the_time_is_not_to_be_vectorised(collate_fn, function, advised):
    loader = {"num_workers": 0, "collate_fn": collate_fn}
    line = HotLine("train.py:7", function, "words = encode(text)", 0.8, "cpu")
    found = replace(findings(without={Component.COLLATE_FN: 1.7}), loader=loader, lines=(line,))
    found = replace(found, judgement=replace(found.judgement, component=Component.COLLATE_FN))
    given = answer("vectorize-collate", found)
    assert isinstance(given, Advice) is advised
    if not advised:
        assert_is_refusal(given, "elsewhere")


def test_a_collate_fn_whose_lines_are_not_known_is_not_to_be_vectorised():
    unseen = replace(costs(Component.COLLATE_FN, 1.7), lines=())
    refused = assert_is_refusal(answer("vectorize-collate", unseen), "lines-unknown")
    text = why_not(refused.id, refused.reason, **refused.values)
    assert "1.7" in text
    assert "--steps" in text


def test_beside_a_tokenizer_in_python_what_is_left_of_collate_fn_is_not_to_be_vectorised():
    slow = costs(Component.COLLATE_FN, 1.2)
    mostly = replace(slow, facts=InputFacts(python_tokenizer_ratio=IN_PYTHON))
    refused = assert_is_refusal(answer("vectorize-collate", mostly), "after-tokenizer")
    assert "50 %" in why_not(refused.id, refused.reason, **refused.values).replace("\N{NO-BREAK SPACE}", " ")
    partly = replace(mostly, facts=InputFacts(python_tokenizer_ratio=IN_PYTHON - 0.01))
    assert isinstance(answer("vectorize-collate", partly), Advice)


def test_where_another_part_costs_more_collate_fn_has_to_be_among_the_lines():
    dataset = HotLine("train.py:3", "Data.__getitem__", "return parse(row)", 0.7, "cpu")
    both = replace(costs(Component.COLLATE_FN, 1.7), lines=(dataset, replace(IN_COLLATE, share=0.2)))
    assert isinstance(answer("vectorize-collate", both), Advice)
    assert_is_refusal(answer("vectorize-collate", replace(both, lines=(dataset,))), "elsewhere")
