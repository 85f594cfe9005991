"""Two runs compared, for the tests of `dlprof.render`: recorded ones, and some made by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from report_cases import CONTROL, MARKUP, gpu, images, tokenizer

from dlprof.compare import Subject, compare_runs
from dlprof.formats import run_file
from dlprof.model.compare import Caution, Compare, Fact, SettingChange
from dlprof.render.wording import compare_conclusion
from dlprof.words import language, speaking

RECORDED = Path(__file__).parents[1] / "data"
CREATED = "2026-12-01T09:00:00+00:00"


def recorded(name: str) -> Subject:
    return _recorded(name, language())


@functools.cache
def _recorded(name: str, language: str) -> Subject:
    # Its sentences are said in the language in force.
    with speaking(language):
        return Subject.of(f"dlprof-runs/{name}", run_file.load(RECORDED / name / run_file.NAME))


def workers() -> Compare:
    """The same script, recorded without workers and with two."""
    return compare_runs(recorded("text-0-workers"), recorded("text-2-workers"), CREATED)


def slower() -> Compare:
    """The other way round."""
    return compare_runs(recorded("text-2-workers"), recorded("text-0-workers"), CREATED)


def itself() -> Compare:
    """A run with itself."""
    return compare_runs(recorded("text-0-workers"), recorded("text-0-workers"), CREATED)


def reports_only() -> Compare:
    """Another script on another machine with other batches, of which only the reports are left."""
    first = replace(tokenizer(), environment=tokenizer().environment | {"cores": 2})
    other = images()
    other = replace(other, host="node-7", environment=other.environment | {"cores": 16, "cpu_count": 32})
    return compare_runs(Subject.of("a/report.json", first), Subject.of("b/report.json", other), CREATED)


def nothing_measured() -> Compare:
    """The second run ended before its first step."""
    empty = replace(gpu(), steps=[], budget=[], input=None, step=replace(gpu().step, mean_ms=None))
    empty = replace(empty, run=replace(empty.run, steps_measured=0))
    return compare_runs(Subject.of("a/report.json", tokenizer()), Subject.of("b/report.json", empty), CREATED)


def hostile() -> Compare:
    """Markup, control characters and endless names in every string that a script or a path can choose."""
    made = workers()
    long = MARKUP * 400
    sides = [
        replace(side, source=CONTROL + long, host=MARKUP, command=["python", long + ".py", CONTROL], headline=long)
        for side in (made.before, made.after)
    ]
    found = replace(
        made,
        created=MARKUP,
        before=sides[0],
        after=sides[1],
        settings=[SettingChange(MARKUP, CONTROL, long, None), *made.settings],
        facts=[Fact(long, CONTROL, [MARKUP])],
        cautions=[Caution(MARKUP, CONTROL + long)],
    )
    return replace(found, conclusion=compare_conclusion(found))


CASES: dict[str, Callable[[], Compare]] = {
    "workers": workers,
    "slower": slower,
    "itself": itself,
    "reports-only": reports_only,
    "nothing-measured": nothing_measured,
    "hostile": hostile,
}
