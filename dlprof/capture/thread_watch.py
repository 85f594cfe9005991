"""What threads are doing, read from ``/proc`` without stopping them: what they are blocked on, and their CPU time.

An ancestor may read this of its descendants also under Yama's restrictions. A look at a thread is two reads of files
that stay open (*measured:* 2.3 microseconds), a third where it waits for a descriptor.

A look says what a thread was doing at one moment. How long it was on a core, and how long it waited for one, is counted
by the kernel: so a look stands for the *blocked* time since the look before it, whatever the rate of looking.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
import time
from pathlib import Path

from dlprof.capture import interpreter
from dlprof.capture.interpreter import LAYOUT_SUFFIX, Layout, RemoteStacks
from dlprof.capture.process_status import read_status
from dlprof.formats.sample_file import Frames, SampleWriter
from dlprof.model.kinds import Doing

_OUTERMOST = (str(Path(__file__).parent / "fetching.py"), "Fetching._timed_fetch.<locals>.timed_fetch")
"""Around the making of a batch."""
_COST_RATIO = 100
_ADVANCE_NS = 10_000_000
"""Looking may take so much before it has to pass, so that a short run is looked at, too: its code is all new at first,
and a look at new code takes a hundred times as long as others. *Measured:* 0.2 ms a look at the start."""
_MOST_PAUSES = 5
_SETTLED_NS = 2_000_000_000
"""Within so long after a change a folder may change again and keep its time of change: file systems count in steps."""
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_POLLFD = struct.Struct("<i")
_RUNNING = b"running"
_OUTSIDE_A_CALL = b"-1"
_LOCKING_COMMANDS = frozenset({7, 38})
"""``F_SETLKW`` and ``F_OFD_SETLKW`` of ``fcntl``."""


def _each_is(doing: Doing, *names: str) -> dict[str, Doing]:
    return dict.fromkeys(names, doing)


_ON_DESCRIPTOR = frozenset(
    {"read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "fsync"}
    | {"fdatasync", "sendfile", "splice", "copy_file_range", "getdents64", "fadvise64", "readahead", "close"}
    | {"ftruncate", "fallocate", "sync_file_range", "syncfs", "fstatfs"}
)
_ALWAYS = {
    **_each_is(Doing.LOCK, "futex", "futex_wait", "futex_waitv", "flock", "semop", "semtimedop"),
    **_each_is(Doing.SLEEP, "nanosleep", "clock_nanosleep"),
    **_each_is(Doing.SOCKET, "connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg"),
    **_each_is(Doing.SOCKET, "recvmmsg", "epoll_wait", "epoll_pwait", "epoll_pwait2"),
    **_each_is(Doing.DISK, "open", "openat", "openat2", "stat", "lstat", "fstat", "newfstatat", "statx"),
    **_each_is(Doing.DISK, "io_getevents", "io_uring_enter", "access", "faccessat", "faccessat2", "readlink"),
    # Some file systems write a file out before they give it its name, and free one of many pages slowly.
    **_each_is(Doing.DISK, "readlinkat", "statfs", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"),
    **_each_is(Doing.DISK, "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "truncate", "sync"),
    # Blocked while mapping or unmapping: pages are read, or written back.
    **_each_is(Doing.PAGE_FAULT, "mmap", "munmap", "madvise", "msync"),
}
_POLLS = frozenset({"poll", "ppoll"})
_SELECTS = frozenset({"select", "pselect6"})
_LISTENING = frozenset({"accept", "accept4"})
"""A thread that serves others reads nothing: multiprocessing has one in a worker that has handed over tensors."""

# Numbers of the calls above. Source: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_X86_64 = (
    "read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 mmap 9 munmap 11 pread64 17 pwrite64 18 readv 19 "
    "writev 20 access 21 select 23 msync 26 madvise 28 nanosleep 35 sendfile 40 connect 42 accept 43 sendto 44 "
    "recvfrom 45 sendmsg 46 recvmsg 47 semop 65 fcntl 72 flock 73 fsync 74 fdatasync 75 truncate 76 ftruncate 77 "
    "rename 82 mkdir 83 rmdir 84 link 86 unlink 87 symlink 88 readlink 89 statfs 137 fstatfs 138 sync 162 readahead "
    "187 futex 202 io_getevents 208 getdents64 217 semtimedop 220 fadvise64 221 clock_nanosleep 230 epoll_wait 232 "
    "openat 257 mkdirat 258 newfstatat 262 unlinkat 263 renameat 264 linkat 265 symlinkat 266 readlinkat 267 "
    "faccessat 269 pselect6 270 ppoll 271 splice 275 sync_file_range 277 epoll_pwait 281 fallocate 285 accept4 288 "
    "preadv 295 pwritev 296 recvmmsg 299 syncfs 306 sendmmsg 307 renameat2 316 copy_file_range 326 preadv2 327 "
    "pwritev2 328 statx 332 io_uring_enter 426 openat2 437 faccessat2 439 epoll_pwait2 441 futex_waitv 449 futex_wait "
    "455"
)
_AARCH64 = (
    "io_getevents 4 epoll_pwait 22 fcntl 25 flock 32 mkdirat 34 unlinkat 35 symlinkat 36 linkat 37 renameat 38 statfs "
    "43 fstatfs 44 truncate 45 ftruncate 46 fallocate 47 faccessat 48 openat 56 close 57 getdents64 61 read 63 write "
    "64 readv 65 writev 66 pread64 67 pwrite64 68 preadv 69 pwritev 70 sendfile 71 pselect6 72 ppoll 73 splice 76 "
    "readlinkat 78 newfstatat 79 fstat 80 sync 81 fsync 82 fdatasync 83 sync_file_range 84 futex 98 nanosleep 101 "
    "clock_nanosleep 115 semtimedop 192 semop 193 accept 202 connect 203 sendto 206 recvfrom 207 sendmsg 211 recvmsg "
    "212 readahead 213 munmap 215 mmap 222 fadvise64 223 msync 227 madvise 233 accept4 242 recvmmsg 243 syncfs 267 "
    "sendmmsg 269 renameat2 276 copy_file_range 285 preadv2 286 pwritev2 287 statx 291 io_uring_enter 426 openat2 437 "
    "faccessat2 439 epoll_pwait2 441 futex_waitv 449 futex_wait 455"
)


def call_names(machine: str) -> dict[int, str]:
    """Names of the system calls by number.

    Args:
        machine: As ``platform.machine()`` gives it; empty for one that is not known here.
    """
    table = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine, "").split()
    return {int(number): name for name, number in zip(table[::2], table[1::2], strict=True)}


class Thread:
    """One thread that is looked at.

    Args:
        pid: Its process.
        thread: Its native id.
        proc: Where the process file system is.

    Raises:
        OSError: There is no such thread, or it may not be looked at.
    """

    def __init__(self, pid: int, thread: int, proc: Path = Path("/proc")) -> None:
        self.pid, self.thread = pid, thread
        self._process = proc / str(pid)
        folder = self._process / "task" / str(thread)
        self._call = os.open(folder / "syscall", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._times = os.open(folder / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._stat = os.open(folder / "stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._call)
            raise
        self._names = _NAMES

    def close(self) -> None:
        """Close the files."""
        for file in (self._call, self._times, self._stat):
            os.close(file)

    def times(self) -> tuple[int, int]:
        """CPU time and wait for a core so far in nanoseconds.

        Raises:
            OSError, ValueError: It has ended, or may no longer be looked at.
        """
        on_cpu, runnable, *_ = os.pread(self._times, 64, 0).split()
        return int(on_cpu), int(runnable)

    def kernel_ns(self) -> int:
        """CPU time in the kernel so far, in nanoseconds.

        Raises:
            OSError, ValueError, IndexError: As ``times``.
        """
        # The name, in parentheses, may hold any character.
        return int(os.pread(self._stat, 1024, 0).rpartition(b")")[2].split()[12]) * _TICK_NS

    def doing(self) -> Doing:
        """What it is doing.

        Raises:
            OSError, ValueError: As ``times``.
        """
        return self._doing(os.pread(self._call, 256, 0).split())

    def _doing(self, call: list[bytes]) -> Doing:
        if not call or call[0] == _RUNNING:
            return Doing.RUNNING
        if call[0] == _OUTSIDE_A_CALL:
            return Doing.PAGE_FAULT
        name = self._names.get(int(call[0]), "")
        known = _ALWAYS.get(name)
        if known is Doing.LOCK:
            return self._awaited_of_others()
        if known is not None:
            return known
        first, second = (int(part, 16) for part in call[1:3])
        if name in _ON_DESCRIPTOR:
            return self._kind_of(first)
        if name in _POLLS:
            return self._polled(first) if second else Doing.SLEEP
        if name in _SELECTS:
            return Doing.OTHER if first else Doing.SLEEP
        if name == "fcntl":
            return Doing.LOCK if second in _LOCKING_COMMANDS else Doing.OTHER
        return Doing.OTHER

    def _kind_of(self, descriptor: int) -> Doing:
        try:
            target = os.readlink(self._process / "fd" / str(descriptor))
        except OSError:
            return Doing.OTHER
        if target.startswith("pipe:"):
            return Doing.PIPE
        if target.startswith("socket:"):
            return Doing.SOCKET
        if target.startswith("/") and not target.startswith("/dev/"):
            return Doing.DISK
        return Doing.OTHER

    def _polled(self, address: int) -> Doing:
        # Python's sockets poll before they receive where they have a time-out; what they wait for is the first entry.
        try:
            memory = os.open(self._process / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return Doing.OTHER
        try:
            return self._kind_of(*_POLLFD.unpack(os.pread(memory, _POLLFD.size, address)))
        except (OSError, struct.error, OverflowError):
            return Doing.OTHER
        finally:
            os.close(memory)

    def _awaited_of_others(self) -> Doing:
        """A lock, unless another thread of the process is reading meanwhile: then the lock waits for that.

        Loaders over a network often read in threads of their own, and wait for them (fsspec, thread pools).
        """
        found = Doing.LOCK
        with contextlib.suppress(OSError, ValueError):
            for other in os.listdir(self._process / "task"):
                if int(other) == self.thread:
                    continue
                call = (self._process / "task" / other / "syscall").read_bytes().split()
                if not call or call[0] in (_RUNNING, _OUTSIDE_A_CALL):
                    continue
                name = self._names.get(int(call[0]), "")
                if name in _LISTENING:
                    continue
                if name in _ON_DESCRIPTOR:
                    kind = self._kind_of(int(call[1], 16))
                elif name in _POLLS:
                    kind = self._polled(int(call[1], 16))
                else:
                    kind = _ALWAYS.get(name, Doing.OTHER)
                if kind in (Doing.DISK, Doing.SOCKET):
                    found = kind
        return found


_NAMES = call_names(platform.machine())


class _Watched:
    """A thread, and the last look at it.

    Raises:
        OSError: It may not be looked at.
    """

    def __init__(self, pid: int, thread: int, layout: Layout | None) -> None:
        self.thread = Thread(pid, thread)
        self._stacks = RemoteStacks(pid, layout, _OUTERMOST) if layout is not None else None
        self._last = (-1, -1)
        self.times = (-1, -1, -1)
        self.doing = Doing.RUNNING
        self.frames: Frames = ()

    def look(self) -> None:
        """Look again.

        Raises:
            OSError, ValueError: It has ended.
        """
        times = self.thread.times()
        if times == self._last and self.doing is not Doing.RUNNING:
            # It has not run since, so it is where it was.
            return
        self._last = times
        self.times = (*times, self.thread.kernel_ns())
        self.frames = self._stacks.frames() if self._stacks is not None else ()
        self.doing = self.thread.doing()

    def close(self) -> None:
        """Close the files."""
        self.thread.close()
        if self._stacks is not None:
            self._stacks.close()


class ThreadWatch:
    """Looks at the threads of a run that train or make batches: each says where its interpreter keeps its frames.

    Args:
        recording: The recording folder.
        root: The command's process: only its descendants are looked at, and it itself.
        hz: How often a second.
        limit_bytes: How much may be written.

    Attributes:
        pause_ns: From one look to the next: so long that looking takes a hundredth of a core, apart from
            ``_ADVANCE_NS``, but not much longer.
    """

    def __init__(self, recording: Path, root: int, hz: int, limit_bytes: int) -> None:
        self._recording = recording
        self._root = root
        self._least_pause_ns = self.pause_ns = int(1e9 / hz)
        self._limit_bytes = limit_bytes
        self._writer: SampleWriter | None = None
        self._known: set[str] = set()
        self._threads: list[_Watched] = []
        self._spent_ns = 0
        self._credit_ns = float(_ADVANCE_NS)
        self._charged_until_ns = time.monotonic_ns()
        self._listed_ns = 0

    def find(self) -> None:
        """Look for threads that have begun to record."""
        changed_ns = os.stat(self._recording).st_mtime_ns
        if changed_ns == self._listed_ns:
            return
        self._listed_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else 0
        for name in os.listdir(self._recording):
            if name in self._known or not name.endswith(LAYOUT_SUFFIX):
                continue
            self._known.add(name)
            pid, _, thread = name.removesuffix(LAYOUT_SUFFIX).partition("-")
            if not self._is_ours(int(pid)):
                continue
            with contextlib.suppress(OSError, ValueError, TypeError):
                layout = interpreter.load_layout(self._recording / name)
                self._threads.append(_Watched(int(pid), int(thread), layout))

    def _is_ours(self, pid: int) -> bool:
        # A process in a PID namespace of its own calls itself by a number that means another process here.
        while pid > 1:
            if pid == self._root:
                return True
            status = read_status(pid)
            if status is None:
                return False
            pid = status.parent
        return False

    def look(self) -> None:
        """Look at every thread once, those too that have just begun to record.

        Raises:
            OSError: What was seen cannot be written, or the recording is gone.
        """
        begin = time.thread_time_ns()
        self.find()
        if not self._threads:
            return
        if self._writer is None:
            self._writer = SampleWriter(str(self._recording), self._limit_bytes)
        for watched in list(self._threads):
            at_ns = time.monotonic_ns()
            try:
                watched.look()
            except (OSError, ValueError, IndexError):
                self._threads.remove(watched)
                watched.close()
            else:
                thread = watched.thread
                self._writer.add(at_ns, thread.pid, thread.thread, watched.times, watched.doing, watched.frames)
        spent = time.thread_time_ns() - begin
        self._spent_ns += spent
        now = time.monotonic_ns()
        earned = (now - self._charged_until_ns) / _COST_RATIO
        self._charged_until_ns = now
        self._credit_ns = max(min(self._credit_ns + earned, _ADVANCE_NS) - spent, -_ADVANCE_NS)
        owed_ns = int(max(-self._credit_ns, 0.0) * _COST_RATIO)
        self.pause_ns = min(max(self._least_pause_ns, owed_ns), _MOST_PAUSES * self._least_pause_ns)

    def close(self) -> None:
        """Write what is left.

        Raises:
            OSError: It cannot be written.
        """
        for watched in self._threads:
            watched.close()
        self._threads.clear()
        if self._writer is not None:
            self._writer.close(self._spent_ns)


def can_look_at(pid: int) -> bool:
    """Whether this process may see what another one's threads are doing, and knows what it means.

    Args:
        pid: The other process.
    """
    if not _NAMES:
        return False
    try:
        thread = Thread(pid, pid)
        try:
            thread.times()
            thread.doing()
        finally:
            thread.close()
    except (OSError, ValueError):
        return False
    return True
