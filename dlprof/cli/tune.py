"""``dlprof tune``: run the script as it is, then with other loader settings, and keep what is measured to be faster."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click

from dlprof.capture.outcome import Outcome
from dlprof.cli import terminal
from dlprof.cli.apart import apart
from dlprof.cli.argv import RunRequest
from dlprof.cli.options import TUNE_OPTIONS, with_options
from dlprof.cli.progress import duration, open_display
from dlprof.cli.run import Attempt, ScriptCommand, check_target, run_once, say_whose_options, target_name
from dlprof.cli.run_folder import RunFolder, launched_rank, prepare, prepare_several
from dlprof.cli.summary import Summary
from dlprof.errors import DlprofError, UsageError
from dlprof.formats.settings_file import Override, Settings
from dlprof.model.tune import BASELINE, Candidate, Ending, Failure, Measured, Plan, Tried
from dlprof.whatif.trials import REPEATS, affordable, choose, fail_alike, finalists, fits
from dlprof.words import shown, tr, trn

_MB = 1_000_000
_AS_IT_IS = Candidate({}, None)
_ENDS_ALL = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


@click.command(
    cls=ScriptCommand,
    short_help="Try loader settings for real, keep what is measured.",
    epilog="--steps and --trace-steps may also stand directly after SCRIPT or MODULE, as for 'dlprof run'.",
)
@with_options(TUNE_OPTIONS)
@click.pass_obj
def tune(
    request: RunRequest,
    trials: int,
    budget: int | None,
    steps: int | None,
    warmup: int,
    trace_steps: int,
    sample_hz: int,
    out: str | None,
    force: bool,
    formats: tuple[str, ...],
    max_disk: int,
) -> int:
    """Try DataLoader settings for real, and keep what is measured to be faster.

    The script runs as it is first; then with the settings that promise most by forecast; then with the two best and
    as it is once more. So it is started up to TRIALS + 4 times, from its beginning each time, and each time stopped
    after the steps. Its output is its own in every run; what it writes to files it writes in every run.
    """
    check_target(request)
    if launched_rank(os.environ) is not None:
        raise UsageError(
            "tune-launched",
            tr("dlprof tune starts the script several times and cannot be one of several processes itself"),
            tr("put the launcher behind it: dlprof tune -- torchrun ..."),
        )
    folder = prepare_several(out, target_name(request), force=force)
    settings = Settings(steps, warmup, trace_steps, max_disk * _MB, os.getpid(), sample_hz=sample_hz)
    say_whose_options(request)
    return _Tuning(request, folder, settings, formats, trials, budget).run()


@dataclass(frozen=True, slots=True)
class _Analysed:
    """What comes back of a run's analysis."""

    status: int
    measured: Measured
    failures: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    summary: Summary | None = None


class _Interrupted(Exception):  # noqa: N818 - not an error
    """A signal that ends everything came to dlprof or to the script."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class _Tuning:
    """One ``dlprof tune``, from the first run to the report."""

    def __init__(
        self,
        request: RunRequest,
        folder: RunFolder,
        settings: Settings,
        formats: tuple[str, ...],
        most: int,
        budget_s: float | None,
    ) -> None:
        self._request = request
        self._folder = folder
        self._settings = settings
        self._formats = formats
        self._most = most
        self._budget_s = budget_s
        self._began = time.monotonic()
        self._tried: list[Tried] = []
        self._plan = Plan("", ())

    def run(self) -> int:
        """Run everything; returns the exit status."""
        status = 0
        try:
            failed = self._baseline()
            if failed is not None:
                return failed
            ending = self._trials()
        except (_Interrupted, KeyboardInterrupt) as interruption:
            ending = Ending.INTERRUPTED
            status = interruption.status if isinstance(interruption, _Interrupted) else 128 + signal.SIGINT
            if not self._tried or self._tried[0].mean_ms is None:
                terminal.say(tr("interrupted before the script was measured as it is"))
                return status
        except RuntimeError as error:
            return self._not_compared(error, status)
        try:
            lines, failures = apart(lambda: self._concluded(ending))
        except (RuntimeError, DlprofError) as error:
            return self._not_compared(error, status)
        terminal.say(*lines)
        for failure in failures:
            terminal.say(failure)
        return status

    def _not_compared(self, error: Exception, status: int) -> int:
        """The script was good, whatever fails after it."""
        what = str(error).partition("\n")[0]
        terminal.say(
            tr("the runs could not be compared ({what})", what=what),
            tr("each of them is in {path}", path=self._folder.path),
        )
        return status

    # ---- what is run

    def _baseline(self) -> int | None:
        """Run the script as it is; returns the exit status where that failed."""
        most = self._most + REPEATS + 1
        terminal.say(
            tr(
                "tuning {target}: it is started up to {most} times, first as it is",
                target=self._request.target,
                most=most,
            )
        )
        try:
            attempt = self._run(BASELINE, _AS_IT_IS, "baseline")
        except UsageError:
            self._folder.discard()
            raise
        if attempt.status or attempt.finished is None:
            again = tr("its report: {path}", path=self._folder.path / "baseline")
            terminal.say(tr("the script failed as it is, so nothing was tried"), again)
            return attempt.status
        self._plan = apart(lambda: _planned(self._folder.path / "baseline"))
        self._tried[0] = replace(self._tried[0], candidate=Candidate({}, None, self._plan.cost))
        return None

    def _trials(self) -> Ending:
        """Run what promises most, then the best again; returns why no more was run."""
        if self._plan.ending is not None or self._tried[0].mean_ms is None:
            return self._plan.ending or Ending.NO_FORECAST
        chosen = choose(self._plan.candidates, self._most)
        if not chosen:
            return Ending.NOTHING_TO_GAIN
        run_s = self._tried[0].runs[0].elapsed_s
        count = affordable(self._budget_s, self._elapsed_s, run_s, len(chosen))
        if count:
            others = trn("{count} other setting", "{count} other settings", count, count=count)
            terminal.say(
                tr(
                    "trying {settings}, about {time} each, and then the best again",
                    settings=others,
                    time=duration(run_s),
                )
            )
        for number, candidate in enumerate(chosen[:count], 1):
            if not fits(self._budget_s, self._elapsed_s, run_s):
                return Ending.BUDGET
            terminal.say(
                tr("trial {number} of {count}: {settings}", number=number, count=count, settings=_promised(candidate))
            )
            self._run(number, candidate, f"trial-{number}")
            if fail_alike(self._tried):
                return Ending.TRIALS_FAIL
        for each in self._again():
            if not fits(self._budget_s, self._elapsed_s, run_s):
                return Ending.BUDGET
            folder = "baseline" if each.number == BASELINE else f"trial-{each.number}"
            terminal.say(tr("again: {settings}", settings=_named(each.candidate)))
            self._run(each.number, each.candidate, f"{folder}-again")
        return Ending.COMPLETE if count == len(chosen) else Ending.BUDGET

    def _again(self) -> list[Tried]:
        """The best, with the settings in force between them, so that no slow change of the machine favours one."""
        best = finalists(self._tried)
        return [*best[:1], self._tried[0], *best[1:]] if best else []

    def _run(self, number: int, candidate: Candidate, name: str) -> Attempt:
        """Run the script once and add the run to what was tried.

        Raises:
            UsageError: It cannot be started.
            _Interrupted: By a signal, after the run was added.
        """
        first = not self._tried
        overrides = tuple(Override(self._plan.loader, key, value) for key, value in candidate.settings.items())
        settings = self._settings if first else replace(self._settings, trace_steps=0, overrides=overrides)
        folder = prepare(str(self._folder.path / name), name, force=False, environ={})
        # Where lines cannot be redrawn, a line or two for each trial are enough.
        display = open_display(self._request.target, settings, quiet=not first and not terminal.is_terminal())
        began = time.monotonic()
        attempt = run_once(
            self._request.command,
            settings,
            folder,
            display,
            started=display.started if first else lambda: None,
            finish=lambda outcome: apart(lambda: self._analysed(folder.path, name, outcome, first)),
            show=lambda _: None,
        )
        elapsed_s = time.monotonic() - began
        if isinstance(attempt.finished, _Analysed):
            measured = replace(attempt.finished.measured, elapsed_s=elapsed_s)
        else:
            measured = Measured(name, (), elapsed_s, Failure("not-analysed", " ".join(attempt.lines)))
        self._add(number, candidate, measured)
        terminal.say(tr("{label}: {value}", label=_named(candidate), value=self._say_of(measured)))
        if attempt.interrupted:
            raise _Interrupted(signal.SIGINT)
        ended_by = _ended_by(attempt.outcome)
        if ended_by:
            raise _Interrupted(ended_by)
        return attempt

    def _add(self, number: int, candidate: Candidate, measured: Measured) -> None:
        for index, each in enumerate(self._tried):
            if each.number == number:
                self._tried[index] = replace(each, runs=(*each.runs, measured))
                return
        self._tried.append(Tried(number, candidate, (measured,)))

    def _say_of(self, measured: Measured) -> str:
        if measured.failure is not None:
            return str(shown(measured.failure.text))
        mean, before = measured.mean_ms, self._tried[0].mean_ms
        if mean is None:
            return tr("no step was measured")
        if before is None or measured.folder.startswith("baseline"):
            return tr("{ms} ms a step", ms=f"{mean:.1f}")
        return tr("{ms} ms a step ({times} times as fast)", ms=f"{mean:.1f}", times=f"{before / mean:.2f}")

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    # ---- in processes of their own

    def _analysed(self, folder: Path, name: str, outcome: Outcome, first: bool) -> _Analysed:
        from dlprof import api
        from dlprof.tensorboard.events import write_run_events

        formats = tuple(dict.fromkeys((*self._formats, "json"))) if first else ("json",)
        finished = api.finish_run(folder, command=self._request.command, outcome=outcome, formats=formats, bounds=())
        if failure := write_run_events(folder):
            terminal.say(failure)
        measured = api.measured_run(folder, name, 0.0, interrupted=bool(_ended_by(outcome)))
        return _Analysed(finished.status, measured)

    def _concluded(self, ending: Ending) -> tuple[list[str], list[str]]:
        from dlprof import api

        return api.conclude(
            self._tried,
            self._plan,
            ending,
            command=self._request.command,
            elapsed_s=self._elapsed_s,
            folder=self._folder.path,
            formats=self._formats,
        )


def _planned(folder: Path) -> Plan:
    from dlprof import api

    return api.trial_plan(folder)


def _ended_by(outcome: Outcome) -> int:
    """The number of the signal that came and is to end everything; 0 without one."""
    names = [name for name in outcome.received if name in _ENDS_ALL]
    return int(signal.Signals[names[0]]) if names else 0


def _named(candidate: Candidate) -> str:
    return ", ".join(f"{key}={value}" for key, value in candidate.settings.items()) or tr("as it is")


def _promised(candidate: Candidate) -> str:
    if candidate.promise is None:
        return _named(candidate)
    ms = f"{candidate.promise.step_ms[1]:.1f}"
    return tr("{settings}, forecast {ms} ms a step", settings=_named(candidate), ms=ms)
