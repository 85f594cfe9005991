"""Traces of every kind that comes along, hand-made: what is read of them, and what is said of the rest."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import zlib
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.analysis.trace_rank import analyse
from dlprof.errors import UnreadableInputError
from dlprof.formats import json_events
from dlprof.formats.torch_trace import read_trace
from dlprof.model.trace import Activity, Trace


def event(name="aten::add", start_us=0, length_us=1, cat="cpu_op", pid=7, tid=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": length_us, "args": args}


def some_events(number=50):
    return [event(start_us=10 * i, length_us=5, correlation=i) for i in range(number)]


def kineto(document, indent=2):
    """As Kineto lays it out: every event begins on a line of its own."""
    events = document.pop("traceEvents")
    head = json.dumps(document)[1:-1]
    pad = " " * indent
    texts = [pad + "{\n" + 2 * pad + json.dumps(each)[1:-1] + "\n" + pad + "}" for each in events]
    return ("{\n" + (head + ",\n" if head else "") + '"traceEvents": [\n' + ",\n".join(texts) + "\n]}\n").encode()


def written(tmp_path: Path, data: bytes | object, name="a.pt.trace.json") -> Path:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


def read(tmp_path, data, name="a.pt.trace.json", **options) -> Trace:
    return read_trace(written(tmp_path, data, name), **options)


def refused(tmp_path, data, name="a.pt.trace.json", **options) -> UnreadableInputError:
    with pytest.raises(UnreadableInputError) as caught:
        read(tmp_path, data, name, **options)
    assert "\n" not in caught.value.message
    return caught.value


def rows(trace: Trace):
    events = trace.events
    return [
        (trace.names[name], Activity(what), start, end)
        for name, what, start, end in zip(
            events.name_id, events.activity, events.start_ns.tolist(), events.end_ns.tolist(), strict=True
        )
    ]


def slugs(trace):
    return {notice.slug for notice in trace.notices}


LAYOUTS = {
    "object": lambda events: json.dumps({"schemaVersion": 1, "traceEvents": events}).encode(),
    "array": lambda events: json.dumps(events).encode(),
    "kineto": lambda events: kineto({"schemaVersion": 1, "traceEvents": events}),
    "compact": lambda events: json.dumps({"traceEvents": events}, separators=(",", ":")).encode(),
    "indented": lambda events: json.dumps({"a": 1, "traceEvents": events, "z": {"b": [1]}}, indent=1).encode(),
    "indented as kineto, with more behind": lambda events: json.dumps(
        {"traceEvents": events, "deviceProperties": [{"name": "A"}, {"name": "B"}]}, indent=1
    ).encode(),
    "byte order mark": lambda events: b"\xef\xbb\xbf \n" + json.dumps({"traceEvents": events}).encode(),
    "gzip": lambda events: gzip.compress(json.dumps({"traceEvents": events}).encode()),
    "two gzip members": lambda events: (
        gzip.compress(json.dumps(events).encode()[:700]) + gzip.compress(json.dumps(events).encode()[700:]) + bytes(100)
    ),
}


@pytest.mark.parametrize("block", [64, 700, 2**20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_whatever_the_size_of_a_piece(tmp_path, monkeypatch, layout, block):
    monkeypatch.setattr(json_events, "BLOCK_BYTES", block)
    trace = read(tmp_path, LAYOUTS[layout](some_events()), "whatever.bin")
    assert rows(trace) == [("aten::add", Activity.OPERATOR, 10_000 * i, 10_000 * i + 5000) for i in range(50)]
    assert trace.events.correlation.tolist() == list(range(50))
    assert (trace.seen, trace.notices) == (50, ())


@pytest.mark.parametrize("block", [64, 2**20])
def test_brackets_and_quotes_within_names_are_no_borders(tmp_path, monkeypatch, block):
    monkeypatch.setattr(json_events, "BLOCK_BYTES", block)
    names = ['f<[]{"}>', "a\\", 'b\\"', "}, {", ']}, "traceEvents": [', "\\\\\\"]
    trace = read(tmp_path, {"traceEvents": [event(name, Call=[{"a": [{}]}, {"b": "}"}]) for name in names]})
    assert [name for name, *_ in rows(trace)] == names
    assert trace.notices == ()


def test_what_stands_before_and_behind_the_events_is_known(tmp_path):
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "traceEvents": some_events(),
        "deviceProperties": [{"name": "NVIDIA H100"}],
        "baseTimeNanoseconds": 1767189312000000000,
    }
    origin = read(tmp_path, document, "host_12.1694128201545.pt.trace.json").origin
    assert (origin.rank, origin.world_size, origin.devices) == (3, 8, ("NVIDIA H100",))
    assert (origin.base_ns, origin.worker) == (1767189312000000000, "host_12")


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank-5.trace.json", 5), ("worker7.pt.trace.json", 7), ("job_rank12_x.json", 12), ("frank3.json", None)],
)
def test_the_rank_is_taken_from_the_name_where_the_trace_does_not_say_it(tmp_path, name, rank):
    assert read(tmp_path, some_events(), name).origin.rank == rank


# ---- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start_ns"),
    [
        ("1623142623460016", 1623142623460016000),
        ("1712000000000123.001", 1712000000000123001),
        ("1712000000000123.999", 1712000000000123999),
        ("3743411222487.063", 3743411222487063),
        ("12.3456", 12346),
        ("-5.5", -5500),
        ("1.5e3", 1500000),
        ('"250.25"', 250250),
    ],
)
def test_a_time_is_exact_to_the_nanosecond(tmp_path, text, start_ns):
    others = json.dumps(event(start_us=0)).replace('"ts": 0', '"ts": 1712000000000000.5')
    one = json.dumps(event("aten::mul")).replace('"ts": 0', f'"ts": {text}')
    alone = read(tmp_path, f"[{one}]".encode())
    among = read(tmp_path, f'{{"traceEvents": [{others}, {one}]}}'.encode())
    assert [rows(trace)[-1][2] for trace in (alone, among)] == [start_ns, start_ns]


@pytest.mark.parametrize(
    "change",
    [
        {"ts": None},
        {"dur": None},
        {"dur": -1},
        {"ts": "soon"},
        {"ts": 1e300},
        {"dur": 1e300},
        {"ts": [1]},
        {"ts": True, "dur": "x"},
    ],
)
def test_an_event_without_a_usable_time_is_left_out_and_said(tmp_path, change):
    trace = read(tmp_path, {"traceEvents": [*some_events(3), event() | change]})
    assert len(trace.events) == 3
    assert [(notice.slug, notice.count) for notice in trace.notices] == [("trace-events-without-time", 1)]


@pytest.mark.parametrize("missing", ["ts", "dur"])
def test_an_event_that_lacks_its_time_is_left_out_and_said(tmp_path, missing):
    lacking = {key: value for key, value in event().items() if key != missing}
    assert slugs(read(tmp_path, {"traceEvents": [*some_events(3), lacking]})) == {"trace-events-without-time"}


# ---- generations ---------------------------------------------------------------------------------------------------


def test_names_of_two_generations_mean_the_same(tmp_path):
    new = [
        event("aten::mm", 0, cat="cpu_op"),
        event("cudaLaunchKernel", 1, cat="cuda_runtime"),
        event("cuLaunchKernelEx", 1, cat="cuda_driver"),
        event("hipLaunchKernel", 1, cat="hip_runtime"),
        event("cudaDeviceSynchronize", 1, cat="cuda_runtime"),
        event("cudaMalloc", 1, cat="cuda_runtime"),
        event("gemm", 2, cat="kernel", pid=0, tid=7),
        event("ncclDevKernel_AllReduce", 2, cat="kernel", pid=0, tid=20),
        event("Memcpy HtoD (Pageable -> Device)", 3, cat="gpu_memcpy", pid=0, tid=7, bytes=10),
        event("Memcpy HtoD (Host -> Device)", 3, cat="gpu_memcpy", pid=0, tid=7, bytes="20"),
        event("Memset (Device)", 4, cat="gpu_memset", pid=0, tid=7),
        event("ProfilerStep#3", 5, cat="user_annotation"),
        event("ProfilerStep#3", 5, cat="gpu_user_annotation", pid=0, tid=7),
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 6, cat="user_annotation"),
        event("Optimizer.step#SGD.step", 7, cat="user_annotation"),
        event("Load Data", 8, cat="user_annotation"),
        event("train.py(3): <module>", 8, cat="python_function"),
        event("torch/serialization.py(944): save", 8, cat="python_function"),
        event("ac2g", 8, cat="ac2g"),
    ]
    expected = [
        Activity.OPERATOR,
        Activity.LAUNCH,
        Activity.LAUNCH,
        Activity.LAUNCH,
        Activity.SYNCHRONIZE,
        Activity.ALLOCATOR,
        Activity.KERNEL,
        Activity.COLLECTIVE,
        Activity.COPY_H2D,
        Activity.COPY_H2D,
        Activity.FILL,
        Activity.STEP,
        Activity.NEXT,
        Activity.OPTIMIZER,
        Activity.ANNOTATION,
        Activity.FRAME,
        Activity.CHECKPOINT,
    ]
    trace = read(tmp_path, {"traceEvents": new})
    assert trace.events.activity.tolist() == expected
    assert trace.events.size_bytes[8:10].tolist() == [10, 20]
    renamed = {"cpu_op": "Operator", "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}
    renamed |= {"cuda_runtime": "Runtime", "cuda_driver": "Runtime", "hip_runtime": "Runtime"}
    renamed |= {"user_annotation": "Operator"}
    old = [each | {"cat": renamed.get(each["cat"], each["cat"])} for each in new if each["name"] != "Load Data"]
    assert read(tmp_path, old).events.activity.tolist() == [it for it in expected if it is not Activity.ANNOTATION]


def test_the_profiler_before_kineto_gave_no_category_and_no_arguments(tmp_path):
    def plain(name, pid, tid):
        return {"name": name, "ph": "X", "ts": 1.5, "dur": 2.5, "tid": tid, "pid": pid}

    events = [
        plain("conv2d", "CPU functions", 1),
        plain("volta_sgemm", "CUDA functions", 0),
        plain("Memcpy HtoD", "CUDA functions", 0),
        plain("volta_sgemm", 0, "stream 7"),
        plain("aten::add", 12, 12),
        plain("AddBackward0", 12, 13),
        plain("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 12, 12),
        plain("somebody's own", 12, 12),
    ]
    assert [(name, what) for name, what, *_ in rows(read(tmp_path, events))] == [
        ("conv2d", Activity.OPERATOR),
        ("volta_sgemm", Activity.KERNEL),
        ("Memcpy HtoD", Activity.COPY_H2D),
        ("volta_sgemm", Activity.KERNEL),
        ("aten::add", Activity.OPERATOR),
        ("AddBackward0", Activity.OPERATOR),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Activity.NEXT),
    ]


def test_of_dlprofs_own_traces_the_steps_under_torch_profiler_are_read(tmp_path):
    steps = 2_000_000_001
    events = [
        event("step 4", 0, 10, "dlprof.step", tid=steps),
        event("torch.profiler is on", 10, 20, "dlprof.step", tid=steps),
        event("traced step 5", 10, 20, "dlprof.step", tid=steps),
        event("next(loader)", 10, 5, "dlprof.loop"),
        event("collate_fn", 10, 5, "dlprof.data", pid=8, tid=8),
        event("aten::mm", 15, 5),
    ]
    trace = read(tmp_path, {"traceEvents": events, "dlprof": {"rank": 0}})
    assert [(name, what) for name, what, *_ in rows(trace)] == [
        ("traced step 5", Activity.STEP),
        ("next(loader)", Activity.NEXT),
        ("aten::mm", Activity.OPERATOR),
    ]
    assert slugs(trace) == {"trace-of-dlprof"}
    (rank,) = analyse(trace)
    assert [(each.index, each.duration_ns) for each in rank.steps.all] == [(5, 20_000)]
    assert rank.table.measures.request.tolist() == [5000]


def test_ids_that_are_text_here_and_numbers_there_are_one_lane(tmp_path):
    trace = read(tmp_path, [event(pid=12, tid="34"), event(pid="12", tid=34), event(pid=12, tid="stream 7")])
    lanes = [trace.lanes[each] for each in trace.events.lane.tolist()]
    assert lanes[0] == lanes[1] != lanes[2]


# ---- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["object", "array", "kineto", "compact"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_trace_is_read_up_to_there(tmp_path, layout, compressed):
    data = LAYOUTS[layout](some_events(3000))
    cut = gzip.compress(data)[:-2000] if compressed else data[: len(data) // 2]
    trace = read(tmp_path, cut)
    assert 500 < len(trace.events) < 3000
    assert [notice.slug for notice in trace.notices] == ["trace-truncated"]
    assert trace.notices[0].values["events"] == len(trace.events)
    assert trace.events.start_ns.tolist() == [10_000 * i for i in range(len(trace.events))]


def test_damaged_gzip_data_is_read_up_to_the_damage(tmp_path):
    data = bytearray(gzip.compress(LAYOUTS["object"](some_events(5000))))
    data[-3000:-2900] = bytes(100)
    trace = read(tmp_path, bytes(data))
    assert 0 < len(trace.events) < 5000
    assert "trace-truncated" in slugs(trace)


@pytest.mark.parametrize("layout", ["object", "kineto"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"correlation": 7}', b'"correlation": 7, "gb": NaN}'),
        (b'"correlation": 7}', b'"correlation": 7, "gb": [-Infinity, inf]}'),
        (b'"correlation": 7}', b'"correlation": 7,}'),
        (b'"correlation": 49}', b'"correlation": 49, }'),
    ],
)
def test_what_json_does_not_allow_is_mended(tmp_path, layout, old, new):
    data = LAYOUTS[layout](some_events())
    assert old in data
    trace = read(tmp_path, data.replace(old, new))
    assert len(trace.events) == 50
    assert slugs(trace) == {"trace-mended"}


def test_a_comma_after_the_last_event_is_no_damage(tmp_path):
    assert len(read(tmp_path, LAYOUTS["object"](some_events()).replace(b"}]}", b"}, ]}")).events) == 50


def test_bytes_that_are_no_text_cost_one_name(tmp_path):
    data = LAYOUTS["kineto"](some_events()).replace(b"aten::add", b"aten::\xff\xfe", 1)
    trace = read(tmp_path, data)
    assert [name for name, *_ in rows(trace)] == ["aten::\ufffd\ufffd", *["aten::add"] * 49]


def test_entries_that_are_no_events_are_counted(tmp_path):
    mixed = [*some_events(2), 3, "text", None, [1, {"a": 2}], *some_events(2), {"ph": "X"}, {"ph": 5}, {}]
    trace = read(tmp_path, {"traceEvents": mixed})
    assert len(trace.events) == 4
    assert "trace-entries-lost" in slugs(trace)


def test_an_event_that_is_no_json_costs_itself(tmp_path):
    data = LAYOUTS["object"](some_events()).replace(b'"correlation": 7}', b'"correlation": 7 7}')
    trace = read(tmp_path, data)
    assert len(trace.events) == 49
    assert [(each.slug, each.count) for each in trace.notices] == [("trace-entries-lost", 1)]


def test_events_of_odd_types_are_taken_as_they_are_meant(tmp_path):
    odd = [
        event() | {"ts": "5", "dur": "2", "pid": 1.5, "tid": None, "args": {"correlation": "12", "bytes": 1.0}},
        event() | {"args": [1]},
        event(correlation=2**70),
        event() | {"args": "text"},
        event("x") | {"name": 5},
    ]
    trace = read(tmp_path, {"traceEvents": odd})
    assert trace.events.correlation.tolist() == [12, -1, -1, -1, -1]
    assert trace.events.end_ns.tolist()[0] == 7000
    assert trace.names[trace.events.name_id[4]] == "5"


# ---- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"  \n ", "empty"),
        (b"<!DOCTYPE html><html>404</html>", "web page"),
        (pickle.dumps({"a": 1}), "pickle"),
        (b"PK\x03\x04abc", "zip"),
        (b"just some words", "no JSON"),
        (b'{"a": 1}', "no list of traceEvents"),
        (b'{"traceEvents": 5}', "no list of traceEvents"),
        (b"\x1f\x8bnot gzip at all", "damaged"),
        (gzip.compress(b""), "empty"),
        (gzip.compress(pickle.dumps([1])), "pickle"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, data, said):
    error = refused(tmp_path, data)
    assert (error.slug, error.status) == ("not-a-trace", 70)
    assert said in error.message


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"ph": "X", "cat": "toplevel", "name": "MessageLoop", "ts": 1, "dur": 2, "pid": 1, "tid": 1}],
        [{"ph": "X", "name": "f", "ts": 1, "dur": 2, "pid": 1, "tid": 1}],
        [{"ph": "B", "cat": "cpu_op", "name": "x", "ts": 1}],
    ],
)
def test_other_tools_traces_hold_no_pytorch_activity(tmp_path, events):
    error = refused(tmp_path, {"traceEvents": events})
    assert error.slug == "no-pytorch-activity"
    assert "no PyTorch activity found" in error.message


def test_a_file_may_be_named_by_a_text(tmp_path):
    path = written(tmp_path, {"traceEvents": some_events(3)})
    assert len(read_trace(str(path)).events) == len(read_trace(path).events) > 0


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(UnreadableInputError, match="No such file"):
        read_trace(str(tmp_path / "none.json"))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_larger_than_allowed_is_refused_and_what_is_advised_is_enough(tmp_path, compressed):
    data = LAYOUTS["object"](some_events(30_000))
    data = gzip.compress(data) if compressed else data
    error = refused(tmp_path, data, max_json_mb=1)
    assert error.slug == "trace-too-large"
    (advised,) = (int(word) for word in error.hint.replace(",", " ").split() if word.isdecimal())
    assert len(read(tmp_path, data, max_json_mb=advised).events) == 30_000


@pytest.mark.parametrize(
    ("begins", "says", "command"),
    [
        (bz2.compress(b"[]"), "bzip2", "bunzip2"),
        (lzma.compress(b"[]"), "xz", "xz -d"),
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16", "iconv"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n", "Git LFS", "git lfs pull"),
        (b"PK\x03\x04", "zip", "unzip"),
    ],
)
def test_what_holds_a_trace_is_named_with_the_command_that_gets_it(tmp_path, begins, says, command):
    error = refused(tmp_path, begins, name="it is here.json")
    assert says in error.message
    assert command in error.hint
    assert "'" in error.hint  # the path is quoted


@pytest.mark.parametrize("value", ["null", "42", "-1.5e3", '"text"', "true"])
def test_a_single_value_is_no_list_of_events(tmp_path, value):
    assert "a single value" in refused(tmp_path, value.encode()).message


@pytest.mark.parametrize("empty", ["[]", '{"traceEvents": []}'])
def test_a_trace_without_an_event_is_said(tmp_path, empty):
    assert "there is no event in it" in refused(tmp_path, empty.encode()).message


@pytest.mark.parametrize("where", ["args", "beside"])
def test_endless_nesting_costs_what_it_stands_in(tmp_path, where):
    deep = b"[" * 200_000 + b"]" * 200_000
    events = json.dumps(some_events())[1:-1].encode()
    if where == "args":
        nested = b'{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1, "dur": 1, "args": {"a": ' + deep + b"}}, "
        trace = read(tmp_path, b'{"traceEvents": [' + nested + events + b"]}")
        assert slugs(trace) == {"trace-entries-lost"}
    else:
        trace = read(tmp_path, b'{"a": ' + deep + b', "traceEvents": [' + events + b"]}")
    assert len(trace.events) == 50


def test_a_compressed_bomb_is_refused_at_the_limit(tmp_path, monkeypatch):
    inflated = []
    made = zlib.decompressobj

    class Counting:
        def __init__(self, **options):
            self.inner = made(**options)

        def decompress(self, *arguments):
            inflated.append(len(data := self.inner.decompress(*arguments)))
            return data

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    one = json.dumps(event()).encode() + b", "
    bomb = gzip.compress(b"[" + one * 300_000)
    assert len(bomb) < 300_000
    error = refused(tmp_path, bomb, max_json_mb=5)
    assert error.slug == "trace-too-large"
    assert "--max-size" in error.hint
    assert sum(inflated) < 12_000_000


def test_a_compressed_bomb_of_nothing_is_refused_at_once(tmp_path):
    assert refused(tmp_path, gzip.compress(b" " * 60_000_000), max_json_mb=100).slug == "not-a-trace"


def test_progress_goes_up_to_the_size_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(json_events, "BLOCK_BYTES", 4096)
    told = []
    path = written(tmp_path, gzip.compress(LAYOUTS["object"](some_events(2000))))
    read_trace(path, progress=lambda done, size: told.append((done, size)))
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert told == sorted(told)


# ---- any damage ----------------------------------------------------------------------------------------------------

ODD = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"NaN", b"1e400", b"null", b"\xff", b"9" * 25, b'"ts": [],']


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["object", "array", "kineto", "compact", "gzip"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from([*ODD, b""])), max_size=6),
    st.sampled_from([200, 2**20]),
)
def test_whatever_is_wrong_with_a_trace_it_is_read_or_refused(tmp_path_factory, layout, changes, block):
    data = LAYOUTS[layout](some_events(30))
    for place, removed, added in changes:
        at = int(place * len(data))
        data = data[:at] + added + data[at + removed :]
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(data)
    with mock.patch.object(json_events, "BLOCK_BYTES", block):
        try:
            trace = read_trace(path)
        except UnreadableInputError:
            return
    assert len(trace.events) <= trace.seen
    assert (trace.events.end_ns >= trace.events.start_ns).all()


@pytest.mark.parametrize("layout", ["object", "array", "kineto", "compact", "indented"])
@pytest.mark.parametrize("wrong", [b'"', b"]", b"}", b"]}", b'"]', b"{", b"\\"])
@pytest.mark.parametrize("place", [3, 400, 795])
def test_a_damaged_byte_costs_one_event_and_not_all_that_follow(tmp_path, layout, wrong, place):
    data = LAYOUTS[layout](some_events(800))
    at = data.index(b'"correlation"', data.index(b'"ts":%b%d' % (b" " if b'"ts": ' in data else b"", 10 * place))) + 13
    trace = read(tmp_path, data[:at] + wrong + data[at + len(wrong) :])
    assert len(trace.events) >= 798
    assert slugs(trace) == {"trace-entries-lost"}


def test_what_is_lost_is_said_as_a_part_of_the_trace(tmp_path):
    data = LAYOUTS["kineto"](some_events(800))
    at, behind = (data.index(b'"ts": %d' % (10 * place)) for place in (200, 400))
    trace = read(tmp_path, data[:at] + b"x" * (behind - at) + data[behind:])
    (lost,) = (notice for notice in trace.notices if notice.slug == "trace-entries-lost")
    assert lost.values["share"] == pytest.approx(0.25, abs=0.02)


def test_a_trace_that_was_appended_to_itself_counts_once(tmp_path):
    trace = read(tmp_path, {"traceEvents": [*some_events(), *some_events()]})
    assert len(trace.events) == 50
    assert slugs(trace) == {"trace-doubled"}
    assert slugs(read(tmp_path, {"traceEvents": [*some_events(), *some_events(49)]})) == set()


@pytest.mark.parametrize(
    ("top", "devices"),
    [
        ({}, None),
        ({"deviceProperties": []}, ()),
        ({"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}, ("NVIDIA H100",)),
    ],
)
def test_that_there_is_no_device_is_told_from_not_knowing(tmp_path, top, devices):
    assert read(tmp_path, {**top, "traceEvents": some_events()}).origin.devices == devices
