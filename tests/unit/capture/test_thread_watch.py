"""What threads of other processes are blocked on, seen without stopping them."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from children import child, eventually

from dlprof.capture import thread_watch
from dlprof.capture.interpreter import LAYOUT_SUFFIX, RemoteStacks
from dlprof.capture.thread_watch import Thread, ThreadWatch, call_names, can_look_at
from dlprof.formats.sample_file import Frames, read_samples
from dlprof.model.kinds import Doing

PLENTY = 1 << 30
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


# ---- numbers of system calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_call_is_named_once_and_its_meaning_is_known(machine):
    names = call_names(machine)
    assert [name for name, count in Counter(names.values()).items() if count > 1] == []
    meant = {*thread_watch._ALWAYS, *thread_watch._ON_DESCRIPTOR, *thread_watch._POLLS, *thread_watch._SELECTS, "fcntl"}
    assert set(names.values()) <= meant


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_number_is_given_twice(machine):
    table = {"x86_64": thread_watch._X86_64, "aarch64": thread_watch._AARCH64}[machine].split()
    assert len(set(table[1::2])) == len(table[1::2])


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_are_those_of_the_kernels_headers(machine):
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip("the kernel's headers are not installed")
    found = re.findall(r"#define __NR(3264)?_(\w+)\s+(\d+)", header.read_text())
    # Calls of the last years may be newer than the headers.
    said = {name: int(number) for _, name, number in found}
    ours = {name: number for number, name in call_names(machine).items() if name in said or number < 430}
    # The generic header calls it by what the kernel's function is named.
    said.setdefault("newfstatat", said.get("fstatat", -1))
    assert {name: said.get(name) for name in ours} == ours


def test_of_an_unknown_machine_nothing_is_named():
    assert call_names("riscv64") == call_names("") == {}


# ---- real threads ----------------------------------------------------------------------------------------------------

CALLS = """
import ctypes, fcntl, multiprocessing, os, select, signal, socket, threading, time

here, there = socket.socketpair()
server = socket.create_server(("127.0.0.1", 0))

def pipe():
    os.read(0, 1)

def pipe_in_a_library():
    ctypes.CDLL(None).read(0, ctypes.create_string_buffer(1), 1)

def pipe_with_the_gil():
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)

def pipe_that_is_full():
    _, end = os.pipe()
    os.write(end, b"x" * fcntl.fcntl(end, fcntl.F_GETPIPE_SZ))
    os.write(end, b"x")

def pipe_polled():
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.poll()

def fifo():
    with open(sys.argv[2], "rb", buffering=0) as file:
        file.read(1)

def recv():
    here.recv(1)

def recv_with_timeout():
    here.settimeout(100_000)
    here.recv(1)

def recvmsg():
    here.recvmsg(1)

def accept():
    server.accept()

def epoll():
    poll = select.epoll()
    poll.register(here, select.EPOLLIN)
    poll.poll()

def select_of_nothing():
    select.select([], [], [], 100_000)

def poll_of_nothing():
    select.poll().poll(1_000_000_000)

def sleep():
    time.sleep(100_000)

def usleep():
    while True:
        ctypes.CDLL(None).usleep(2**31)

def sleep_with_the_gil():
    ctypes.PyDLL(None).sleep(100_000)

def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()

def lock_with_timeout():
    threading.Event().wait(100_000)

def shared_lock():
    held = multiprocessing.Lock()
    held.acquire()
    held.acquire()

def flock():
    with open(sys.argv[2], "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

def lockf():
    with open(sys.argv[2], "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)

def eventfd():
    os.eventfd_read(os.eventfd(0))

def signal_awaited():
    signal.sigwait([signal.SIGUSR1])

def selected():
    select.select([0], [], [])

def computing():
    while True:
        pass

tell()
globals()[sys.argv[1]]()
"""
SEEN = {
    "pipe": (Doing.PIPE, "read"),
    "pipe_in_a_library": (Doing.PIPE, "read"),
    "pipe_with_the_gil": (Doing.PIPE, "read"),
    "pipe_that_is_full": (Doing.PIPE, "write"),
    "pipe_polled": (Doing.PIPE, "poll"),
    "recv": (Doing.SOCKET, "recvfrom"),
    "recv_with_timeout": (Doing.SOCKET, "poll"),
    "recvmsg": (Doing.SOCKET, "recvmsg"),
    "accept": (Doing.SOCKET, "accept4"),
    "epoll": (Doing.SOCKET, "epoll_wait"),
    "select_of_nothing": (Doing.SLEEP, None),
    "poll_of_nothing": (Doing.SLEEP, "poll"),
    "sleep": (Doing.SLEEP, "clock_nanosleep"),
    "usleep": (Doing.SLEEP, "clock_nanosleep"),
    "sleep_with_the_gil": (Doing.SLEEP, "clock_nanosleep"),
    "lock": (Doing.LOCK, "futex"),
    "lock_with_timeout": (Doing.LOCK, "futex"),
    "shared_lock": (Doing.LOCK, "futex"),
    "eventfd": (Doing.OTHER, "read"),
    "signal_awaited": (Doing.OTHER, None),
    "selected": (Doing.OTHER, None),
}
"""What each is seen to be doing, and in which call where every C library makes the same."""


def eventually_doing(pid: int, expected: Doing) -> Doing:
    thread = Thread(pid, pid)
    try:
        return eventually(thread.doing, lambda found: found is expected)
    finally:
        thread.close()


@pytest.mark.parametrize("call", SEEN)
def test_what_a_process_is_blocked_on(tmp_path, call):
    expected, name = SEEN[call]
    with child(tmp_path, CALLS, call) as other:
        other.told()
        assert eventually_doing(other.pid, expected) is expected
        if name is not None and os.uname().machine == "x86_64":
            number = eventually(lambda: call_number(other.pid), lambda found: call_names("x86_64").get(found) == name)
            assert call_names("x86_64").get(number) == name


def call_number(pid: int) -> int:
    first = Path(f"/proc/{pid}/task/{pid}/syscall").read_text().split()[0]
    return -1 if first == "running" else int(first)


def test_a_process_that_computes_is_running(tmp_path):
    with child(tmp_path, CALLS, "computing") as other:
        other.told()
        assert eventually_doing(other.pid, Doing.RUNNING) is Doing.RUNNING


@pytest.mark.parametrize(
    ("call", "hold"),
    [
        ("flock", lambda file: fcntl.flock(file, fcntl.LOCK_EX)),
        ("lockf", lambda file: fcntl.lockf(file, fcntl.LOCK_EX)),
    ],
)
def test_a_locked_file_is_a_lock(tmp_path, call, hold):
    path = tmp_path / "held"
    with path.open("w+b") as file:
        hold(file)
        with child(tmp_path, CALLS, call, str(path)) as other:
            other.told()
            assert eventually_doing(other.pid, Doing.LOCK) is Doing.LOCK


def test_a_pipe_with_a_name_passes_for_a_file(tmp_path):
    # Only stat tells them apart, and that may hang on a network file system.
    path = tmp_path / "fifo"
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    try:
        with child(tmp_path, CALLS, "fifo", str(path)) as other:
            other.told()
            assert eventually_doing(other.pid, Doing.DISK) is Doing.DISK
    finally:
        os.close(held)


WITH_A_HELPER = """
import os, select, socket, threading

here, there = socket.socketpair()
server = socket.create_server(("127.0.0.1", 0))

def receives():
    here.recv(1)

def receives_with_timeout():
    here.settimeout(100_000)
    here.recv(1)

def listens():
    server.accept()

def reads_a_pipe():
    os.read(0, 1)

def waits_too():
    threading.Event().wait()

def computes():
    while True:
        pass

def helper():
    tell(threading.get_native_id())
    globals()[sys.argv[1]]()

threading.Thread(target=helper, daemon=True).start()
held = threading.Lock()
held.acquire()
held.acquire()
"""


@pytest.mark.parametrize(
    ("helper", "helpers", "seen"),
    [
        ("receives", Doing.SOCKET, Doing.SOCKET),
        ("receives_with_timeout", Doing.SOCKET, Doing.SOCKET),
        ("listens", Doing.SOCKET, Doing.LOCK),
        ("reads_a_pipe", Doing.PIPE, Doing.LOCK),
        ("waits_too", Doing.LOCK, Doing.LOCK),
    ],
)
def test_a_lock_is_what_the_thread_reads_that_it_waits_for(tmp_path, helper, helpers, seen):
    with child(tmp_path, WITH_A_HELPER, helper) as other:
        (number,) = other.told()
        second = Thread(other.pid, number)
        assert eventually(second.doing, lambda found: found is helpers) is helpers
        second.close()
        assert eventually_doing(other.pid, seen) is seen
        # It is where it stays now, and so is its helper.
        assert eventually_doing(other.pid, seen) is seen


def test_what_time_a_thread_has_spent_is_counted(tmp_path):
    with child(tmp_path, CALLS, "pipe") as other:
        other.told()
        assert eventually_doing(other.pid, Doing.PIPE) is Doing.PIPE
        thread = Thread(other.pid, other.pid)
        first = thread.times()
        assert first[0] > 0
        assert first[1] >= 0
        thread.close()


def test_a_thread_that_is_not_there_cannot_be_looked_at():
    with pytest.raises(FileNotFoundError):
        Thread(os.getpid(), 1 << 30)


def test_a_thread_that_has_ended_is_an_error(tmp_path):
    with child(tmp_path, CALLS, "pipe") as other:
        other.told()
        thread = Thread(other.pid, other.pid)
        other.end()
        for look in (thread.times, thread.doing):
            with pytest.raises((OSError, ValueError)):
                look()
        thread.close()


def test_children_can_be_looked_at_and_those_that_are_not_there_cannot(tmp_path, monkeypatch):
    with child(tmp_path, CALLS, "pipe") as other:
        other.told()
        assert can_look_at(other.pid)
        monkeypatch.setattr(thread_watch, "_NAMES", {})
        assert not can_look_at(other.pid)
    monkeypatch.undo()
    assert not can_look_at(1 << 30)


# ---- a pretended /proc -----------------------------------------------------------------------------------------------

PID, THREAD = 100, 101
X86 = {name: number for number, name in call_names("x86_64").items()}
ARM = {name: number for number, name in call_names("aarch64").items()}


class Proc:
    """A folder like /proc with one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = folder / str(PID)
        (self.process / "fd").mkdir(parents=True)

    def calls(self, text: str, thread: int = THREAD) -> None:
        task = self.process / "task" / str(thread)
        task.mkdir(parents=True, exist_ok=True)
        (task / "syscall").write_text(text + "\n")
        (task / "schedstat").write_text("70 8 9\n")
        fields = " ".join(str(number) for number in range(4, 53))
        (task / "stat").write_text(f"{thread} (a name) with ) R {fields}\n")

    def opened(self, number: int, target: str) -> None:
        (self.process / "fd" / str(number)).symlink_to(target)

    def doing(self, names: dict[int, str]) -> Doing:
        thread = Thread(PID, THREAD, self.folder)
        thread._names = names
        try:
            assert thread.times() == (70, 8)
            # Field 15, in ticks.
            assert thread.kernel_ns() == 15 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
            return thread.doing()
        finally:
            thread.close()


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path / "proc")


def call(number: int, *arguments: int) -> str:
    values = [*arguments, *[0] * (6 - len(arguments))]
    return " ".join([str(number), *(hex(value) for value in values), "0x7ffd0", "0x7f00"])


MACHINES = pytest.mark.parametrize(
    ("numbers", "machine"), [pytest.param(X86, "x86_64", id="x86_64"), pytest.param(ARM, "aarch64", id="aarch64")]
)


@MACHINES
@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/data/train.bin", Doing.DISK),
        ("/mnt/nfs/a (deleted)", Doing.DISK),
        ("pipe:[77]", Doing.PIPE),
        ("socket:[78]", Doing.SOCKET),
        ("/dev/pts/0", Doing.OTHER),
        ("/dev/nvidia0", Doing.OTHER),
        ("anon_inode:[eventfd]", Doing.OTHER),
    ],
)
@pytest.mark.parametrize("name", ["read", "pread64", "readv", "write", "fsync", "getdents64"])
def test_a_call_on_a_descriptor_is_what_the_descriptor_is(proc, numbers, machine, name, target, seen):
    proc.opened(5, target)
    proc.calls(call(numbers[name], 5, 0x7F00, 4096))
    assert proc.doing(call_names(machine)) is seen


def test_a_descriptor_that_is_closed_by_now_is_something_else(proc):
    proc.calls(call(X86["read"], 5))
    assert proc.doing(call_names("x86_64")) is Doing.OTHER


@MACHINES
@pytest.mark.parametrize(
    ("name", "arguments", "seen"),
    [
        ("openat", (0,), Doing.DISK),
        ("statx", (0,), Doing.DISK),
        ("newfstatat", (0,), Doing.DISK),
        ("io_uring_enter", (4,), Doing.DISK),
        ("mmap", (0, 4096), Doing.PAGE_FAULT),
        ("munmap", (4096, 4096), Doing.PAGE_FAULT),
        ("msync", (4096, 4096), Doing.PAGE_FAULT),
        ("nanosleep", (4096,), Doing.SLEEP),
        ("clock_nanosleep", (0,), Doing.SLEEP),
        ("futex", (4096,), Doing.LOCK),
        ("semop", (0,), Doing.LOCK),
        ("flock", (3,), Doing.LOCK),
        ("fcntl", (3, 7), Doing.LOCK),
        ("fcntl", (3, 38), Doing.LOCK),
        ("fcntl", (3, 6), Doing.OTHER),
        ("recvfrom", (3,), Doing.SOCKET),
        ("connect", (3,), Doing.SOCKET),
        ("epoll_pwait", (3,), Doing.SOCKET),
        ("ppoll", (0, 0), Doing.SLEEP),
        ("pselect6", (0,), Doing.SLEEP),
        ("pselect6", (4,), Doing.OTHER),
    ],
)
def test_a_call_by_its_number(proc, numbers, machine, name, arguments, seen):
    proc.calls(call(numbers[name], *arguments))
    assert proc.doing(call_names(machine)) is seen


def test_a_number_means_another_call_on_another_machine(proc):
    proc.calls(call(98, 4096))
    # 98 is getrusage there.
    assert proc.doing(call_names("x86_64")) is Doing.OTHER
    assert proc.doing(call_names("aarch64")) is Doing.LOCK


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("running", Doing.RUNNING),
        ("", Doing.RUNNING),
        ("-1 0x7ffdb2a0 0x7f01a2", Doing.PAGE_FAULT),
        (call(9999, 1), Doing.OTHER),
        (call(X86["connect"]), Doing.SOCKET),
    ],
)
def test_a_thread_outside_of_known_calls(proc, text, seen):
    proc.calls(text)
    assert proc.doing(call_names("x86_64")) is seen


@pytest.mark.parametrize("text", ["gone", "0", "0 zz 0x1"])
def test_what_is_not_understood_is_an_error(proc, text):
    proc.calls(text)
    with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says
        proc.doing(call_names("x86_64"))


def test_what_is_polled_is_the_first_descriptor(proc):
    proc.opened(6, "socket:[1]")
    (proc.process / "mem").write_bytes(bytes(64) + struct.pack("<ihh", 6, 1, 0))
    proc.calls(call(X86["poll"], 64, 1))
    assert proc.doing(call_names("x86_64")) is Doing.SOCKET


@pytest.mark.parametrize("address", [0, 1 << 20, (1 << 64) - 8])
def test_what_is_polled_may_not_be_known(proc, address):
    proc.calls(call(X86["poll"], address, 1))
    assert proc.doing(call_names("x86_64")) is Doing.OTHER
    (proc.process / "mem").write_bytes(struct.pack("<ihh", -1, 1, 0))
    assert proc.doing(call_names("x86_64")) is Doing.OTHER


@pytest.mark.parametrize(
    ("others", "seen"),
    [
        ([call(X86["read"], 5)], Doing.DISK),
        ([call(X86["recvfrom"], 6)], Doing.SOCKET),
        ([call(X86["read"], 7)], Doing.LOCK),
        ([call(X86["accept4"], 6)], Doing.LOCK),
        ([call(X86["accept"], 6)], Doing.LOCK),
        (["running", "-1 0x1 0x2", ""], Doing.LOCK),
        ([call(X86["futex"], 1), call(X86["pread64"], 5)], Doing.DISK),
        (["what", call(X86["pread64"], 5)], None),
    ],
)
def test_what_is_waited_for_at_a_lock_is_what_another_thread_reads(proc, others, seen):
    for number, target in ((5, "/data/file"), (6, "socket:[1]"), (7, "pipe:[2]")):
        proc.opened(number, target)
    proc.calls(call(X86["futex"], 4096))
    for number, text in enumerate(others):
        proc.calls(text, THREAD + 1 + number)
    found = proc.doing(call_names("x86_64"))
    # What is not understood of another thread ends the search, in whatever order the threads are listed.
    assert found is seen if seen is not None else found in (Doing.LOCK, Doing.DISK)


def test_the_file_that_was_opened_is_closed_where_the_other_is_missing(proc):
    proc.calls("running")
    (proc.process / "task" / str(THREAD) / "schedstat").unlink()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        Thread(PID, THREAD, proc.folder)
    assert os.listdir("/proc/self/fd") == before


# ---- the watch -------------------------------------------------------------------------------------------------------

WATCHED = """
import os, socket, threading
from dlprof.capture.interpreter import publish

def main():
    os.read(0, 1)

def second():
    publish(sys.argv[1])
    tell(threading.get_native_id())
    threading.Event().wait()

publish(sys.argv[1])
if "two" in sys.argv:
    threading.Thread(target=second, daemon=True).start()
else:
    tell()
main()
"""


def looks(folder: Path) -> list[tuple[int, int, Doing, Frames]]:
    found = read_samples(folder / f"{os.getpid()}.samples")
    assert found is not None
    records, stacks, _ = found
    return [
        (
            int(each["pid"]),
            int(each["thread"]),
            Doing(each["doing"]),
            stacks[each["stack"] - 1] if each["stack"] else (),
        )
        for each in records
    ]


def look_until(watch: ThreadWatch, thread: int, doing: Doing) -> None:
    def last() -> Doing | None:
        watch.look()
        return next((each.doing for each in watch._threads if each.thread.thread == thread), None)

    assert eventually(last, lambda found: found is doing) is doing


@pytest.fixture
def recording(tmp_path):
    (tmp_path / "recording").mkdir()
    return tmp_path / "recording"


def test_threads_are_found_by_what_they_publish(tmp_path, recording):
    with child(tmp_path, WATCHED, str(recording), "two") as other:
        (second,) = other.told()
        watch = ThreadWatch(recording, other.pid, 100, PLENTY)
        watch.find()
        watch.find()
        look_until(watch, other.pid, Doing.PIPE)
        look_until(watch, second, Doing.LOCK)
        watch.close()
    found = looks(recording)
    assert {(pid, thread) for pid, thread, _, _ in found} == {(other.pid, other.pid), (other.pid, second)}
    of_main = [frames for _, thread, doing, frames in found if thread == other.pid and doing is Doing.PIPE]
    assert [name for _, _, name in of_main[-1]] == ["main", "<module>"]
    of_second = [frames for _, thread, doing, frames in found if thread == second and doing is Doing.LOCK]
    assert "second" in [name for _, _, name in of_second[-1]]


def test_only_descendants_of_the_command_are_looked_at(tmp_path, recording):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        child(tmp_path / "one", WATCHED, str(recording)) as one,
        child(tmp_path / "two", WATCHED, str(recording)) as other,
    ):
        one.told()
        other.told()
        ours = ThreadWatch(recording, other.pid, 100, PLENTY)
        both = ThreadWatch(recording, os.getpid(), 100, PLENTY)
        for watch in (ours, both):
            watch.find()
        assert [each.thread.pid for each in ours._threads] == [other.pid]
        assert {each.thread.pid for each in both._threads} == {one.pid, other.pid}
        for watch in (ours, both):
            watch.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{1 << 30}-1{LAYOUT_SUFFIX}", "null"),
        (f"PID-{1 << 30}{LAYOUT_SUFFIX}", "null"),
        (f"PID-PID{LAYOUT_SUFFIX}", "{"),
        (f"PID-PID{LAYOUT_SUFFIX}", '{"thread_state": 1}'),
        (f"PID-PID{LAYOUT_SUFFIX}.part", "null"),
        ("PID.events", ""),
    ],
)
def test_other_files_are_no_threads(recording, name, text):
    # Under a name of its own in each run a test could not be shared out among processes.
    name = name.replace("PID", str(os.getpid()))
    (recording / name).write_text(text)
    watch = ThreadWatch(recording, os.getpid(), 100, PLENTY)
    watch.find()
    assert watch._threads == []
    watch.look()
    watch.close()
    assert [path.name for path in recording.iterdir()] == [name]


def test_a_thread_whose_frames_are_not_found_is_looked_at_without(tmp_path, recording):
    with child(tmp_path, WATCHED, str(tmp_path)) as other:
        other.told()
        (recording / f"{other.pid}-{other.pid}{LAYOUT_SUFFIX}").write_text("null")
        watch = ThreadWatch(recording, other.pid, 100, PLENTY)
        watch.find()
        look_until(watch, other.pid, Doing.PIPE)
        watch.close()
    assert {frames for _, _, _, frames in looks(recording)} == {()}


def test_threads_that_have_ended_are_looked_at_no_more(tmp_path, recording):
    before = os.listdir("/proc/self/fd")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        child(tmp_path / "one", WATCHED, str(recording)) as one,
        child(tmp_path / "two", WATCHED, str(recording)) as other,
    ):
        one.told()
        other.told()
        watch = ThreadWatch(recording, os.getpid(), 100, PLENTY)
        watch.find()
        look_until(watch, one.pid, Doing.PIPE)
        one.end()
        watch.look()
        watch.look()
        watch.find()
        assert [each.thread.pid for each in watch._threads] == [other.pid]
        watch.close()
    assert os.listdir("/proc/self/fd") == before
    assert looks(recording)[-1][0] == other.pid


def test_a_thread_that_has_not_run_is_where_it_was(tmp_path, recording, monkeypatch):
    with child(tmp_path, WATCHED, str(recording)) as other:
        other.told()
        watch = ThreadWatch(recording, other.pid, 100, PLENTY)
        watch.find()
        look_until(watch, other.pid, Doing.PIPE)
        watch.look()  # the look before may have come while it was on its way to wait: its counters went on

        def no_read(*_: Any) -> Any:
            raise AssertionError("it has not run, so it is not to be read again")

        monkeypatch.setattr(RemoteStacks, "frames", no_read)
        monkeypatch.setattr(Thread, "doing", no_read)
        watch.look()
        watch.close()
    *_, before, last = looks(recording)
    assert last == before
    assert last[2] is Doing.PIPE


def test_what_is_looked_at_within_the_limit_is_kept(tmp_path, recording):
    with child(tmp_path, WATCHED, str(recording)) as other:
        other.told()
        watch = ThreadWatch(recording, other.pid, 100, 100)
        watch.find()
        for _ in range(5):
            watch.look()
        watch.close()
    assert len(looks(recording)) <= 2


def test_the_looking_is_charged(tmp_path, recording, monkeypatch):
    turns = iter(range(0, 10_000, 7))
    monkeypatch.setattr(thread_watch.time, "thread_time_ns", lambda: next(turns))
    with child(tmp_path, WATCHED, str(recording)) as other:
        other.told()
        watch = ThreadWatch(recording, other.pid, 100, PLENTY)
        watch.find()
        for _ in range(3):
            watch.look()
        watch.close()
    found = read_samples(recording / f"{os.getpid()}.samples")
    assert found is not None
    assert found[2] == 3 * 7


def test_a_full_disk_is_an_error_of_the_look(tmp_path, recording, monkeypatch):
    with child(tmp_path, WATCHED, str(recording)) as other:
        other.told()
        watch = ThreadWatch(recording, other.pid, 100, PLENTY)
        watch.find()

        def full(*_: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(thread_watch.SampleWriter, "add", full)
        with pytest.raises(OSError, match="No space"):
            watch.look()
        watch.close()


def test_nothing_is_written_where_nothing_was_found(recording):
    watch = ThreadWatch(recording, os.getpid(), 100, PLENTY)
    watch.find()
    watch.look()
    watch.close()
    assert list(recording.iterdir()) == []


def test_a_look_finds_what_has_begun_since(tmp_path, recording):
    watch = ThreadWatch(recording, os.getpid(), 100, PLENTY)
    watch.look()
    with child(tmp_path, WATCHED, str(recording)) as other:
        other.told()
        watch.look()
        assert [each.thread.pid for each in watch._threads] == [other.pid]
        watch.close()


def test_looking_takes_a_hundredth_of_a_core_but_for_an_advance(tmp_path, recording, monkeypatch):
    """Each look takes 3 ms; no time passes but while it pauses."""
    spent, passed, began = iter(range(0, 10**12, 3_000_000)), 0, time.monotonic_ns()
    monkeypatch.setattr(thread_watch.time, "thread_time_ns", lambda: next(spent))
    monkeypatch.setattr(thread_watch.time, "monotonic_ns", lambda: began + passed)
    pauses = []
    with child(tmp_path, WATCHED, str(recording)) as other:
        other.told()
        watch = ThreadWatch(recording, other.pid, 100, PLENTY)
        for _ in range(9):
            watch.look()
            pauses.append(watch.pause_ns // 1_000_000)
            passed += watch.pause_ns
        watch.close()
    assert pauses[:3] == [10, 10, 10]  # 10 ms in advance
    assert pauses[3:] == [50] * 6  # 300 ms each, but never so long without a look


def test_looks_are_as_often_as_asked(recording):
    assert ThreadWatch(recording, os.getpid(), 100, PLENTY).pause_ns == 10_000_000
