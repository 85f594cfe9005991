from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.formats.event_file import SUFFIX, EventWriter, read_events

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
field_names = st.text("abcdefgh_", min_size=1).filter(lambda name: name not in ("event", "self"))


def path_of(folder: Path) -> Path:
    return folder / f"{os.getpid()}{SUFFIX}"


def written(folder: Path, *events: tuple[str, dict]) -> Path:
    writer = EventWriter(str(folder))
    for event, fields in events:
        writer.write(event, **fields)
    writer.close()
    return path_of(folder)


@settings(max_examples=40, deadline=None)
@given(fields=st.dictionaries(field_names, json_values, max_size=4))
def test_whatever_json_can_hold_comes_back(tmp_path_factory, fields):
    path = written(tmp_path_factory.mktemp("recording"), ("loader", fields))
    assert read_events(path) == [{"event": "loader", **fields}]


def test_events_come_in_the_order_in_which_they_were_written(tmp_path):
    path = written(tmp_path, *[("notice", {"slug": str(number)}) for number in range(5)])
    assert [event["slug"] for event in read_events(path)] == list("01234")


def test_a_value_that_json_does_not_know_is_written_as_its_text(tmp_path):
    path = written(tmp_path, ("loader", {"dataset": Path("/data")}))
    assert read_events(path) == [{"event": "loader", "dataset": "/data"}]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"event":"exit","exc', id="cut off"),
        pytest.param(b"\x00\x00\x00\x00", id="a hole in the file"),
        pytest.param(b"[1, 2]", id="no object"),
        pytest.param(b'{"slug":"drift"}', id="no event"),
        pytest.param(b'{"event":7}', id="an event without a name"),
        pytest.param(b"\xff\xfe{}", id="not UTF-8"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_damaged_line_costs_only_itself(tmp_path, line):
    path = written(tmp_path, ("loader", {"id": 1}), ("loader", {"id": 2}))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, line, second]) + b"\n")
    assert [event["id"] for event in read_events(path)] == [1, 2]


def test_the_last_line_may_be_cut_off_anywhere(tmp_path):
    path = written(tmp_path, ("loader", {"id": 1}), ("exit", {"exception": None}))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = read_events(path)
        assert found == [{"event": "loader", "id": 1}, {"event": "exit", "exception": None}][: len(found)]


def test_a_text_with_line_breaks_of_any_kind_stays_one_line(tmp_path):
    message = "a\nb\r\nc\u2028d\x85e"
    path = written(tmp_path, ("exit", {"message": message}))
    assert [event["message"] for event in read_events(path)] == [message]


def test_a_second_writer_of_the_process_goes_on_behind_the_first(tmp_path):
    written(tmp_path, ("loader", {"id": 1}))
    path = written(tmp_path, ("loader", {"id": 2}))
    assert [event["id"] for event in read_events(path)] == [1, 2]


def test_a_file_that_is_gone_is_the_callers_to_know(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_events(tmp_path / "1.events")
