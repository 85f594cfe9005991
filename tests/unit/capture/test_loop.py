"""When is traced and when is stopped, as seen by a script that asks for batches and steps its optimizer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dlprof.capture.loop import OPTIMIZER_LOOP, Action, Loop
from dlprof.formats.settings_file import Settings

TRAIN, VALIDATE = 1, 2


def asked(steps: int | None = 50, warmup: int = 5, trace_steps: int = 10) -> Settings:
    return Settings(steps, warmup, trace_steps, 1 << 30, 0)


class StoppedError(Exception):
    """The script was told to end."""


@dataclass
class Script:
    """A script under ``Loop``, doing between two steps what the session does.

    Attributes:
        traced: Numbers of the training loader's batches taken while torch.profiler was on.
    """

    settings: Settings
    optimizer_exists: bool = True
    tracing: bool = False
    refuses_trace: bool = False
    traced: list[int] = field(default_factory=list)
    questions: int = 0

    def __post_init__(self) -> None:
        self.loop = Loop(self.settings, self._has_optimizer)

    def _has_optimizer(self) -> bool:
        self.questions += 1
        return self.optimizer_exists

    def between(self, loader: int) -> None:
        """What is done before a loader is asked."""
        action = self.loop.next_action(loader, tracing=self.tracing)
        if action is Action.START_TRACE:
            self.tracing = not self.refuses_trace
            if self.refuses_trace:
                self.loop.trace_ended(self.loop.taken(loader))
                action = self.loop.next_action(loader, tracing=False)
        if action is Action.STOP_TRACE:
            self.end_trace()
        if action is Action.STOP:
            self.tracing = False
            raise StoppedError

    def end_trace(self) -> None:
        """As at the end of an epoch, or when the trace became too large."""
        if self.tracing:
            self.tracing = False
            if self.loop.training is not None:
                self.loop.trace_ended(self.loop.taken(self.loop.training))

    def take(self, loader: int = TRAIN) -> None:
        self.between(loader)
        if self.tracing:
            self.traced.append(self.loop.taken(loader))
        self.loop.batch_taken(loader)

    def step(self) -> None:
        self.loop.optimizer_stepped()

    def train(self, batches: int, every: int = 1, length: int | None = None) -> None:
        """One epoch, an optimizer step every so many batches."""
        self.loop.loader_made(TRAIN, length)
        for number in range(batches):
            self.take()
            if number % every == every - 1:
                self.step()
        self.between(TRAIN)
        self.end_trace()

    def validate(self, batches: int) -> None:
        self.loop.loader_made(VALIDATE, batches)
        for _ in range(batches):
            self.take(VALIDATE)
        self.between(VALIDATE)

    def infer(self, batches: int) -> None:
        self.loop.loader_made(TRAIN, None)
        for _ in range(batches):
            self.take()

    def taken(self, loader: int = TRAIN) -> int:
        return self.loop.taken(loader)


def until_stopped(script: Script, epochs: int, batches: int, known_length: bool = True) -> int:
    """Train until told to stop; how many batches were taken."""
    again_until_stopped(lambda: script.train(batches, length=batches if known_length else None), epochs)
    return script.taken()


def again_until_stopped(play: Callable[[], None], at_most: int = 1000) -> None:
    """Do it again and again; being told to stop has to end it."""

    def often() -> None:
        for _ in range(at_most):
            play()

    with pytest.raises(StoppedError):
        often()


# ---- warm-up, measured, traced ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("known_length", [True, False])
def test_a_long_loader_gives_warm_up_then_measured_then_traced_steps(known_length):
    script = Script(asked(steps=50, warmup=5, trace_steps=10))
    assert until_stopped(script, 1, 1000, known_length) == 65
    assert script.traced == list(range(55, 65))


def test_a_loader_that_is_just_long_enough_is_long():
    script = Script(asked())
    assert until_stopped(script, 1, 65) == 65
    assert script.traced == list(range(55, 65))


def test_the_trace_is_taken_from_the_end_of_an_epoch_that_is_shorter_than_the_run():
    script = Script(asked())
    script.train(40, length=40)
    assert script.traced == list(range(30, 40))


def test_at_least_half_of_a_short_epoch_stays_untraced():
    script = Script(asked(warmup=2))
    script.train(12, length=12)
    assert script.traced == [7, 8, 9, 10, 11]


def test_a_short_loader_is_stopped_when_as_many_untraced_steps_were_taken_as_were_asked_for():
    script = Script(asked())
    assert until_stopped(script, 9, 40) == 65
    assert script.traced == list(range(30, 40))


def test_an_epoch_shorter_than_the_warm_up_is_traced_later():
    script = Script(asked(steps=20, warmup=5, trace_steps=4))
    assert until_stopped(script, 30, 4) == 28
    assert script.traced == [25, 26, 27]


def test_an_unknown_length_that_turns_out_short_costs_the_trace_at_the_end_only():
    script = Script(asked(steps=20, warmup=5, trace_steps=10))
    assert until_stopped(script, 9, 12, known_length=False) >= 25
    assert script.traced[0] == 25


def test_without_traced_steps_there_is_no_trace():
    script = Script(asked(trace_steps=0))
    assert until_stopped(script, 9, 30) == 55
    assert script.traced == []


def test_all_steps_never_stops_and_traces_after_the_first_fifty():
    script = Script(asked(steps=None))
    script.train(400)
    assert script.traced == list(range(55, 65))
    assert script.loop.batches_total is None
    assert not script.loop.done


def test_all_steps_of_a_short_loader_are_traced_at_the_end_of_the_first_epoch():
    script = Script(asked(steps=None))
    for _ in range(5):
        script.train(30, length=30)
    assert script.traced == list(range(20, 30))


def test_what_the_progress_counts_to():
    assert Script(asked()).loop.batches_total == 65
    assert Script(asked(trace_steps=0)).loop.batches_total == 55


def test_once_stopped_it_is_told_to_stop_whatever_loader_it_asks():
    script = Script(asked())
    until_stopped(script, 1, 1000)
    for loader in (TRAIN, VALIDATE, OPTIMIZER_LOOP):
        assert script.loop.next_action(loader, tracing=False) is Action.STOP


# ---- the trace ends early --------------------------------------------------------------------------------------------


def test_a_trace_that_ended_with_the_epoch_is_not_started_again_and_its_steps_are_measured_later():
    script = Script(asked(steps=20, warmup=0, trace_steps=10))
    script.train(25, length=None)
    assert script.traced == [20, 21, 22, 23, 24]
    script.loop.trace_ended(25)
    with pytest.raises(StoppedError):
        script.train(100)
    assert script.traced == [20, 21, 22, 23, 24]
    assert script.taken() == 25


def test_a_trace_that_became_too_large_counts_as_far_as_it_went():
    script = Script(asked(steps=20, warmup=0, trace_steps=10))
    script.loop.loader_made(TRAIN, 25)
    for _ in range(18):
        script.take()
        script.step()
    assert script.tracing
    script.end_trace()
    with pytest.raises(StoppedError):
        script.train(100)
    assert script.traced == [15, 16, 17]
    assert script.taken() == 23


def test_a_trace_that_cannot_be_started_is_not_tried_again():
    script = Script(asked(), refuses_trace=True)
    assert until_stopped(script, 1, 1000) == 55
    assert script.traced == []


def test_a_trace_that_the_users_own_profiler_ended_counts_as_far_as_it_went():
    script = Script(asked(steps=20, warmup=0, trace_steps=10))
    script.loop.loader_made(TRAIN, 25)
    for _ in range(18):
        script.take()
        script.step()
    # Nobody tells the loop.
    script.tracing = False
    with pytest.raises(StoppedError):
        script.train(100)
    assert script.taken() == 23


# ---- which loader trains ---------------------------------------------------------------------------------------------


def test_validation_first_is_not_the_training_loop():
    script = Script(asked())
    script.validate(200)
    assert not script.tracing
    assert until_stopped(script, 1, 1000) == 65
    assert script.loop.training == TRAIN


def test_validation_between_epochs_does_not_count():
    script = Script(asked(steps=50, warmup=5, trace_steps=10))

    def epoch() -> None:
        script.train(30, length=30)
        script.validate(100)

    again_until_stopped(epoch)
    assert script.taken() == 65
    assert script.traced == list(range(20, 30))


def test_validation_within_an_epoch_does_not_become_the_training_loop():
    script = Script(asked())

    def seven_steps_and_validation() -> None:
        for _ in range(7):
            script.take()
            script.step()
        script.validate(50)

    again_until_stopped(seven_steps_and_validation)
    assert script.loop.training == TRAIN
    assert script.taken() == 65


def test_gradient_accumulation_is_recognised_when_the_optimizer_steps_at_last():
    script = Script(asked(steps=20, warmup=5, trace_steps=4))
    with pytest.raises(StoppedError):
        script.train(1000, every=40)
    assert script.questions == 1
    assert script.traced == list(range(40, 44))
    assert script.taken() == 44


def test_accumulation_over_fewer_batches_than_the_warm_up_changes_nothing():
    script = Script(asked())
    with pytest.raises(StoppedError):
        script.train(1000, every=4)
    assert (script.taken(), script.questions) == (65, 0)


def test_inference_is_recognised_where_no_optimizer_exists():
    script = Script(asked(), optimizer_exists=False)
    with pytest.raises(StoppedError):
        script.infer(1000)
    assert script.taken() == 65
    assert script.traced == list(range(55, 65))


def test_inference_of_a_script_that_holds_an_optimizer_is_recognised_after_a_while():
    script = Script(asked(), optimizer_exists=True)
    with pytest.raises(StoppedError):
        script.infer(10_000)
    assert 65 < script.taken() < 400


def test_whether_there_is_an_optimizer_is_asked_once():
    script = Script(asked(), optimizer_exists=True)
    script.infer(250)
    assert script.questions == 1


def test_in_inference_each_loader_counts_for_itself():
    script = Script(asked(), optimizer_exists=False)
    script.validate(40)
    with pytest.raises(StoppedError):
        script.infer(1000)
    assert script.taken() == 65


def test_without_a_loader_optimizer_steps_are_steps():
    script = Script(asked(steps=20, warmup=5, trace_steps=3))

    def step() -> None:
        script.step()
        script.between(OPTIMIZER_LOOP)

    again_until_stopped(step)
    assert (script.loop.training, script.taken(OPTIMIZER_LOOP)) == (OPTIMIZER_LOOP, 28)


def test_an_optimizer_that_steps_before_the_first_batch_does_not_hide_the_loader():
    script = Script(asked())
    for _ in range(3):
        script.step()
    assert until_stopped(script, 1, 1000) == 65
    assert script.loop.training == TRAIN


def test_of_two_loaders_a_step_the_last_one_asked_counts():
    script = Script(asked())
    script.loop.loader_made(TRAIN, None)
    script.loop.loader_made(VALIDATE, None)

    def step() -> None:
        script.take(VALIDATE)
        script.take(TRAIN)
        script.step()

    again_until_stopped(step)
    assert (script.loop.training, script.taken()) == (TRAIN, 65)


def test_two_optimizers_a_step_make_no_second_loop():
    script = Script(asked())
    script.loop.loader_made(TRAIN, None)

    def step() -> None:
        script.take()
        script.step()
        script.step()

    again_until_stopped(step)
    assert (script.loop.training, script.taken()) == (TRAIN, 65)


def test_a_script_that_makes_a_new_loader_for_each_epoch_is_stopped():
    script = Script(asked(steps=50, warmup=5, trace_steps=10))
    numbers = itertools.count(1)

    def epoch() -> None:
        loader = next(numbers)
        script.loop.loader_made(loader, 30)
        for _ in range(30):
            script.take(loader)
            script.step()

    again_until_stopped(epoch, at_most=20)


def test_in_inference_too_a_trace_that_ended_early_counts_as_far_as_it_went():
    script = Script(asked(steps=20, warmup=0, trace_steps=10), optimizer_exists=False)
    script.infer(23)
    script.end_trace()
    assert script.traced == [20, 21, 22]
    with pytest.raises(StoppedError):
        script.infer(100)
    assert script.taken() == 23


# ---- batches that another thread hands over --------------------------------------------------------------------------


def elsewhere(work: Callable[[], object]) -> None:
    """Do it in another thread."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_that_steps_and_takes_no_batch_is_handed_them():
    loop = Loop(asked(), lambda: True)
    elsewhere(lambda: [loop.batch_taken(TRAIN) for _ in range(5)])
    assert not loop.handed_over
    loop.optimizer_stepped()
    assert (loop.handed_over, loop.training) == (True, OPTIMIZER_LOOP)
    # However far the other thread is ahead, what counts is what is trained on.
    elsewhere(lambda: [loop.batch_taken(TRAIN) for _ in range(500)])
    assert loop.next_action(TRAIN, tracing=False) is Action.NOTHING
    assert loop.taken(OPTIMIZER_LOOP) == 1
    for _ in range(54):
        loop.optimizer_stepped()
    assert loop.next_action(OPTIMIZER_LOOP, tracing=False) is Action.START_TRACE


def test_of_a_short_epoch_the_end_is_traced_though_another_thread_takes_its_batches():
    loop = Loop(asked(steps=50, warmup=2, trace_steps=4), lambda: True)
    loop.loader_made(TRAIN, 20)
    elsewhere(lambda: loop.batch_taken(TRAIN))
    for _ in range(16):
        assert loop.next_action(OPTIMIZER_LOOP, tracing=False) is Action.NOTHING
        loop.optimizer_stepped()
    assert loop.next_action(OPTIMIZER_LOOP, tracing=False) is Action.START_TRACE


def test_a_loop_wholly_in_another_thread_takes_its_own_batches():
    loop = Loop(asked(), lambda: True)

    def train() -> None:
        for _ in range(5):
            loop.batch_taken(TRAIN)
            loop.optimizer_stepped()

    elsewhere(train)
    assert (loop.handed_over, loop.training, loop.taken(TRAIN)) == (False, TRAIN, 5)


def test_a_thread_that_evaluates_meanwhile_hands_nothing_over():
    loop = Loop(asked(), lambda: True)
    for _ in range(5):
        loop.batch_taken(TRAIN)
        loop.optimizer_stepped()
        # A second optimizer steps on the same batch, as in a GAN, and between the two another thread took one.
        elsewhere(lambda: loop.batch_taken(VALIDATE))
        loop.optimizer_stepped()
    assert not loop.handed_over


def test_a_sanity_check_by_the_thread_that_trains_does_not_hide_that_it_is_fed():
    loop = Loop(asked(), lambda: True)
    loop.batch_taken(VALIDATE)
    for _ in range(3):
        elsewhere(lambda: loop.batch_taken(TRAIN))
        loop.optimizer_stepped()
    assert loop.handed_over
