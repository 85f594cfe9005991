"""What advice rests on beside the verdict, from recordings whose facts are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import (
    MAIN_PID,
    TRAINING,
    Look,
    Span,
    end_of_epoch,
    frame,
    joined,
    looked_at,
    making,
    ms,
    one_step,
    profile,
    recorded,
    step,
    steps_of,
)

from dlprof.analysis.components import find_fetches
from dlprof.analysis.input_facts import input_facts, tokens_looked_at
from dlprof.analysis.steps import find_steps
from dlprof.analysis.verdict import restarts
from dlprof.diagnose import diagnose, plan_trials
from dlprof.model.advice import InputFacts
from dlprof.model.kinds import Doing, Kind
from dlprof.model.profile import Loader, Padding, Profile

PIECES = frame("tokenizer.py:40", "WordPiece.pieces_of")
CLEAN = frame("tokenizer.py:50", "clean")
TOKENIZE = frame("tokenizer.py:60", "WordPiece.tokenize")
COLLATE = frame("train.py:7", "collate")


def facts_of(found: Profile) -> InputFacts:
    return input_facts(found, find_steps(found), find_fetches(found))


def facts_of_batch(*looks: Look, rows: tuple[Span, ...] = (), **columns: int) -> InputFacts:
    """Facts of one batch of 100 ms, and looks of which the first is at its begin."""
    fetch = Span(Kind.FETCH, 0, ms(100), batch=0, iterator=1, **columns)
    found = looked_at(recorded([fetch, *rows]), Look(0, Doing.RUNNING), *looks)
    steps = steps_of(one_step((ms(900), ms(900)), (ms(900), ms(901)), index=0))
    return input_facts(found, steps, find_fetches(found))


def test_cores_are_wanted_by_the_making_thread_and_its_helpers():
    found = facts_of_batch(on_cpu_ns=ms(40), runnable_ns=ms(30), process_cpu_ns=ms(60))
    assert found.no_core_ratio == pytest.approx(0.5)
    assert found.helper_ratio == pytest.approx(1 / 3)
    assert found.computing_ratio == pytest.approx(60 / 90)


def test_without_a_batch_there_is_nothing_to_tell():
    found = facts_of(recorded([]))
    assert (found.batch, found.workers_with_batches, found.rebuilding_ratio) == (None, None, None)
    assert (found.no_core_ratio, found.helper_ratio, found.python_tokenizer_ratio) == (0.0, 0.0, 0.0)


def test_workers_that_make_batches_are_counted_once_all_had_their_turn():
    assert facts_of(profile(step(getitem=ms(5), compute=ms(5)) * 8, workers=2)).workers_with_batches == 2
    assert facts_of(profile(step(getitem=ms(5), compute=ms(5)) * 3, workers=2)).workers_with_batches is None
    assert facts_of(profile(step(getitem=ms(5), compute=ms(5)) * 8)).workers_with_batches is None


def asking(*answers: bool | None) -> Profile:
    """A training loop with a loader for each epoch, whose dataset asked which worker it runs in, or did not."""
    epochs = joined(step(input_wait=ms(5), compute=ms(5)) * 4 + end_of_epoch() for _ in answers)
    found = profile(epochs)
    settings = found.loaders[0].settings
    loaders = tuple(Loader(number, MAIN_PID, settings, asks) for number, asks in enumerate(answers, 1))
    iterations = tuple(replace(each, loader=each.number) for each in found.iterations)
    return replace(found, loaders=loaders, iterations=iterations)


def test_a_dataset_shares_nothing_out_that_never_asked_which_worker_it_runs_in():
    assert facts_of(asking(False)).shares_nothing_out
    assert facts_of(asking(False, False)).shares_nothing_out
    for answers in ((True,), (None,), (False, True), (False, None)):
        assert not facts_of(asking(*answers)).shares_nothing_out


@pytest.mark.parametrize(
    ("workers", "forecast", "said"), [(0, [0, 1], False), (1, [0, 1], False), (2, [0, 1, 2], True)]
)
def test_more_workers_are_not_forecast_where_each_would_give_all_samples(workers, forecast, said):
    found = profile(step(getitem=ms(40), blocked=ms(40), compute=ms(5)) * 40, workers=workers)
    for asks in (False, True):
        mine, *others = found.loaders
        told = replace(found, loaders=(replace(mine, asks_worker=asks), *others))
        report = diagnose(told)
        numbers = [row.to for row in report.forecast if row.setting == "num_workers"]
        assert numbers == forecast if not asks else len(numbers) > len(forecast)
        advice = {row.id: row for row in report.advice}
        assert ("shard-dataset" in advice) is not asks
        notices = [notice.slug for notice in report.notices]
        assert ("samples-repeated" in notices) is (said and not asks)
        tried = plan_trials(told, report)
        numbers = {each.settings.get("num_workers", workers) for each in tried.candidates}
        assert (max(numbers) <= max(workers, 1)) is not asks
        assert tried.repeats is not asks
        if not asks:
            assert advice["shard-dataset"].speedup is None
            if "raise-num-workers" in advice:
                assert advice["raise-num-workers"].to == 1


# ---- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (16, 256), (8, 2048), (16, 2048), (7, 4099), (3, 16_385), (2, 70_000)]
)
def test_as_many_tokens_are_expected_as_capture_looks_at(rows: int, columns: int):
    torch = pytest.importorskip("torch")
    from dlprof.capture.padding import _some

    assert tokens_looked_at(rows, columns) == _some(torch.zeros(rows, columns)).numel()


def test_batches_are_equally_long_where_each_had_the_known_ones_tokens():
    plain = profile(step(input_wait=ms(1), compute=ms(5)) * 4, batch_size=8)  # 8 texts of 16 tokens
    for tokens, same in ((3 * 8 * 16, True), (3 * 8 * 16 - 1, False)):
        found = replace(plain, padding=(Padding(TRAINING, 3, tokens, 10),))
        assert facts_of(found).same_length is same
        assert not facts_of(replace(found, batches=())).same_length
        assert not facts_of(replace(found, padding=(Padding(TRAINING + 1, 3, tokens, 10),))).same_length


# ---- tokenizers in Python --------------------------------------------------------------------------------------------


def look(at: int, *frames, on_cpu: int = 10) -> Look:
    return Look(ms(at), Doing.RUNNING, making(*frames, COLLATE), on_cpu_ns=ms(on_cpu))


def test_a_tokenizer_in_python_is_known_by_the_names_of_its_functions():
    looks = [look(10, PIECES, TOKENIZE), look(20, CLEAN, TOKENIZE), look(30, TOKENIZE), look(40), look(50), look(60)]
    assert facts_of_batch(*looks, on_cpu_ns=ms(60)).python_tokenizer_ratio == pytest.approx(0.5)


def test_a_few_looks_tell_nothing_of_a_tokenizer():
    looks = [look(10, PIECES, TOKENIZE), look(20, CLEAN, TOKENIZE), look(30), look(40)]
    assert facts_of_batch(*looks, on_cpu_ns=ms(40)).python_tokenizer_ratio == 0.0
    assert facts_of_batch(*looks, look(50), on_cpu_ns=ms(50)).python_tokenizer_ratio == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("function", "ratio"),
    [
        ("Tokenizer.encode", 1.0),
        ("my_tokenise", 1.0),
        ("TokenizingCollator.__call__", 0.0),
        ("TokenizedDataset.__getitem__", 0.0),
        ("read_tokenized", 0.0),
        ("Vocabulary.encode", 0.0),
    ],
)
def test_what_calls_a_tokenizer_or_holds_tokens_is_none(function: str, ratio: float):
    looks = [look(10 * n, frame("train.py:30" if n % 2 else "train.py:31", function)) for n in range(1, 7)]
    assert facts_of_batch(*looks, on_cpu_ns=ms(60)).python_tokenizer_ratio == ratio


def test_a_tokenizer_that_is_at_one_line_all_the_time_calls_something_compiled():
    at_one_line = [look(at, TOKENIZE) for at in (10, 20, 30, 40, 50)]
    assert facts_of_batch(*at_one_line, on_cpu_ns=ms(50)).python_tokenizer_ratio == 0.0
    assert facts_of_batch(*at_one_line[:4], look(50, CLEAN, TOKENIZE), on_cpu_ns=ms(50)).python_tokenizer_ratio == 1.0


def test_what_a_compiled_tokenizer_is_called_from_is_no_tokenizer_in_python():
    looks = [look(10 * n, CLEAN if n % 2 else PIECES, TOKENIZE) for n in range(1, 6)]
    for name, ratio in (("tokenizers.Tokenizer.encode", 0.0), ("transformers.base.__call__", 1.0)):
        span = Span(Kind.TOKENIZER, 0, ms(60), name=name)
        assert facts_of_batch(*looks, rows=(span,), on_cpu_ns=ms(50)).python_tokenizer_ratio == ratio
    fast = frame("/site-packages/transformers/tokenization_utils_fast.py:500", "_encode_plus", user=False)
    looks = [look(10 * n, CLEAN if n % 2 else PIECES, fast, TOKENIZE) for n in range(1, 6)]
    assert facts_of_batch(*looks, on_cpu_ns=ms(50)).python_tokenizer_ratio == 0.0


# ---- handing over ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opening", "others", "ratio"), [(3, 2, 0.6), (0, 5, 0.0), (2, 2, None)])
def test_unpickling_is_told_apart_by_what_it_was_seen_at(opening: int, others: int, ratio: float | None):
    rebuilding = frame("torch/multiprocessing/reductions.py:1", "rebuild_storage_fd", user=False)
    loads = frame("multiprocessing/queues.py:1", "Queue.get", user=False)
    at = [rebuilding] * opening + [loads] * others
    looks = [Look(ms(200 + n), Doing.RUNNING, making(each), on_cpu_ns=ms(1)) for n, each in enumerate(at)]
    span = Span(Kind.UNPICKLE, ms(190), ms(300), batch=0, iterator=1)
    assert facts_of_batch(*looks, rows=(span,)).rebuilding_ratio == ratio


# ---- loaders that are made anew --------------------------------------------------------------------------------------


def in_epochs(*, anew: bool, workers: int = 2, length: int = 12, ending: int = 0) -> Profile:
    """Three epochs of 12 steps, whose workers take 36 ms to start and ``ending`` ns to end."""
    plan = joined(step(getitem=ms(40), blocked=ms(40), compute=ms(5)) * 12 + end_of_epoch() for _ in range(3))
    found = profile(plan, workers=workers, startup=ms(36))
    settings = {**found.loaders[0].settings, "length": length}
    numbers = [each.number for each in found.iterations] if anew else [1, 1, 1]
    iterations = tuple(replace(each, loader=number) for each, number in zip(found.iterations, numbers, strict=True))
    loaders = tuple(Loader(number, MAIN_PID, settings) for number in dict.fromkeys(numbers))
    ends = found.spans.where((found.spans.kind == int(Kind.NEXT)) & (found.spans.flags != 0))
    columns = {name: np.append(getattr(found.spans, name), getattr(ends, name)) for name in found.spans.COLUMNS}
    columns["kind"][len(found.spans) :] = int(Kind.WORKERS_ENDED)
    columns["end_ns"][len(found.spans) :] = columns["start_ns"][len(found.spans) :] + ending
    spans = replace(found.spans, **columns)
    return replace(found, iterations=iterations, loaders=loaders, spans=spans if ending else found.spans)


def test_a_loader_for_each_epoch_is_told_from_one_for_all():
    assert facts_of(in_epochs(anew=True)).made_anew
    assert not facts_of(in_epochs(anew=False)).made_anew
    assert not facts_of(profile(step(input_wait=ms(5)) * 8)).made_anew


@pytest.mark.parametrize("anew", [True, False])
def test_what_an_epoch_costs_its_workers_is_their_end_and_their_start(anew):
    found = in_epochs(anew=anew, ending=ms(24))
    # The first request comes 0.1 ms after the start has begun.
    per_step = [round(each / 1e5) for each in restarts(found, find_steps(found))]
    assert per_step == [round(10 * (36 + 24) / 12)] * 2


def test_workers_that_start_before_the_first_request_are_started_all_the_same():
    found = in_epochs(anew=True)
    quick = replace(found, spans=found.spans.where(found.spans.kind != int(Kind.WORKER_START)))
    assert len(restarts(quick, find_steps(quick))) == 2
    kept = profile(joined(step(getitem=ms(4)) * 6 + end_of_epoch() for _ in range(3)), workers=2, persistent=True)
    assert len(restarts(kept, find_steps(kept))) == 0


@pytest.mark.parametrize(("workers", "said"), [(0, "would be started and ended"), (2, "took 60.0 ms each time")])
def test_what_a_new_loader_for_each_epoch_costs_is_said_and_persistent_workers_are_not_advised(workers, said):
    found = in_epochs(anew=True, workers=workers, ending=ms(24))
    report = diagnose(found)
    (text,) = [each.text for each in report.notices if each.slug == "loader-made-anew"]
    assert said in text.replace("\N{NO-BREAK SPACE}", " ")
    assert all(row.setting != "persistent_workers" for row in [*report.forecast, *report.advice])
    for row in report.advice:
        assert "num_workers" not in row.how or "persistent_workers=True)" not in row.how
    assert all("persistent_workers" not in each.settings for each in plan_trials(found, report).candidates)


def test_of_a_loader_that_lasts_workers_are_kept():
    found = in_epochs(anew=False, ending=ms(24))
    report = diagnose(found)
    assert "loader-made-anew" not in [each.slug for each in report.notices]
    assert "persistent_workers" in [row.setting for row in report.forecast]
    tried = [each.settings for each in plan_trials(found, report).candidates if each.settings.get("num_workers")]
    assert all(each.get("persistent_workers") for each in tried)
    assert tried
