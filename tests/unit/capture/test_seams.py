"""Wrapped library functions stay what they were, and are timed within data work only."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from types import ModuleType

import pytest
from recordings import asked, events, rows

from dlprof.capture import recorder as recorder_module
from dlprof.capture import seams
from dlprof.capture.padding import PadIds
from dlprof.capture.patches import Patches
from dlprof.capture.recorder import Recorder
from dlprof.capture.seams import SEAMS, Sampled
from dlprof.model.kinds import Kind

FAST, SLOW = 5_000, 50_000


class Clock:
    """A clock on which a call takes as long as it says."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000

    def __call__(self) -> int:
        return self.now_ns

    def passes(self, ns: int) -> None:
        self.now_ns += ns


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (seams, recorder_module):
        monkeypatch.setattr(module, "now", clock)
        monkeypatch.setattr(module, "thread_cpu", clock)
    return clock


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path), asked())


@pytest.fixture
def library(clock, monkeypatch):
    """A module of the kind that the table names."""
    module = ModuleType("library")

    def encode(text: str, *, takes: int = SLOW) -> str:
        """Encode a text."""
        clock.passes(takes)
        if text == "bad":
            raise ValueError("cannot encode that")
        return text.upper()

    class Tokenizer:
        """A tokenizer."""

        def __init__(self, suffix: str) -> None:
            self.suffix = suffix

        def encode(self, text: str) -> str:
            return encode(text) + self.suffix

    class Fast(Tokenizer):
        pass

    for thing in (encode, Tokenizer, Fast):
        thing.__module__ = "library"
        thing.__qualname__ = thing.__name__
        setattr(module, thing.__name__, thing)
    module.constant = 3
    monkeypatch.setitem(sys.modules, "library", module)
    return module


def hook(recorder: Recorder, module: ModuleType, *callables: tuple[str, Kind]) -> Patches:
    patches = Patches()
    seams._wrap_all(recorder, patches, callables, module, pad_ids=PadIds(recorder.folder))
    return patches


@pytest.fixture
def hooked(recorder, library):
    hook(recorder, library, ("encode", Kind.TOKENIZER))
    return library


@pytest.fixture
def at_work(recorder):
    """The calling thread makes a batch."""
    recorder.thread().data_depth += 1
    return recorder.thread()


# ---- the callable stays what it was ----------------------------------------------------------------------------------


def test_arguments_and_result_pass(hooked, at_work):
    assert hooked.encode("a", takes=FAST) == "A"
    assert hooked.encode(text="b") == "B"


def test_an_exception_passes_and_the_call_is_timed_all_the_same(hooked, at_work, recorder, tmp_path):
    with pytest.raises(ValueError, match="cannot encode that"):
        hooked.encode("bad")
    recorder.flush_all()
    assert len(rows(tmp_path, Kind.TOKENIZER)) == 1
    assert recorder.on


def test_name_documentation_and_signature_stay(library, recorder):
    before = inspect.signature(library.encode)
    original = library.encode
    hook(recorder, library, ("encode", Kind.TOKENIZER))
    assert library.encode is not original
    assert library.encode.__wrapped__ is original
    assert (library.encode.__name__, library.encode.__module__) == ("encode", "library")
    assert library.encode.__doc__ == "Encode a text."
    assert inspect.signature(library.encode) == before


def test_it_is_pickled_by_its_name(hooked):
    assert pickle.loads(pickle.dumps(hooked.encode)) is hooked.encode


def test_a_method_is_bound_to_its_object_and_inherited(library, recorder, at_work, tmp_path):
    hook(recorder, library, ("Tokenizer.encode", Kind.TOKENIZER))
    assert library.Tokenizer("!").encode("a") == "A!"
    assert library.Fast("?").encode("b") == "B?"
    recorder.flush_all()
    assert len(rows(tmp_path, Kind.TOKENIZER)) == 2


def test_a_method_written_in_c_is_wrapped_too(recorder, at_work, tmp_path):
    module = ModuleType("compiled")
    module.Text = type("Text", (str,), {"encode": str.upper})
    hook(recorder, module, ("Text.encode", Kind.TOKENIZER))
    assert module.Text("abc").encode() == "ABC"
    recorder.flush_all()
    assert len(rows(tmp_path, Kind.TOKENIZER)) == 1


def test_what_was_wrapped_can_be_given_back(library, recorder):
    before = library.encode, vars(library.Tokenizer)["encode"]
    patches = hook(recorder, library, ("encode", Kind.TOKENIZER), ("Tokenizer.encode", Kind.TOKENIZER))
    assert library.encode is not before[0]
    patches.restore()
    assert (library.encode, vars(library.Tokenizer)["encode"]) == before


def test_a_class_that_inherits_the_method_is_left_alone(library, recorder):
    hook(recorder, library, ("Fast.encode", Kind.TOKENIZER))
    assert "encode" not in vars(library.Fast)
    assert library.Fast.encode is library.Tokenizer.encode


@pytest.mark.parametrize(
    "path",
    [
        "missing",
        "Missing.encode",
        "Tokenizer.missing",
        "constant",
        "constant.encode",
    ],
)
def test_what_a_version_of_the_library_does_not_have_is_passed_over(library, recorder, tmp_path, path):
    before = dict(vars(library))
    hook(recorder, library, (path, Kind.TOKENIZER), ("encode", Kind.TOKENIZER))
    changed = {name for name in before if vars(library)[name] is not before[name]}
    assert changed == {"encode"}
    assert events(tmp_path) == []


def test_a_class_that_does_not_let_itself_be_changed_is_named(recorder, tmp_path):
    module = ModuleType("compiled")
    module.Text = str
    hook(recorder, module, ("Text.upper", Kind.TOKENIZER))
    assert [(notice["slug"], notice["name"]) for notice in events(tmp_path, "notice")] == [
        ("seam-not-hooked", "compiled.Text.upper")
    ]
    assert recorder.on


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_outside_data_work_nothing_is_recorded(hooked, recorder, tmp_path):
    assert hooked.encode("a") == "A"
    recorder.thread()
    assert hooked.encode("a") == "A"
    recorder.flush_all()
    assert rows(tmp_path) == []


def test_within_data_work_a_call_is_a_span_with_its_name(hooked, recorder, at_work, clock, tmp_path):
    begin = clock()
    hooked.encode("a", takes=SLOW)
    recorder.flush_all()
    (row,) = rows(tmp_path)
    assert (row.kind, row.start_ns, row.end_ns, row.on_cpu_ns) == (Kind.TOKENIZER, begin, begin + SLOW, SLOW)
    assert (row.weight, row.batch, row.iterator) == (1, -1, -1)
    assert [(name["id"], name["name"]) for name in events(tmp_path, "name")] == [(row.name, "library.encode")]


def test_slow_calls_are_all_timed(hooked, recorder, at_work, tmp_path):
    for _ in range(40):
        hooked.encode("a", takes=SLOW)
    recorder.flush_all()
    assert [row.weight for row in rows(tmp_path)] == [1] * 40


def test_of_fast_calls_one_in_sixteen_is_timed_and_stands_for_all(hooked, recorder, at_work, tmp_path):
    for _ in range(1 + 16 * 5):
        hooked.encode("a", takes=FAST)
    recorder.flush_all()
    assert [row.weight for row in rows(tmp_path)] == [1, 16, 16, 16, 16, 16]


def test_calls_that_become_slow_are_all_timed_again(hooked, recorder, at_work, tmp_path):
    for takes in [FAST] * 16 + [SLOW] * 20:
        hooked.encode("a", takes=takes)
    recorder.flush_all()
    weights = [row.weight for row in rows(tmp_path)]
    assert weights == [1] + [1] * 20


def test_a_slow_call_among_fast_ones_is_never_missed(hooked, recorder, at_work, tmp_path):
    # As Pillow's load, which decodes once and then is called again for every operation.
    for takes in ([SLOW] + [FAST] * 3) * 20:
        hooked.encode("a", takes=takes)
    recorder.flush_all()
    weights = [row.weight for row in rows(tmp_path)]
    assert weights.count(1) == 20 + 1
    assert sum(weights) == pytest.approx(80, abs=16)


def test_each_callable_is_sampled_for_itself(library, recorder, at_work, tmp_path):
    library.decode = library.encode
    hook(recorder, library, ("encode", Kind.TOKENIZER), ("decode", Kind.DECODE))
    library.encode("a", takes=FAST)
    library.decode("a", takes=FAST)
    recorder.flush_all()
    assert [row.kind for row in rows(tmp_path, Kind.DECODE)] == [Kind.DECODE]


def test_a_recording_that_fails_does_not_reach_the_caller(hooked, recorder, at_work, monkeypatch):
    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(at_work, "writer", type("Full", (), {"add": full, "close": full}))
    assert hooked.encode("a") == "A"
    assert not recorder.on


# ---- sampling --------------------------------------------------------------------------------------------------------


def test_exactly_twenty_microseconds_are_slow():
    sampled = Sampled()
    sampled.took(20_000)
    assert (sampled.weight, sampled.passes()) == (1, False)
    sampled.took(19_999)
    assert sampled.weight == 16
    assert [sampled.passes() for _ in range(16)] == [True] * 15 + [False]


def test_a_count_that_two_threads_brought_below_nought_recovers():
    sampled = Sampled()
    sampled._left = -1
    assert not all(sampled.passes() for _ in range(100))


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEAMS)
def test_the_table_names_what_the_library_has(name):
    module = pytest.importorskip(name, exc_type=ImportError)
    found = {}
    for path, _ in SEAMS[name]:
        *parents, last = path.split(".")
        owner = module
        for parent in parents:
            owner = getattr(owner, parent)
        found[path] = vars(owner).get(last)
    # transformers 5 has no encode_plus any more: not all of a module's callables have to be there.
    assert any(found.values())
    assert not [path for path, thing in found.items() if isinstance(thing, staticmethod | classmethod)]


def test_a_tokenizer_is_hooked_and_can_still_be_pickled(recorder, at_work, tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(tokenizers.Tokenizer, "encode", tokenizers.Tokenizer.encode)
    hook(recorder, tokenizers, ("Tokenizer.encode", Kind.TOKENIZER))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert tokenizer.encode("b").ids == [1]
    assert pickle.loads(pickle.dumps(tokenizer.encode))("b").ids == [1]
    recorder.flush_all()
    assert len(rows(tmp_path, Kind.TOKENIZER)) >= 1


def test_there_is_a_hook_for_every_module_of_the_table(recorder):
    assert set(seams.hooks(recorder, Patches())) == set(SEAMS)


def test_pillow_is_hooked_and_its_pictures_stay_the_same(recorder, at_work, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    file = importlib.import_module("PIL.ImageFile")
    for owner, name in ((image, "open"), (image.Image, "resize"), (image.Image, "convert"), (file.ImageFile, "load")):
        monkeypatch.setattr(owner, name, vars(owner)[name])
    image.linear_gradient("L").save(tmp_path / "a.png")
    expected = image.open(tmp_path / "a.png").convert("RGB").resize((9, 9)).tobytes()
    hook(recorder, image, ("open", Kind.DECODE), ("Image.resize", Kind.TRANSFORM), ("Image.convert", Kind.TRANSFORM))
    hook(recorder, file, ("ImageFile.load", Kind.DECODE))
    assert image.open(tmp_path / "a.png").convert("RGB").resize((9, 9)).tobytes() == expected
    recorder.flush_all()
    assert {row.kind for row in rows(tmp_path)} == {Kind.DECODE, Kind.TRANSFORM}
