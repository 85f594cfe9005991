"""What to change, what it gains, and why the usual changes are not advised where they would not help.

Every rule looks at the findings and answers with advice, with a refusal that is worth telling, or with nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from dlprof.model.advice import Advice, Findings, Refusal
from dlprof.model.kinds import Cause, Component, Confidence
from dlprof.model.report import Evidence, HotLine

WORTH_TRYING = 1.05
"""Middle speedup from which a change is advised."""
WORTH_CODING = 1.10
"""Middle speedup from which a change of code is advised."""
SAME = 1.03
"""Middle speedup below which a setting is as good as another. Source: the knee of the forecast curve."""
FINE_WAIT = 0.05
"""Share of input wait below which the input needs no tuning. Source: XProf's mark at 5 %."""

Answer = Advice | Refusal | None
Rule = Callable[[Findings], Answer]


def advise(findings: Findings) -> tuple[list[Advice], list[Refusal]]:
    """Apply every rule.

    Args:
        findings: What was measured and concluded.

    Returns:
        Advice with the largest middle gain first and that without a forecast last; refusals in the order of the
        rules.
    """
    answers = [rule(findings) for rule in RULES.values()]
    advice = [answer for answer in answers if isinstance(answer, Advice)]
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    advice.sort(key=lambda each: -each.speedup[1] if each.speedup else 0.0)
    return advice, refusals


def _wait_share(findings: Findings) -> float:
    return findings.mean.share(Cause.INPUT_WAIT) if findings.mean else 0.0


def _workers(findings: Findings) -> int:
    return int(findings.loader["num_workers"]) if findings.loader else 0


def _wait_evidence(findings: Findings) -> list[Evidence]:
    return [Evidence("input_wait", round(_wait_share(findings), 4), "ratio")]


def _raise_num_workers(findings: Findings) -> Answer:
    knee = findings.suggested_workers
    if findings.loader is None or knee is None:
        return None
    if not findings.reproduced:
        return Refusal("raise-num-workers", "not-reproduced")
    if findings.taking_turns:
        return Refusal("raise-num-workers", "taking-turns")
    workers = _workers(findings)
    # Also the cautious end of the forecast has to gain.
    if knee.to > workers and knee.speedup[1] >= WORTH_TRYING and knee.speedup[0] >= SAME:
        evidence = [*_wait_evidence(findings), Evidence("cores", findings.cores, "count")]
        if findings.worker_busy_ratio is not None:
            evidence.append(Evidence("worker_busy_ratio", round(findings.worker_busy_ratio, 3), "ratio"))
        return Advice("raise-num-workers", "num_workers", workers, knee.to, knee.speedup, tuple(evidence))
    if _wait_share(findings) < FINE_WAIT:
        return Refusal("raise-num-workers", "no-wait", {"share": _wait_share(findings)})
    if workers >= findings.cores:
        return Refusal("raise-num-workers", "no-cores", {"cores": int(findings.cores)})
    best = max((forecast.speedup for forecast in findings.worker_forecasts), key=lambda each: each[1])
    return Refusal("raise-num-workers", "small-gain", {"gain": best})


def _lower_num_workers(findings: Findings) -> Answer:
    knee = findings.suggested_workers
    workers = _workers(findings)
    if findings.loader is None or knee is None or not workers or not findings.reproduced:
        return None
    # Without any worker nothing is saved but the step time itself; with fewer, memory and cores are.
    least = WORTH_TRYING if knee.to == 0 else 1 / SAME
    # Nobody lowers a setting on a forecast that may be wrong.
    sure = knee.confidence is not Confidence.LOW
    if knee.to < workers and sure and knee.speedup[1] >= least:
        evidence = [*_wait_evidence(findings), Evidence("cores", findings.cores, "count")]
        return Advice("lower-num-workers", "num_workers", workers, knee.to, knee.speedup, tuple(evidence))
    busy = findings.worker_busy_ratio
    return Refusal("lower-num-workers", "needed", {"share": busy}) if busy is not None else None


def _stop_tuning_input(findings: Findings) -> Answer:
    if findings.loader is None or findings.mean is None or _wait_share(findings) >= FINE_WAIT:
        return None
    evidence = _wait_evidence(findings)
    saved = findings.judgement.all_input_saved
    if saved is not None and saved.mid < 1:
        evidence.append(Evidence("speedup_with_instant_data", round(1 / (1 - saved.mid), 3), "x"))
    # The step as it is, so no speedup; what is left to gain is the evidence.
    return Advice("stop-tuning-input", None, None, None, None, tuple(evidence))


def _remove(id_: str, component: Component, missing: str | None) -> Rule:
    """The rule that a component of the data work is worth getting rid of, or making much cheaper."""

    def rule(findings: Findings) -> Answer:
        if not findings.reproduced:
            return None
        forecast = findings.without.get(component)
        if forecast is None:
            return Refusal(id_, missing) if missing and findings.loader is not None else None
        if forecast.speedup[1] < WORTH_CODING or forecast.speedup[0] <= 1:
            return Refusal(id_, "small-gain", {"gain": forecast.speedup})
        wait = Evidence(f"wait_for_{component}", round(findings.waits_ms.get(component, 0.0), 3), "ms")
        return Advice(id_, None, None, None, forecast.speedup, (*_wait_evidence(findings), wait))

    return rule


def _vectorize_collate(findings: Findings) -> Answer:
    answer = _remove("vectorize-collate", Component.COLLATE_FN, None)(findings)
    collate_fn = str(findings.loader.get("collate_fn")) if findings.loader else ""
    if isinstance(answer, Advice) and collate_fn.startswith("torch.utils.data."):
        return Refusal("vectorize-collate", "torchs-own")
    if isinstance(answer, Advice) and findings.judgement.component is Component.COLLATE_FN:
        return _unless_elsewhere(answer, collate_fn, findings.lines)
    return answer


def _unless_elsewhere(advice: Advice, collate_fn: str, lines: tuple[HotLine, ...]) -> Answer:
    """Refuse where most of the time is spent in functions that collate_fn calls."""
    # Of a partial function the function is not known.
    others = [] if collate_fn.startswith("functools.") else [it for it in lines if not _is_of(it.function, collate_fn)]
    if sum(it.share for it in others) * 2 <= sum(it.share for it in lines):
        return advice
    return Refusal("vectorize-collate", "elsewhere", {"function": others[0].function, "line": others[0].where})


def _is_of(function: str, collate_fn: str) -> bool:
    # A collate_fn that is an object is known by its type.
    names = (function, function.removesuffix(".__call__"))
    return any(collate_fn == name or collate_fn.endswith(f".{name}") for name in names)


def _pin_memory(findings: Findings) -> Answer:
    if findings.loader is None or findings.accelerator or findings.loader.get("pin_memory"):
        return None
    return Refusal("pin-memory", "no-device")


RULES: dict[str, Rule] = {
    "raise-num-workers": _raise_num_workers,
    "lower-num-workers": _lower_num_workers,
    "stop-tuning-input": _stop_tuning_input,
    "pretokenize-dataset": _remove("pretokenize-dataset", Component.TOKENIZER, "no-tokenizer"),
    "decode-faster": _remove("decode-faster", Component.DECODE, "no-decoder"),
    "vectorize-collate": _vectorize_collate,
    "pin-memory": _pin_memory,
}
