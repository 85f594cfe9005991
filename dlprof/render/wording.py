"""The words that go into a `Report`: headline, advice, reasons, notices, and people's names for causes.

All sentences stand in ``templates/messages.toml``; here is only which one is taken and with which numbers.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2

from dlprof.model.compare import Compare, Direction
from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence
from dlprof.model.pipeline import BOTTLENECK_OF, OUTSIDE_INPUT
from dlprof.model.report import AdviceRow, BudgetRow, Evidence, StepTimes
from dlprof.model.tune import Ending, TrialRow
from dlprof.render.numbers import count, gain, is_number, milliseconds, percent, with_unit
from dlprof.render.plain import name
from dlprof.render.templates import messages, sentence
from dlprof.words import joined, marked, said, tr

FINE_WAIT = 0.05
"""Share of input wait below which it is fine.

Source: XProf's input-bound marks, 5 % and 20 %.
"""

HIGH_WAIT = 0.20
"""Share of input wait from which it is high. Source: as `FINE_WAIT`."""

STEPS_FOR_HIGH = 30
"""Measured steps from which confidence can be high."""

STEPS_FOR_MEDIUM = 10
"""Measured steps below which confidence is low."""

_WORTH = 0.02
"""Share of the step from which another part of the bottleneck is named beside the largest."""
UNSTEADY = 0.1
"""How far apart runs with the same settings may lie before it is said."""

_TORCHS_PREFETCH = 2
"""torch's own, where a loader has workers and says nothing of it."""
_CONFIDENCE = {
    Confidence.HIGH: marked("High confidence"),
    Confidence.MEDIUM: marked("Medium confidence"),
    Confidence.LOW: marked("Low confidence"),
}
_LONGEST_COMMAND = 300
_LISTS = ("changes", "reasons", "loaders", "settings", "rows")
"""Values of notices that are lists: half of one would answer nothing."""

TRANSFORMERS_NAMES = {
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "persistent_workers": "dataloader_persistent_workers",
}


def cause_name(cause: Cause) -> str:
    """A budget cause for people: ``waiting for input``."""
    return _name("cause", cause.value)


def component_name(component: Component) -> str:
    """A component for people: ``tokenizer``, ``waiting for a CPU core``."""
    return _name("component", component.value)


def bottleneck_name(bottleneck: Bottleneck) -> str:
    """A bottleneck for people: ``CPU preprocessing``."""
    return _name("bottleneck", bottleneck.value)


def metric_name(metric: str) -> str:
    """A metric of the evidence for people; one without an entry in ``[metric]`` is shown as words, without its unit."""
    if _catalogue("metric", metric) is None:
        metric = metric.replace("_ms_per_", "_per_")
        for ending in ("_ms", "_s", "_ratio", "_bytes", "_count"):
            metric = metric.removesuffix(ending)
    return _name("metric", metric)


def device_word(device: str) -> str:
    """What to call the device of a run: ``CPU``, ``GPU``, ``device``.

    Args:
        device: As in ``run.device``: ``cpu``, ``cuda:0``, ...
    """
    kind = device.partition(":")[0].lower()
    return {"cpu": "CPU", "cuda": "GPU", "mps": "GPU", "xpu": "GPU"}.get(kind) or tr("device")


@said
def headline(
    bottleneck: Bottleneck,
    component: Component | None,
    share: float | None,
    confidence: Confidence,
    step: StepTimes,
    budget: Sequence[BudgetRow],
    device: str,
    *,
    reason: str | None = None,
    line: str | None = None,
) -> str:
    """The one sentence that a report opens with.

    Args:
        bottleneck: What bounds the step.
        component: The part of it, where known.
        share: 0 to 1 of the mean step that removing it would save; for compute the busy part.
        confidence: A low one adds "probably".
        step: Step times; the mean may be None.
        budget: Rows of the budget, in any order; may be empty.
        device: As in ``run.device``.
        reason: For ``inconclusive``: why, as `inconclusive_reason` words it.
        line: Where in the user's code most of it is spent, as ``file:line``.
    """
    probably = tr("probably ") if confidence is Confidence.LOW else ""
    if bottleneck is Bottleneck.DEVICE_COMPUTE:
        return _compute_headline(share, probably, step, budget, device)
    if bottleneck is Bottleneck.BALANCED:
        return _balanced_headline(step, budget)
    if bottleneck is Bottleneck.INCONCLUSIVE:
        text = reason or inconclusive_reason("unknown")
        return sentence(_catalogue("headline", "inconclusive"), reason=text.strip().rstrip(".。"))
    entry = _catalogue("bottleneck", bottleneck.value)
    subject = tr((_catalogue("component", component.value) if component else entry)["subject"])
    amount = ""
    if share is not None and step.mean_ms is not None:
        amount = _amount_of_budget(bottleneck, component, step.mean_ms, budget)
        amount = amount or _amount_text(bottleneck, component, share, step.mean_ms, _wait_share(budget))
    unseen = bottleneck is Bottleneck.INPUT_PIPELINE and component is None
    return sentence(
        _catalogue("headline", "invisible" if unseen else "bound"),
        opening=sentence(entry["opening"], probably=probably),
        subject=subject,
        amount=amount,
        line=line or "",
    )


def _amount_of_budget(
    bottleneck: Bottleneck, component: Component | None, step_ms: float, budget: Sequence[BudgetRow]
) -> str:
    """What a bottleneck outside the input takes, as the budget has it; empty where it does not."""
    rows = [row for row in budget if row.cause in OUTSIDE_INPUT.get(bottleneck, ()) and row.ms_per_step > 0]
    # Of several causes the component names the one that the sentence is about.
    named = next((row for row in rows if len(rows) == 1 or row.cause.value == component), None)
    if named is None:
        return ""
    others = [(cause_name(row.cause), percent(row.share)) for row in rows if row is not named and row.share >= _WORTH]
    values = {"share": percent(named.share), "cost": milliseconds(named.ms_per_step), "step": milliseconds(step_ms)}
    return sentence(_catalogue("headline", "amount-beside"), others=others, **values)


def _amount_text(
    bottleneck: Bottleneck, component: Component | None, share: float, step_ms: float, wait: float | None
) -> str:
    """What a bottleneck costs; never a wait above the measured one."""
    values = _amount(share, step_ms)
    if component is Component.WORKER_STARTUP:
        # The start is in no step, and the share is that of a step together with its part of the start.
        values["cost"] = milliseconds(share / (1 - share) * step_ms)
        return sentence(_catalogue("headline", "amount-outside"), **values)
    # Data work may also take cores from the step: without it more would be saved than was waited.
    beyond = bottleneck in BOTTLENECK_OF.values() and wait is not None and share > wait
    slug = "amount-beyond-wait" if beyond and percent(share) != percent(wait) else "amount"
    if beyond and slug == "amount" and wait is not None:
        values = _amount(wait, step_ms)
    # The share is that of the whole bottleneck, of which the component is the largest part.
    return sentence(_catalogue("headline", slug), wait=percent(wait), bottleneck=bottleneck_name(bottleneck), **values)


def _amount(share: float, step_ms: float) -> dict[str, str]:
    return {
        "share": percent(share),
        "cost": milliseconds(share * step_ms),
        "step": milliseconds(step_ms),
    }


def _compute_headline(
    share: float | None, probably: str, step: StepTimes, budget: Sequence[BudgetRow], device: str
) -> str:
    wait = _wait_share(budget)
    amount = {"share": ""}
    if share is not None and step.mean_ms is not None:
        amount = _amount(share, step.mean_ms)
    return sentence(
        _catalogue("headline", "compute"),
        probably=probably,
        device=tr("the {device}", device=device_word(device)),
        wait_known=wait is not None,
        wait=percent(wait),
        level=_wait_level(wait),
        **amount,
    )


def _wait_share(budget: Sequence[BudgetRow]) -> float | None:
    """The measured wait for input, 0 to 1; None without a budget."""
    return next((row.share for row in budget if row.cause is Cause.INPUT_WAIT), 0.0 if budget else None)


def _wait_level(share: float | None) -> str:
    if share is None:
        return "unknown"
    return "fine" if share < FINE_WAIT else "moderate" if share < HIGH_WAIT else "high"


def _balanced_headline(step: StepTimes, budget: Sequence[BudgetRow]) -> str:
    rows = [row for row in budget if row.cause not in (Cause.DEVICE_COMPUTE, Cause.OTHER)]
    largest = max(rows, key=lambda row: row.ms_per_step, default=None)
    if largest is None or step.mean_ms is None or largest.ms_per_step <= 0:
        return sentence(_catalogue("headline", "balanced"), largest="")
    amount = _amount(largest.share, step.mean_ms)
    return sentence(_catalogue("headline", "balanced"), largest=cause_name(largest.cause), **amount)


@said
def inconclusive_reason(slug: str, /, **values: Any) -> str:
    """Why there is no verdict, as a clause without a full stop.

    Args:
        slug: A key of ``[inconclusive]``: ``no-steps``, ``few-steps`` (steps), ``threshold`` (first, low, high),
            ``overlap`` (first, second), ``not-recorded`` (what). Another one is shown as words.
        values: Its placeholders; shares as numbers of 0 to 1 for ``low`` and ``high``; a bottleneck is named.
    """
    shown = {key: percent(value) if key in ("low", "high") else value for key, value in values.items()}
    shown |= {key: bottleneck_name(value) for key, value in values.items() if isinstance(value, Bottleneck)}
    return _filled("inconclusive", slug, shown).rstrip(".。")


def confidence_name(confidence: Confidence) -> str:
    """A verdict's confidence for people: ``High confidence``."""
    return tr(_CONFIDENCE[confidence])


def confidence_reason(confidence: Confidence, steps: int, notices: Sequence[str]) -> str:
    """Why the verdict's confidence is what it is, as a clause.

    Args:
        confidence: The verdict's.
        steps: Measured steps.
        notices: Slugs of the report's notices.
    """
    if confidence is Confidence.HIGH:
        slug = "high"
    elif steps == 0:
        slug = "no-steps"
    elif confidence is Confidence.MEDIUM:
        slug = "some-steps" if steps < STEPS_FOR_HIGH else "close"
    elif steps < STEPS_FOR_MEDIUM:
        slug = "few-steps"
    elif "drift" in notices:
        slug = "drift"
    elif "simulator-off" in notices:
        slug = "simulator-off"
    elif "script-ahead" in notices:
        slug = "script-ahead"
    elif "cores-busy" in notices:
        slug = "cores-busy"
    elif {"no-trace", "trace-skipped-user-profiler"} & set(notices):
        slug = "no-trace"
    else:
        slug = "missing"
    return sentence(_catalogue("confidence", slug), steps=steps)


def advice_title(id: str, from_: Any = None, to: Any = None) -> str:
    """What to do, as one imperative line without a full stop.

    Args:
        id: An advice id; an unknown one is shown as words.
        from_: The setting's value in force.
        to: The suggested value.
    """
    entry = _catalogue("advice", id)
    values = {"from": name(from_), "to": name(to)}
    if entry is not None:
        try:
            return sentence(entry["title"], **values)
        except (jinja2.TemplateError, KeyError):
            pass
    change = f": {values['from']} → {values['to']}" if to is not None else ""
    return _as_words(id) + change


@said
def advice_text(
    id: str,
    setting: str | None,
    from_: Any,
    to: Any,
    speedup: Sequence[float] | None,
    evidence: Sequence[Evidence],
    loader: Mapping[str, Any],
    device: str = "cpu",
    command: Sequence[str] = (),
) -> str:
    """How to follow a piece of advice: sentences, and the lines to paste, indented by four spaces.

    Args:
        id: An advice id. One without a section in the catalogue gets a line made of the setting.
        setting: What is changed, such as ``num_workers``; None where it is code.
        from_: The value in force.
        to: The suggested value.
        speedup: low, middle, high of old over new step time; None where it is not forecast.
        evidence: The numbers behind the advice.
        loader: The loader's settings in force, by torch's names. ``made_by`` (the module that made the loader)
            may name ``transformers``: then the Trainer's names are given. ``made_anew``: for each epoch.
        device: As in ``run.device``.
        command: What was started, as in ``run.command``.
    """
    values = {
        "command": dlprof_target(command),
        "setting": setting,
        "from": from_,
        "to": to,
        "gain": gain(speedup) if speedup is not None and speedup[1] > 1.005 else "",
        "evidence": {item.metric: with_unit(item.value, item.unit) for item in evidence},
        "loader": dict(loader),
        "device": device,
        "loader_lines": "",
    }
    if setting == "num_workers" and isinstance(to, int):
        values["loader_lines"] = _loader_lines(to, loader)
    entry = _catalogue("advice", id)
    if entry is not None:
        try:
            return _with_place(sentence(entry["how"], **values), loader)
        except (jinja2.TemplateError, KeyError, TypeError):
            pass
    return f"{tr('Set it where the DataLoader is made:')}\n\n    DataLoader(..., {setting}={to!r})" if setting else ""


def advice_caveat(row: AdviceRow) -> str:
    """What a forecast takes for granted that was not seen, as a short clause; empty where nothing."""
    source = _catalogue("advice", row.id, "caveat")
    values = {item.metric: with_unit(item.value, item.unit) for item in row.evidence}
    return sentence(source, evidence=values, to=row.to) if source else ""


def dlprof_target(command: Sequence[str]) -> str:
    """What stands after dlprof's options to start the same: ``train.py --lr 1``, ``-m package``, ``-- torchrun ...``.

    Args:
        command: What was started; three dots stand for one that is not known or too long to paste.
    """
    first, *rest = command or ("",)
    if not os.path.isabs(first) or not os.path.basename(first).startswith("python") or not rest:
        target, arguments = ["--", first], rest
    else:
        # A script or a module is started by the Python that runs dlprof, by its whole path.
        target, arguments = rest[: 1 + (rest[0] == "-m")], rest[1 + (rest[0] == "-m") :]
        if arguments and arguments[0].startswith("--"):
            # Else dlprof might take it for its own.
            arguments = ["--", *arguments]
    text = shlex.join([*target, *arguments])
    return text if first and len(text) <= _LONGEST_COMMAND and text.isprintable() else "..."


def _with_place(how: str, loader: Mapping[str, Any]) -> str:
    """Say above the first line to paste that is about the loader which loader it is."""
    if not loader.get("made_at"):
        return how
    return re.sub(r"^    DataLoader\(", f"    # {name(loader['made_at'])}\n\\g<0>", how, count=1, flags=re.MULTILINE)


def _loader_lines(workers: int, loader: Mapping[str, Any]) -> str:
    arguments: dict[str, Any] = {"num_workers": workers}
    if workers > 0:
        prefetch = loader.get("prefetch_factor")
        if isinstance(prefetch, int) and prefetch not in (0, _TORCHS_PREFETCH):
            arguments["prefetch_factor"] = prefetch
        if not loader.get("made_anew"):
            arguments["persistent_workers"] = True
    return _arguments_line(arguments, loader)


def _arguments_line(arguments: Mapping[str, Any], loader: Mapping[str, Any]) -> str:
    if "transformers" in str(loader.get("made_by", "")):
        arguments = {TRANSFORMERS_NAMES.get(key, f"dataloader_{key}"): value for key, value in arguments.items()}
        return f"    TrainingArguments(..., {_as_arguments(arguments)})"
    return f"    DataLoader(..., {_as_arguments(arguments)})"


def _as_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def settings_name(settings: Mapping[str, Any]) -> str:
    """Loader settings for people: ``num_workers=2, prefetch_factor=4``."""
    if not settings:
        return sentence(_catalogue("tune", "as-it-is"))
    return name(", ".join(f"{key}={value}" for key, value in settings.items()))


@said
def failure_text(slug: str) -> str:
    """Why a run of ``dlprof tune`` does not count: a key of ``[tune]``."""
    return tune_text(slug)


def tune_text(slug: str, /, **values: Any) -> str:
    """A sentence of ``[tune]``.

    Args:
        slug: Its key.
        values: Its placeholders.
    """
    return sentence(_catalogue("tune", slug), **values)


@said
def tune_conclusion(rows: Sequence[TrialRow], winner: int | None, ending: Ending, *, repeats: bool = False) -> str:
    """What trying settings has shown, as the sentences that its report opens with.

    Args:
        rows: The script's own settings first, then the trials.
        winner: The number of the settings that win, None where none do.
        ending: Why no more was tried.
        repeats: Whether more workers were not tried since each would give all samples again.
    """
    sentences = [_tune_found(rows, winner, ending), _missed_forecast(rows, winner)]
    return joined(*sentences, tune_text("repeats") if repeats else "")


def _missed_forecast(rows: Sequence[TrialRow], winner: int | None) -> str:
    """That what was measured of the settings that are named lies outside their forecast; empty where it does not."""
    measured = [row for row in rows[1:] if row.speedup and row.step_ms]
    named = [row for row in measured if row.number == winner] if winner is not None else measured
    best = max(named, key=lambda row: row.speedup[1] if row.speedup else 0.0, default=None)
    if best is None or best.forecast is None or best.step_ms is None:
        return ""
    low, middle, high = best.forecast.step_ms
    if low <= best.step_ms[2] and best.step_ms[0] <= high:
        return ""
    return tune_text("missed", forecast=milliseconds(middle), how="short" if high < best.step_ms[0] else "long")


def _tune_found(rows: Sequence[TrialRow], winner: int | None, ending: Ending) -> str:
    if winner is not None:
        won = next(row for row in rows if row.number == winner)
        old, new = (row.step_ms[1] if row.step_ms else None for row in (rows[0], won))
        values = {"settings": settings_name(won.settings), "gain": gain(won.speedup)}
        once = len([run for run in won.runs if run.failure is None]) == 1
        return tune_text("won", old=milliseconds(old), new=milliseconds(new), once=once, **values)
    if not any(row.step_ms for row in rows[1:]):
        slug = f"nothing-measured-{ending.value}"
        return tune_text(slug if _catalogue("tune", slug) else "nothing-measured", tried=len(rows) - 1)
    measured = [(row.speedup[1], row) for row in rows[1:] if row.speedup]
    if not measured:
        return tune_text("nothing-measured", tried=len(rows) - 1)
    best = max(measured, key=lambda item: item[0])[1]
    gap = largest_gap(rows)
    return tune_text(
        "not-better",
        settings=settings_name(best.settings),
        gain=gain(best.speedup),
        unsteady=percent(gap) if gap > UNSTEADY else "",
    )


def largest_gap(rows: Sequence[TrialRow]) -> float:
    """How far apart the runs with one setting lie at most, as a share of the faster one."""
    times = [[run.step_ms for run in row.runs if run.step_ms] for row in rows]
    return max((max(own) / min(own) - 1 for own in times if own), default=0.0)


@said
def tune_how(settings: Mapping[str, Any], loader: Mapping[str, Any]) -> str:
    """How to keep settings that won: sentences, and the lines to paste, indented by four spaces.

    Args:
        settings: What won.
        loader: The loader's settings as the script makes it, by torch's names.
    """
    line = _arguments_line(settings, loader)
    old, new = loader.get("num_workers"), settings.get("num_workers")
    if not isinstance(old, int) or not isinstance(new, int):
        return _with_place(tune_text("how", line=line), loader)
    entry = _catalogue("advice", "raise-num-workers" if new > old else "lower-num-workers")
    values = {"from": old, "to": new, "gain": "gain", "loader_lines": line, "loader": dict(loader), "evidence": {}}
    return _with_place(sentence(entry["how"], **values), loader)


def fact_name(what: str) -> str:
    """A fact of a run for people, as two runs are compared: ``usable cores``."""
    return _name("fact", what)


@said
def caution_text(slug: str, /, **values: Any) -> str:
    """What to know before two runs are compared, one or two sentences; arguments as for `compare_text`."""
    return compare_text(slug, **values)


def compare_text(slug: str, /, **values: Any) -> str:
    """A sentence of ``[compare]``.

    Args:
        slug: Its key.
        values: Its placeholders; a list becomes names of facts, and ``count`` how many.
    """
    shown: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, list):
            shown |= {key: tr(", ").join(map(fact_name, value)), "count": len(value)}
        else:
            shown[key] = count(round(value, 2)) if is_number(value) else _shown(key, value)
    return sentence(_catalogue("compare", slug), **shown)


@said
def compare_conclusion(compared: Compare, *, few: bool = False) -> str:
    """What two runs have shown, as the one sentence that their report opens with.

    Args:
        compared: The result; its own conclusion is not looked at.
        few: Whether more steps would have told them apart, if they are not told apart.
    """
    step = compared.step
    values: dict[str, Any] = {
        "per": compared.per,
        "old": milliseconds(step.before_ms) if step.before_ms is not None else "",
        "new": milliseconds(step.after_ms) if step.after_ms is not None else "",
    }
    if step.direction is Direction.SAME:
        others = any(caution.slug == "loaded" for caution in compared.cautions)
        steps = {"before": compared.before.steps, "after": compared.after.steps}
        return compare_text("not-significant", loads=others, few=few, **steps, **values)
    if step.direction is Direction.UNKNOWN or step.speedup is None:
        return compare_text("unknown", **values)
    faster = step.direction is Direction.SHORTER
    low, middle, high = step.speedup
    factor = step.speedup if faster else (1 / high, 1 / middle, 1 / low)
    changed = [row for row in compared.causes if row.direction is step.direction]
    part = ""
    if changed:
        # The rows stand in the order of their change.
        row = changed[0]
        part = compare_text(
            "part-less" if faster else "part-more",
            cause=cause_name(row.cause),
            old=milliseconds(row.before_ms),
            new=milliseconds(row.after_ms),
        )
    return compare_text("faster" if faster else "slower", gain=gain(factor), part=part, **values)


@said
def why_not(id: str, reason: str, /, **values: Any) -> str:
    """Why a usual piece of advice is not given, as one sentence.

    Args:
        id: The advice id.
        reason: A key of ``[why-not.ID]`` or ``[why-not.any]``; an unknown one is shown as words.
        values: Placeholders of that sentence. ``share`` may be a number of 0 to 1, ``gain`` a speedup triple; a name
            that ends with ``_ms`` is shown with its unit.
    """
    formats: dict[str, Callable[[Any], str]] = {"share": percent, "gain": gain}
    shown = {
        key: formats[key](value) if key in formats and not isinstance(value, str) else _shown(key, value)
        for key, value in values.items()
    }
    catalogue = _catalogue("why-not") or {}
    section = id if reason in catalogue.get(id, {}) else "any"
    return _filled("why-not", reason, shown, section)


@said
def notice_text(slug: str, /, **values: Any) -> str:
    """A notice for people, one or two sentences.

    Args:
        slug: A key of ``[notice]``; an unknown one is shown as words, with the values.
        values: Placeholders. A name that ends with ``_ms`` or ``_bytes`` is shown with its unit, ``share`` as a
            percentage.
    """
    shown = {key: _shown(key, value) for key, value in values.items()}
    return _filled("notice", slug, shown)


def _shown(key: str, value: Any) -> Any:
    if key.endswith("_ms") and is_number(value):
        return milliseconds(value)
    if key == "share" and is_number(value):
        return percent(value)
    if key in ("reason", "cause"):
        return tr(name(value, 400))
    if key.endswith("_bytes") and is_number(value):
        return with_unit(value, "bytes")
    if isinstance(value, str):
        return name(value, 4000 if key in _LISTS else 400)
    return value


def _catalogue(*keys: str) -> Any:
    found: Any = messages()
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def _name(section: str, key: str) -> str:
    found = _catalogue(section, key)
    if isinstance(found, dict):
        found = found.get("name")
    return tr(found) if isinstance(found, str) else key.replace("_", " ")


def _filled(section: str, slug: str, values: Mapping[str, Any], *within: str) -> str:
    source = _catalogue(section, *within, slug)
    if isinstance(source, str):
        try:
            return sentence(source, **values)
        except (jinja2.TemplateError, TypeError):
            pass
    pairs = ", ".join(f"{_label(key)} {_plain(value)}" for key, value in values.items())
    return f"{_as_words(slug)}{f' ({pairs})' if pairs else ''}."


def _label(key: str) -> str:
    return key.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")


def _plain(value: Any) -> str:
    return count(value) if is_number(value) else name(value)


def _as_words(slug: str) -> str:
    words = slug.replace("-", " ").replace("_", " ")
    return words[:1].upper() + words[1:]
