"""Which functions of which libraries count as tokenizer, decode and transform: a table, hooked on import.

A wrapper costs a microsecond inside data work and a tenth of it elsewhere. Of calls faster than 20 microseconds one in
sixteen is recorded. Only plain Python callables and classes are wrapped: functions that ``torch.jit.script`` reads
(torchvision's functional ones) are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dlprof.capture.padding import PadIds
from dlprof.capture.patches import Patches
from dlprof.capture.recorder import Recorder, now, thread_cpu
from dlprof.model.kinds import Kind

_FAST_NS = 20_000
_ONE_IN = 16

_TOKENIZER, _DECODE, _TRANSFORM = Kind.TOKENIZER, Kind.DECODE, Kind.TRANSFORM

SEAMS: dict[str, tuple[tuple[str, Kind], ...]] = {
    "tokenizers": (
        ("Tokenizer.encode", _TOKENIZER),
        ("Tokenizer.encode_batch", _TOKENIZER),
        ("Tokenizer.encode_batch_fast", _TOKENIZER),
    ),
    "transformers.tokenization_utils_base": (
        ("PreTrainedTokenizerBase.__call__", _TOKENIZER),
        ("PreTrainedTokenizerBase.encode", _TOKENIZER),
        ("PreTrainedTokenizerBase.encode_plus", _TOKENIZER),
        ("PreTrainedTokenizerBase.batch_encode_plus", _TOKENIZER),
        ("PreTrainedTokenizerBase.apply_chat_template", _TOKENIZER),
        ("PreTrainedTokenizerBase.pad", _TOKENIZER),
    ),
    "tiktoken.core": (
        ("Encoding.encode", _TOKENIZER),
        ("Encoding.encode_ordinary", _TOKENIZER),
        ("Encoding.encode_batch", _TOKENIZER),
        ("Encoding.encode_ordinary_batch", _TOKENIZER),
    ),
    "sentencepiece": (
        ("SentencePieceProcessor.Encode", _TOKENIZER),
        ("SentencePieceProcessor.encode", _TOKENIZER),
        ("SentencePieceProcessor.EncodeAsIds", _TOKENIZER),
        ("SentencePieceProcessor.EncodeAsPieces", _TOKENIZER),
        ("SentencePieceProcessor.encode_as_ids", _TOKENIZER),
        ("SentencePieceProcessor.encode_as_pieces", _TOKENIZER),
    ),
    "PIL.Image": (
        ("open", _DECODE),
        ("Image.convert", _TRANSFORM),
        ("Image.resize", _TRANSFORM),
        ("Image.crop", _TRANSFORM),
        ("Image.rotate", _TRANSFORM),
        ("Image.transform", _TRANSFORM),
        ("Image.transpose", _TRANSFORM),
        ("Image.thumbnail", _TRANSFORM),
        ("Image.filter", _TRANSFORM),
    ),
    "PIL.ImageFile": (("ImageFile.load", _DECODE),),
    "cv2": (
        ("imread", _DECODE),
        ("imdecode", _DECODE),
        ("resize", _TRANSFORM),
        ("cvtColor", _TRANSFORM),
        ("warpAffine", _TRANSFORM),
        ("warpPerspective", _TRANSFORM),
        ("remap", _TRANSFORM),
        ("GaussianBlur", _TRANSFORM),
        ("flip", _TRANSFORM),
        ("rotate", _TRANSFORM),
    ),
    "torchvision.io.image": (
        ("decode_image", _DECODE),
        ("decode_jpeg", _DECODE),
        ("decode_png", _DECODE),
        ("read_image", _DECODE),
    ),
    "torchvision.transforms.transforms": (("Compose.__call__", _TRANSFORM),),
    "torchvision.transforms.v2._container": (("Compose.forward", _TRANSFORM),),
    "albumentations.core.composition": (("Compose.__call__", _TRANSFORM),),
}
"""Module to the callables in it. Nested calls keep self time, so an outer and an inner seam do not count twice."""


class Sampled:
    """Decides which calls of one callable are timed: all, or one in sixteen once they prove fast."""

    __slots__ = ("_left", "weight")

    def __init__(self) -> None:
        self.weight = 1
        self._left = 0

    def passes(self) -> bool:
        """Whether this call goes untimed."""
        if self._left > 0:
            self._left -= 1
            return True
        return False

    def took(self, duration_ns: int) -> None:
        """Say how long a timed call took."""
        self.weight = _ONE_IN if duration_ns < _FAST_NS else 1
        self._left = self.weight - 1


class Thinned:
    """Decides which timed calls of one callable are recorded: all slow ones, and one in sixteen of the fast.

    One callable may be both: Pillow's ``load`` decodes at the first call and returns at once at all later ones.
    """

    __slots__ = ("_left", "_stands_for")

    def __init__(self) -> None:
        self._left = 0
        self._stands_for = 1

    def weight(self, duration_ns: int) -> int:
        """How many calls the one that took so long stands for; 0 where it is not recorded."""
        if duration_ns >= _FAST_NS:
            return 1
        if self._left > 0:
            self._left -= 1
            return 0
        weight, self._stands_for = self._stands_for, _ONE_IN
        self._left = _ONE_IN - 1
        return weight


def hooks(recorder: Recorder, patches: Patches) -> dict[str, Callable[[ModuleType], None]]:
    """The hook of each module in ``SEAMS``, to be called when it has been imported; ``patches`` can take it back."""
    wrap = functools.partial(_wrap_all, recorder, patches, pad_ids=PadIds(recorder.folder))
    return {module: functools.partial(wrap, callables) for module, callables in SEAMS.items()}


def _wrap_all(
    recorder: Recorder,
    patches: Patches,
    callables: tuple[tuple[str, Kind], ...],
    module: ModuleType,
    *,
    pad_ids: PadIds,
) -> None:
    for path, kind in callables:
        owner: Any = module
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        # A class that merely inherits the callable is left alone: its base is, or will be, in the table.
        original = getattr(owner, "__dict__", {}).get(name)
        if not callable(original):
            continue
        try:
            timed = _timed(recorder, original, kind, f"{module.__name__}.{path}")
            patches.set(owner, name, _telling(pad_ids, timed, original) if kind is _TOKENIZER else timed)
        except (AttributeError, TypeError) as error:
            recorder.notice("seam-not-hooked", name=f"{module.__name__}.{path}", error=str(error))


def _timed(recorder: Recorder, original: Any, kind: Kind, name: str) -> Any:
    thinned = Thinned()

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread = recorder.active_thread()
        if thread is None:
            return original(*args, **kwargs)
        cpu, start = thread_cpu(), now()
        try:
            return original(*args, **kwargs)
        finally:
            end = now()
            try:
                weight = thinned.weight(end - start)
                if weight:
                    on_cpu = thread_cpu() - cpu
                    thread.writer.add(kind, start, end, name=recorder.name(name), on_cpu_ns=on_cpu, weight=weight)
            except Exception as error:
                recorder.failed(name, error)

    return call


def _telling(pad_ids: PadIds, timed: Any, original: Any) -> Any:
    """Tell of the tokenizer itself, called within data work or, as where texts are tokenized beforehand, not."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = timed(*args, **kwargs)
        if args:
            pad_ids.called(args[0])
        return result

    return call
