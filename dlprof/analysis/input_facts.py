"""What the advice rests on beside the verdict: crowded cores, idle workers, hand-over, padding, Python tokenizers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dlprof.analysis.components import PARTS, Fetches
from dlprof.analysis.pipeline import training_loader
from dlprof.analysis.scope import own_spans
from dlprof.analysis.timelines import FEWEST_LOOKS, ON_CPU
from dlprof.analysis.tokenizers import in_tokenizer, time_in_python
from dlprof.model.advice import InputFacts
from dlprof.model.intervals import Intervals, clip, length
from dlprof.model.kinds import Component, Kind
from dlprof.model.profile import Padding, Profile, Stack
from dlprof.model.steps import Steps

_ROUNDS = 2
"""Times that every worker has to have had its turn before one without a batch is said to have none."""
MOST_TOKENS = 16_384
"""Tokens of one batch that are counted, as in ``capture/padding.py``."""
_COMPILED = ("tokenizers.", "tiktoken.", "sentencepiece.")
"""Tokenizers whose work is not done in Python."""
_REBUILDING = ("rebuild_storage_fd", "rebuild_storage_filename")
"""torch's functions that open the shared memory of one tensor."""


def input_facts(profile: Profile, steps: Steps, fetches: Fetches) -> InputFacts:
    """Facts about the data work of the measured steps.

    Args:
        profile: The run.
        steps: Its steps.
        fetches: Every batch made, divided into components.
    """
    rows = fetches.rows_of(steps.measured)
    cpu = float(fetches.cpu_ns[rows].sum() + fetches.helper_ns[rows].sum())
    blocked = float(fetches.blocked_ns()[rows].sum())
    calls = fetches.calls[rows].mean(axis=0) if len(rows) else np.zeros(len(PARTS))
    loader = training_loader(profile, steps)
    number = loader.number if loader is not None else None
    return InputFacts(
        batch=next((each for each in profile.batches if each.loader == number), None),
        no_core_ratio=float(fetches.no_core_ns[rows].sum()) / cpu if cpu else 0.0,
        helper_ratio=float(fetches.helper_ns[rows].sum()) / cpu if cpu else 0.0,
        computing_ratio=cpu / (cpu + blocked) if cpu + blocked else 0.0,
        workers_with_batches=_workers_with_batches(profile, steps, fetches),
        items_per_batch=float(calls[PARTS.index(Component.DATASET_GETITEM)]),
        tokenizer_calls_per_batch=float(calls[PARTS.index(Component.TOKENIZER)]),
        same_length=any(_same_length(profile, each) for each in profile.padding if each.loader == number),
        python_tokenizer_ratio=_python_tokenizer_ratio(profile, steps, fetches),
        rebuilding_ratio=_rebuilding_ratio(profile, fetches),
        shares_nothing_out=_shares_nothing_out(profile, steps),
        made_anew=made_anew(profile, steps),
    )


def _shares_nothing_out(profile: Profile, steps: Steps) -> bool:
    """Whether an iterable dataset never asked which worker it runs in, in any of the loaders made of it."""
    trained = set(_loaders_of_epochs(profile, steps))
    asks = {it.asks_worker for it in profile.loaders if it.pid == profile.main_pid and it.number in trained}
    return asks == {False}


def made_anew(profile: Profile, steps: Steps) -> bool:
    """Whether the training loop has had several epochs, each with a loader of its own."""
    loaders = _loaders_of_epochs(profile, steps)
    return len(loaders) > 1 and len(set(loaders)) == len(loaders)


def _loaders_of_epochs(profile: Profile, steps: Steps) -> list[int]:
    """The number of the loader of each iteration by the training loop."""
    iterators = {step.iterator for step in steps.all}
    return [it.loader for it in profile.iterations if it.pid == profile.main_pid and it.number in iterators]


def _workers_with_batches(profile: Profile, steps: Steps, fetches: Fetches) -> int | None:
    """Workers that made the batches of the iteration with most steps; None where too few were measured to tell."""
    iterators = [step.iterator for step in steps.measured]
    if not iterators:
        return None
    longest = max(set(iterators), key=iterators.count)
    workers = next((len(each.workers) for each in profile.iterations if each.number == longest), 0)
    if not workers or iterators.count(longest) < _ROUNDS * workers:
        return None
    rows = fetches.rows_of(step for step in steps.measured if step.iterator == longest)
    return len(np.unique(fetches.spans.track[rows])) or None


def _same_length(profile: Profile, padding: Padding) -> bool:
    """Whether all batches had as many tokens as the one whose shape is known: filled up to a length set beforehand."""
    shape = next((each for each in profile.batches if each.loader == padding.loader), None)
    tables = [sizes for sizes, _ in shape.tensors if len(sizes) == 2] if shape is not None else []
    return any(tokens_looked_at(*sizes) * padding.batches == padding.tokens for sizes in tables)


def tokens_looked_at(rows: int, columns: int) -> int:
    """How many tokens of a batch are counted.

    Args:
        rows: Texts in the batch, at least 1.
        columns: Their length, at least 1.
    """
    every_column = -(-columns // MOST_TOKENS)
    every_row = max(-(-rows * (columns // every_column) // MOST_TOKENS), 1)
    return -(-rows // every_row) * -(-columns // every_column)


def _python_tokenizer_ratio(profile: Profile, steps: Steps, fetches: Fetches) -> float:
    """Part of the data work's time on a core that is spent in a tokenizer written in Python, 0 to 1."""
    compiled = _compiled(profile)
    looks = list(_making(profile, steps, fetches))
    whole = sum(on_cpu for *_, on_cpu in looks)
    found = [
        (stack.frames[0], on_cpu)
        for track, at, stack, on_cpu in looks
        if in_tokenizer(stack) and (track not in compiled or not length(clip(compiled[track], at, at + 1)))
    ]
    # As hot lines are: from fewer looks the one that happened to be seen would be the whole.
    return time_in_python(found) / whole if whole and len(looks) >= FEWEST_LOOKS else 0.0


def _compiled(profile: Profile) -> dict[int, Intervals]:
    """When each track was in a compiled tokenizer."""
    spans = own_spans(profile).of(Kind.TOKENIZER)
    known = [number for number, name in enumerate(spans.names) if name.startswith(_COMPILED)]
    spans = spans.where(np.isin(spans.name_id, known))
    return {track: spans.where(spans.track == track).covered() for track in np.unique(spans.track).tolist()}


def _making(profile: Profile, steps: Steps, fetches: Fetches) -> Iterator[tuple[int, int, Stack, float]]:
    """Track, moment, stack and time on a core of each look at the making of a measured step's batch."""
    rows = fetches.rows_of(steps.measured)
    for track, timeline in fetches.seen.items():
        mine = fetches.spans.where(rows[fetches.spans.track[rows] == track])
        looks, amounts = timeline.looks_within(mine.start_ns, mine.end_ns)
        for look, amount in zip(looks.tolist(), amounts, strict=True):
            stack = profile.samples.stacks[int(timeline.stack[look])]
            if stack.in_fetch and stack.frames:
                yield track, int(timeline.at_ns[look]), stack, float(amount[ON_CPU])


def _rebuilding_ratio(profile: Profile, fetches: Fetches) -> float | None:
    """Of the unpickling of batches, the part that opens tensors' shared memory; None after too few looks."""
    unpickling = own_spans(profile).of(Kind.UNPICKLE)
    opening = total = 0
    for track in np.unique(unpickling.track).tolist():
        if track in fetches.seen:
            timeline = fetches.seen[track]
            mine = unpickling.where(unpickling.track == track)
            looks, _ = timeline.looks_within(mine.start_ns, mine.end_ns)
            for stack in timeline.stack[looks].tolist():
                frames = profile.samples.stacks[stack].frames
                total += 1
                opening += any(frame.function in _REBUILDING for frame in frames)
    return opening / total if total >= FEWEST_LOOKS else None
