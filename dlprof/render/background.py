"""The last parts of a report: what was not advised, settings, environment, notices, and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dlprof.model.report import UNKNOWN_HOST, Report
from dlprof.render.blocks import Block, Code, Fact, Facts, Listing, Prose, Section, Table
from dlprof.render.numbers import (
    NOT_MEASURED,
    TIMES,
    count,
    is_number,
    milliseconds,
    percent,
    seconds,
    size_bytes,
    times,
)
from dlprof.render.plain import name, setting, text
from dlprof.words import joined, marked, tr, trn

ENVIRONMENT_ROWS = 60
RANK_ROWS = 64
GPUS = 16
_SHOWN_ELSEWHERE = ("gpus", "spans", "trace", "own_cost_ms_per_step", "during_the_steps")
"""Entries of ``environment`` in the JSON that other sections of the report show."""
_LIMITS = ("cpu_quota", "memory_limit_bytes")
"""Facts that are None where there is no limit."""
_METHOD_OF_TRACE = marked(
    "Read from a trace that torch.profiler exported. Every moment of a step has one cause, the first that holds: the "
    "device computes; it copies; the training loop waits for a batch; a collective runs; the host waits for the "
    "device; operators run on the host, or launch; Python. Removing a cause is taken to save its part."
)


def background(report: Report) -> list[Section | None]:
    """The last sections, in their order."""
    return [
        _ranks(report),
        _why_not(report),
        _traceback(report),
        _settings(report),
        _environment(report),
        _notices(report),
        _method(report),
    ]


def _why_not(report: Report) -> Section | None:
    if not report.not_advised:
        return None
    items = tuple(Fact(name(row.id, 60), text(row.why, 600)) for row in report.not_advised)
    return Section("why-not", tr("Why not?"), (Prose(tr("Usual advice that would not help here.")), Listing(items)))


def _traceback(report: Report) -> Section | None:
    """Where the exception that ended the script was raised, if it came from another process with its stack."""
    detail = report.run.exit.detail
    if not detail or "\n" not in detail.strip():
        return None
    return Section("traceback", tr("Traceback"), (Code(text(detail.rstrip())),), tr("Show it"))


def _ranks(report: Report) -> Section | None:
    if len(report.ranks) < 2:
        return None
    keys = [key for key, value in report.ranks[0].items() if not isinstance(value, dict | list)]
    shown = [labelled(key, None)[0] for key in keys]
    rows = tuple(tuple(labelled(key, rank.get(key))[1] for key in keys) for rank in report.ranks[:RANK_ROWS])
    columns = tuple("number" if is_number(report.ranks[0][key]) else "text" for key in keys)
    table = Table(tr("One row for each rank"), tuple(shown), columns, rows)  # type: ignore[arg-type]
    return Section("ranks", tr("Ranks"), (table,))


def _settings(report: Report) -> Section | None:
    if report.input is None or not report.input.loader:
        return None
    names = {"index": tr("number for --set"), "made_at": tr("made at")}
    facts = tuple(Fact(names.get(key, name(key, 60)), setting(value)) for key, value in report.input.loader.items())
    return Section("settings", tr("Loader settings in force"), (Facts("DataLoader", facts[:ENVIRONMENT_ROWS]),))


def _environment(report: Report) -> Section | None:
    gpus = report.environment.get("gpus")
    others = {key: value for key, value in report.environment.items() if key not in _SHOWN_ELSEWHERE}
    facts = [Fact(*labelled(key, value)) for key, value in flat(others)]
    if report.run.command:
        facts.insert(0, Fact(tr("command"), name(" ".join(report.run.command), 400)))
    facts.insert(0, Fact(tr("host"), tr("not known") if report.host == UNKNOWN_HOST else name(report.host, 80)))
    machine = Facts(tr("Machine and software"), tuple(facts[:ENVIRONMENT_ROWS]))
    during = report.environment.get("during_the_steps")
    load = [Fact(*labelled(key, value)) for key, value in flat(during)] if isinstance(during, dict) else []
    facts_of_steps = [Facts(tr("During the steps"), tuple(load[:ENVIRONMENT_ROWS]))] if load else []
    gpu = gpu_facts(gpus if isinstance(gpus, list) else [])
    return Section("environment", tr("Environment"), (machine, *facts_of_steps, *gpu))


def gpu_facts(gpus: Sequence[Any]) -> list[Facts]:
    """One list a GPU that the run used, as the driver told of it; what it did not tell is left out.

    Args:
        gpus: ``environment["gpus"]`` of a report, as ``dlprof.capture.nvml.load_gpus`` makes it.
    """
    shown = []
    for gpu in [each for each in gpus if isinstance(each, dict)][:GPUS]:
        values = {
            tr("Memory used, at most"): _of(size_bytes, gpu, "memory_used_max_bytes", "memory_total_bytes"),
            tr("Memory of this run, at most"): _of(size_bytes, gpu, "memory_of_run_max_bytes", "memory_total_bytes"),
            tr("Kernels ran (of any process)"): _utilisation(gpu),
            tr("PCIe link"): _pcie(gpu),
            tr("Received over PCIe"): _received(gpu),
            tr("Other processes on it, at most"): _of(count, gpu, "other_processes_max"),
            tr("Divided (MIG)"): tr("yes") if gpu.get("mig") else None,
            tr("Why it is shown"): _why_shown(gpu),
        }
        which = f"GPU {setting(gpu['index'])}" if gpu.get("index") is not None else "GPU"
        model = Fact(which, name(gpu["name"], 80) if gpu.get("name") else tr("model not known"))
        shown.append(Facts(which, (model, *(Fact(label, said) for label, said in values.items() if said is not None))))
    return shown


def _of(shown: Callable[[float | None], str], gpu: Mapping[str, Any], key: str, whole: str | None = None) -> str | None:
    value, total = gpu.get(key), gpu.get(whole) if whole else None
    if not is_number(value):
        return None
    return tr("{part} of {whole}", part=shown(value), whole=shown(total)) if is_number(total) else shown(value)


def _utilisation(gpu: Mapping[str, Any]) -> str | None:
    ratio, samples = gpu.get("utilization_mean_ratio"), gpu.get("utilization_samples")
    if not is_number(ratio):
        return None
    if is_number(samples):
        return tr("{share} of the time, {samples} samples", share=percent(ratio), samples=count(samples))
    return tr("{share} of the time", share=percent(ratio))


def _pcie(gpu: Mapping[str, Any]) -> str | None:
    link, best = gpu.get("pcie_link"), gpu.get("pcie_link_max")
    if not link:
        return tr("up to {link}", link=_link(best)) if best else None
    if best and best != link:
        return tr("{link}; it can do {best}", link=_link(link), best=_link(best))
    return _link(link)


def _link(link: Any) -> str:
    """``4 x16`` in words."""
    generation, _, width = text(str(link), 20).partition(" x")
    return tr("generation {generation}, {width} lanes", generation=generation, width=width) if width else generation


def _received(gpu: Mapping[str, Any]) -> str | None:
    rates = {
        tr("mean"): gpu.get("pcie_received_mean_bytes_per_s"),
        tr("at most"): gpu.get("pcie_received_max_bytes_per_s"),
    }
    return tr(", ").join(f"{how} {size_bytes(rate)}/s" for how, rate in rates.items() if is_number(rate)) or None


def _why_shown(gpu: Mapping[str, Any]) -> str | None:
    if gpu.get("matched_by") != "visible":
        return None
    return tr("the run may see it; which one it used, the driver does not say here")


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested dictionaries, also those in lists, as pairs of a dotted key and a value."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            yield from flat({str(index): item for index, item in enumerate(value)}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def labelled(key: str, value: Any) -> tuple[str, str]:
    """A label without its unit and a value with it, by the ending of the key (``_bytes``, ``_ms``, ``_ratio``, ...)."""
    endings = {"_bytes": size_bytes, "_ms": milliseconds, "_s": seconds, "_ratio": percent}
    for ending, shown in endings.items():
        if key.endswith(ending):
            label = _label(key.removesuffix(ending))
            if is_number(value):
                return label, shown(value)
            if value is None:
                return label, _missing(key)
    return _label(key.removesuffix("_count")), _missing(key) if value is None else setting(value)


def _missing(key: str) -> str:
    return tr("none") if key in _LIMITS else tr("not known")


def _label(key: str) -> str:
    """A key in words; each part of a dotted one by itself."""
    return name(".".join(tr(part.replace("_", " ")) for part in key.split(".")), 60)


def _notices(report: Report) -> Section | None:
    if not report.notices:
        return None
    items = tuple(
        Fact(name(notice.slug, 60) + _often(notice.count), text(notice.text, 600)) for notice in report.notices
    )
    return Section("notices", tr("Notices"), (Listing(items),))


def _often(number: int) -> str:
    return f" ({count(number)}{TIMES})" if number > 1 else ""


def _method(report: Report) -> Section:
    run, overhead = report.run, report.overhead
    blocks: list[Block] = []
    if "trace" in report.environment:
        made = (
            Fact(tr("Steps"), count(run.steps_measured)),
            Fact(tr("Made by"), f"dlprof {name(report.dlprof, 40)}"),
        )
        told = (Prose(tr(_METHOD_OF_TRACE)), Facts(tr("The analysis"), made))
        return Section("method", tr("How it was measured"), told)
    if run.steps_measured:
        sentences = [
            tr("A step is one batch taken by the training loop."),
            trn(
                "Step times and the wait for input come from {steps} step measured by light timers.",
                "Step times and the wait for input come from {steps} steps measured by light timers.",
                run.steps_measured,
                steps=count(run.steps_measured),
            ),
        ]
        if run.steps_traced:
            sentences.append(
                tr(
                    "{steps} steps under torch.profiler tell how the rest of the step divides; their own length is not "
                    "used, since tracing slows them down.",
                    steps=count(run.steps_traced),
                )
            )
        if report.forecast:
            sentences.append(tr("Forecasts replay the measured batches with the other setting."))
        blocks.append(Prose(joined(*sentences)))
    if run.batches_per_optimizer_step is not None and run.batches_per_optimizer_step != 1:
        batches = setting(run.batches_per_optimizer_step)
        blocks.append(
            Prose(tr("The optimizer steps once in {batches} batches (gradient accumulation).", batches=batches))
        )
    cost, traced = overhead.own_cost_ratio, overhead.traced_ratio
    per_step = report.environment.get("own_cost_ms_per_step")
    facts = (
        Fact(tr("Steps measured"), count(run.steps_measured)),
        Fact(tr("Steps traced"), count(run.steps_traced)),
        Fact(tr("Cost of timers and looks"), _own_cost(cost, per_step)),
        Fact(
            tr("A traced step, without its wait for input"),
            tr(NOT_MEASURED)
            if traced is None
            else tr("takes {times} the time of an untraced one", times=times(traced)),
        ),
        Fact(tr("Records lost"), count(overhead.lost_spans)),
        Fact(tr("Made by"), f"dlprof {name(report.dlprof, 40)}"),
    )
    blocks.append(Facts(tr("What looking cost"), facts))
    return Section("method", tr("How it was measured"), tuple(blocks))


def _own_cost(ratio: float | None, per_step_ms: Any) -> str:
    if ratio is None:
        return tr(NOT_MEASURED)
    share = tr("{share} of the CPU time it looked at", share=percent(ratio))
    if not is_number(per_step_ms):
        return share
    # Where the run mostly waits, little is a large part of the CPU time.
    return tr("{share}, {time} per step", share=share, time=milliseconds(per_step_ms))
