"""The steps of a run: which batches the training loop took, and when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a request for a batch and what the loop did with the batch, up to its next request.

    dlprof's own work between the two parts is in neither. Where workers had to be started first, that time is
    ``startup_ns`` and outside the step.

    Attributes:
        index: Number of the batch in the run, from 0, warm-up included.
        iterator: Number of the iteration over the loader.
        batch: Number of the batch within it.
        wait_start_ns: The request, or the moment when the worker that made the batch was ready.
        wait_end_ns: The batch's arrival.
        body_start_ns: The loop goes on.
        body_end_ns: The next request.
        startup_ns: Part of the request spent on starting workers.
        optimizer_steps: Optimizer steps within.
        traced: Under torch.profiler.
        measured: Counts for the step time: neither warm-up, nor traced, nor just after the profiler was stopped.
        phases_ns: Part of the time outside the request that belongs to other loaders' phases and not to the step.
    """

    index: int
    iterator: int
    batch: int
    wait_start_ns: int
    wait_end_ns: int
    body_start_ns: int
    body_end_ns: int
    startup_ns: int
    optimizer_steps: int
    traced: bool
    measured: bool
    phases_ns: int = 0

    @property
    def wait_ns(self) -> int:
        """Time inside the request."""
        return self.wait_end_ns - self.wait_start_ns

    @property
    def body_ns(self) -> int:
        """Time outside the request, without other loaders' phases."""
        return self.body_end_ns - self.body_start_ns - self.phases_ns

    @property
    def duration_ns(self) -> int:
        """The step's length."""
        return self.wait_ns + self.body_ns


@dataclass(frozen=True, slots=True)
class Phase:
    """One iteration over a loader that is not the training loop's: validation, a sanity check.

    Where its workers were ended only in a later step, that is a phase without batches.

    Attributes:
        loader: The loader's number.
        start_ns: Its iterator was asked for.
        end_ns: Its last request had returned, and its workers were ended.
        batches: Batches it gave.
        wait_ns: Time inside its requests.
    """

    loader: int
    start_ns: int
    end_ns: int
    batches: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class Steps:
    """All complete steps of a run, in order.

    Attributes:
        all: The steps.
        loader: Number of the training loop's loader; 0 where steps are optimizer steps; None where there are none.
        inference: There are batches and no optimizer step.
        incomplete: Batches taken that did not become a step (the last before a ``break``, the run's end).
        phases: Iterations over other loaders, in order; their time is in no step.
        handed_over: Another thread than the one that trains requests the batches. A step then begins where the
            training thread takes a batch from a queue, or, where that was not seen, where its optimizer has stepped.
        wait_unseen: How long the training thread waits for its batches could not be told: no step has a wait.
        ceiling: Steps on batches that lay ready, after all others.
    """

    all: tuple[Step, ...]
    loader: int | None
    inference: bool
    incomplete: int
    phases: tuple[Phase, ...] = ()
    handed_over: bool = False
    wait_unseen: bool = False
    ceiling: tuple[Step, ...] = ()

    @property
    def measured(self) -> tuple[Step, ...]:
        """The steps that the step time comes from."""
        return tuple(step for step in self.all if step.measured)

    @property
    def traced(self) -> tuple[Step, ...]:
        """The steps under torch.profiler."""
        return tuple(step for step in self.all if step.traced)
