"""The saved run: what is loaded is what was saved, and everything else is refused in words a user can act on."""

from __future__ import annotations

import gzip
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import Look, Span, end_of_epoch, frame, ms, profile, samples, spans, step, validation
from generated import of_dataclass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlprof.errors import EXIT_FAILED, UnreadableInputError
from dlprof.formats import run_file
from dlprof.formats.run_file import FORMAT, NAME, load, save
from dlprof.model.kinds import Doing, Kind
from dlprof.model.profile import Profile, Samples, Spans, Stack

SOME = profile(
    (step(tokenizer=ms(30), compute=ms(10), pickle=ms(1)) * 4 + validation(step(getitem=ms(2))) + end_of_epoch()) * 2,
    workers=2,
)

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
some_spans = st.lists(
    st.builds(Span, st.sampled_from(Kind), int64, int64, batch=int64, value=int64, name=st.text(max_size=4)), max_size=4
).map(lambda rows: spans(*rows))


@st.composite
def some_samples(draw) -> Samples:
    columns = draw(st.lists(st.tuples(*[int64] * len(Samples.COLUMNS)), max_size=4))
    table = np.array(columns, dtype=np.int64).reshape(len(columns), len(Samples.COLUMNS))
    stacks = tuple(draw(st.lists(of_dataclass(Stack), min_size=1, max_size=3)))
    return Samples(*(table[:, place] for place in range(len(Samples.COLUMNS))), stacks=stacks)


def as_values(found: Profile) -> dict[str, Any]:
    rest = {each.name: getattr(found, each.name) for each in fields(Profile) if each.name not in ("spans", "samples")}
    columns = {name: getattr(found.spans, name).tolist() for name in Spans.COLUMNS}
    looks = {f"sample {name}": getattr(found.samples, name).tolist() for name in Samples.COLUMNS}
    return rest | columns | looks | {"names": found.spans.names, "stacks": found.samples.stacks}


def repacked(path, **changes: Any) -> None:
    saved = msgspec.msgpack.decode(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(saved | changes)))


@pytest.fixture
def saved(tmp_path):
    save(SOME, tmp_path / NAME)
    return tmp_path / NAME


def test_a_run_comes_back_as_it_was_saved(saved):
    assert as_values(load(saved)) == as_values(SOME)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(found=of_dataclass(Profile, spans=some_spans, samples=some_samples()))
def test_any_run_comes_back_as_it_was_saved(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("run") / NAME
    save(found, path)
    assert as_values(load(path)) == as_values(found)


def test_looks_at_threads_come_back(tmp_path):
    stack = Stack(
        (frame("größe.py:7", "Dataset.__getitem__", source="x = 'é'"), frame("/lib/a.py:1", user=False)), True
    )
    looks = samples(Look(5, Doing.DISK, stack, on_cpu_ns=3), Look(9, Doing.RUNNING, no_core_ns=2))
    save(replace(SOME, samples=looks), tmp_path / NAME)
    found = load(tmp_path / NAME).samples
    assert found.stacks == looks.stacks
    assert stack in found.stacks
    for name in Samples.COLUMNS:
        assert getattr(found, name).tolist() == getattr(looks, name).tolist()
        assert getattr(found, name).dtype == np.int64
    assert len(found.where(found.doing == Doing.DISK)) == 1


def test_a_run_without_looks_has_none(saved):
    assert len(load(saved).samples) == 0


def test_what_is_loaded_can_be_calculated_with(saved):
    found = load(saved)
    assert found.spans.start_ns.dtype == np.int64
    assert len(found.spans.of(Kind.NEXT)) == len(SOME.spans.of(Kind.NEXT))


def test_the_file_is_there_whole_or_not_at_all(saved):
    assert [path.name for path in saved.parent.iterdir()] == [NAME]


def test_a_run_that_is_saved_again_replaces_the_first(saved):
    other = profile(step(input_wait=ms(1)) * 3)
    save(other, saved)
    assert as_values(load(saved)) == as_values(other)


def slug(path) -> str:
    with pytest.raises(UnreadableInputError) as refused:
        load(path)
    assert refused.value.status == EXIT_FAILED
    assert str(path) in refused.value.message
    assert refused.value.hint
    return refused.value.slug


def test_a_file_that_is_not_there(tmp_path):
    assert slug(tmp_path / NAME) == "run-unreadable"


def test_a_folder_instead_of_a_file(tmp_path):
    assert slug(tmp_path) == "run-unreadable"


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b", gzip.compress(b""), gzip.compress(b"hello")])
def test_a_file_that_is_no_saved_run(tmp_path, data):
    (tmp_path / NAME).write_bytes(data)
    assert slug(tmp_path / NAME) == "run-damaged"


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_run_that_is_cut_off(saved, part):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * part)])
    assert slug(saved) == "run-damaged"


def test_a_run_with_a_bit_turned_anywhere_is_refused_or_was_not_harmed(saved):
    data = bytearray(saved.read_bytes())
    for place in range(0, len(data), 97):
        damaged = data.copy()
        damaged[place] ^= 0x10
        saved.write_bytes(damaged)
        try:
            found = load(saved)
        except UnreadableInputError:
            continue
        assert as_values(found) == as_values(SOME)


def test_a_run_of_a_later_version_is_named(saved):
    repacked(saved, format="dlprof.run/2")
    assert slug(saved) == "run-of-other-version"


def test_a_run_of_a_later_version_is_named_though_its_fields_are_others(tmp_path):
    later = {"format": "dlprof.run/2", "content": [1, 2, 3]}
    (tmp_path / NAME).write_bytes(gzip.compress(msgspec.msgpack.encode(later)))
    assert slug(tmp_path / NAME) == "run-of-other-version"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"profile": {}}, id="nothing in it"),
        pytest.param({"tables": {}}, id="no tables"),
    ],
)
def test_a_run_in_which_something_is_missing(saved, changes):
    repacked(saved, **changes)
    assert slug(saved) == "run-damaged"


TABLES = {"spans": Spans, "samples": Samples}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda names: {"columns": {}}, id="no columns"),
        pytest.param(lambda names: {"columns": dict.fromkeys(names, b"") | {names[1]: bytes(8)}}, id="unequal columns"),
        pytest.param(lambda names: {"columns": dict.fromkeys(names, bytes(7))}, id="half a number"),
        pytest.param(lambda names: {"columns": dict.fromkeys((*names, "more"), b"")}, id="a column more"),
        pytest.param(lambda names: {"rest": {}, "columns": 5}, id="columns that are a number"),
        pytest.param(lambda names: {"rest": {"names": [1], "stacks": [1]}}, id="texts that are numbers"),
    ],
)
def test_a_run_with_a_table_that_is_none(saved, table, change):
    whole = msgspec.msgpack.decode(gzip.decompress(saved.read_bytes()))["tables"]
    changes = change(TABLES[table].COLUMNS)
    repacked(saved, tables=whole | {table: whole[table] | changes})
    assert slug(saved) == "run-damaged"


def test_a_command_with_a_file_name_that_is_not_utf8_can_be_saved(tmp_path):
    odd = replace(SOME, run=replace(SOME.run, command=("python", "caf\udce9.py")))
    save(odd, tmp_path / NAME)
    assert load(tmp_path / NAME).run.command[0] == "python"


def test_the_format_says_its_version():
    assert FORMAT == "dlprof.run/1"
    assert run_file.NAME == "run.dlprof"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("train.py", "train.py"), ("caf\udce9.py", "caf\\xe9.py"), ("half \ud800", "half \\ud800"), ("中文", "中文")],
)
def test_texts_become_such_that_every_format_can_hold_them(text, shown):
    assert run_file.printable(text) == shown
    run_file.printable(text).encode("utf-8")
