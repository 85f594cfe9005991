"""The vocabulary shared by capture, analysis and reports.

Standard library only: the profiled script and its workers import this module.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Kind(IntEnum):
    """What a span is. The numbers are written to span files: never reuse one."""

    # The training loop, main process.
    NEXT = 1
    """One request for a batch: inside ``next()`` of a loader's iterator."""
    ITER = 2
    """``iter(loader)``: workers are started or reset."""
    OPTIMIZER = 3
    CHECKPOINT = 4
    BODY = 5
    """The rest of a step: from a batch's arrival to the next request."""
    STARVED = 6
    """Last part of a request in which the device's stream had nothing to run; ``value`` is the device's own count."""
    DEVICE_STEP = 7
    """From one request to the next by the device's clock, in ``value``; zero length, at the first of the two."""
    QUEUE_GET = 8
    """The thread that trains took something from a ``queue.Queue`` that another thread fills with batches; ``value``
    is the queue's number. Failed tries before it are part of it."""
    WORKERS_ENDED = 9
    """A loader ended the workers of an iteration, and waited for it."""

    # Data work, in whichever process does it.
    FETCH = 10
    """One batch: every dataset item and ``collate_fn``."""
    GETITEM = 11
    COLLATE = 12
    TOKENIZER = 13
    DECODE = 14
    TRANSFORM = 15
    SAMPLER = 16
    PIN_MEMORY = 17
    PROBE_PICKLE = 18
    """Pickling one copied batch, tried once where there are no workers."""
    PROBE_UNPICKLE = 19

    # A worker's life around its batches.
    WAIT_INDEX = 20
    """The worker waits for something to do."""
    PUT = 21
    """The batch is handed to the feeder thread; ``end_ns`` is when pickling can begin."""
    PICKLE = 22
    SEND = 23
    RECEIVE = 24
    """Main reads the pickled batch from the pipe; ``start_ns`` is when it was readable."""
    UNPICKLE = 25
    WORKER_START = 26
    """From the start of the worker's target until it first waits for an index."""
    TASK_SENT = 27
    """Main put a batch's indices into a worker's queue (zero length)."""

    # Spans that the user's code marks.
    USER_DATA = 30
    USER_HOST = 31
    USER_DEVICE = 32
    """A stand-in for an accelerator: counts as device work."""
    USER_CALL = 33
    """A call, within data work, of a function that ``--span`` names: counts as whatever it is called from."""

    # What torch.profiler saw.
    OPERATOR = 40
    """Outermost torch operator of a thread."""
    KERNEL = 41
    COPY_H2D = 42
    COPY_D2H = 43
    COPY_OTHER = 44
    COLLECTIVE = 45
    SYNCHRONIZE = 46
    LAUNCH = 47
    ALLOCATOR = 48

    OWN = 60
    """dlprof's own work in the script's process, such as starting the profiler."""
    TRACED = 61
    """torch.profiler was on."""


class Doing(IntEnum):
    """What a thread was doing at the moment it was looked at. The numbers are written to sample files."""

    RUNNING = 0
    """On a core, or waiting for one."""
    DISK = 1
    """In a system call on a file or a file system."""
    PIPE = 2
    SOCKET = 3
    LOCK = 4
    SLEEP = 5
    PAGE_FAULT = 6
    """Blocked outside a system call: a page of a memory-mapped file is being read."""
    OTHER = 7


class Role(StrEnum):
    """What a thread or device queue is for."""

    MAIN = "main"
    WORKER = "worker"
    FEEDER = "feeder"
    PIN_MEMORY = "pin_memory"
    THREAD = "thread"
    DEVICE_STREAM = "device_stream"


class Flag(IntEnum):
    """Bits of a span's ``flags`` column."""

    ENDED = 1
    """The request ended the iteration: ``StopIteration`` or another exception."""
    NESTED = 2
    """Inside another request for a batch."""
    CEILING = 4
    """After all that was to be measured: for ``--ceiling``, batches are copied, and then copies served."""
    SERVED = 8
    """Answered with a copy that lay ready, and not by the loader; the first ones of those are not marked."""


class Cause(StrEnum):
    """Where a nanosecond of a step went. Exclusive; in order of precedence."""

    DEVICE_COMPUTE = "device_compute"
    H2D_COPY = "h2d_copy"
    INPUT_WAIT = "input_wait"
    COMMUNICATION = "communication"
    SYNCHRONIZATION = "synchronization"
    KERNEL_LAUNCH = "kernel_launch"
    CHECKPOINT = "checkpoint"
    PYTHON = "python"
    OTHER = "other"


class Bottleneck(StrEnum):
    """What bounds the step."""

    STORAGE_IO = "storage_io"
    CPU_PREPROCESSING = "cpu_preprocessing"
    LOADER_OVERHEAD = "loader_overhead"
    INPUT_PIPELINE = "input_pipeline"
    H2D_COPY = "h2d_copy"
    DEVICE_COMPUTE = "device_compute"
    HOST_OVERHEAD = "host_overhead"
    COMMUNICATION = "communication"
    BALANCED = "balanced"
    INCONCLUSIVE = "inconclusive"


class Component(StrEnum):
    """A part of a bottleneck, finer than the bottleneck itself."""

    STORAGE_IO = "storage_io"
    TOKENIZER = "tokenizer"
    COLLATE_FN = "collate_fn"
    DECODE = "decode"
    TRANSFORM = "transform"
    DATASET_GETITEM = "dataset_getitem"
    SLEEP = "sleep"
    CPU_CONTENTION = "cpu_contention"
    LOCK_WAIT = "lock_wait"
    PICKLE = "pickle"
    TRANSPORT = "transport"
    UNPICKLE = "unpickle"
    PIN_MEMORY = "pin_memory"
    WORKER_STARTUP = "worker_startup"
    SAMPLER = "sampler"
    # Outside the input pipeline; never keys of ``per_batch_ms``.
    KERNEL_LAUNCH = "kernel_launch"
    SYNCHRONIZATION = "synchronization"
    PYTHON = "python"
    CHECKPOINT = "checkpoint"
    ALLOCATOR = "allocator"
    COMPUTE = "compute"
    COLLECTIVE = "collective"


class Confidence(StrEnum):
    """How far a verdict or forecast can be relied on."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class ExitReason(StrEnum):
    """How the script came to its end."""

    STEPS_REACHED = "steps-reached"
    SCRIPT_ENDED = "script-ended"
    EXCEPTION = "exception"
    SIGNAL = "signal"
    WORKER_DIED = "worker-died"
    STALLED = "stalled"
