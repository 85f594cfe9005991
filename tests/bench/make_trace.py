"""A trace of any size, laid out as Kineto does it: steps of a small network with operators, launches and kernels.

    python tests/bench/make_trace.py OUT [--mb N] [--kernels N]

A name that ends with ``.gz`` is compressed. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MAIN, STREAM = 4321, 7
REQUEST_US, OPERATOR_US, KERNEL_US, BETWEEN_US = 900, 14, 21, 23
KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, at::detail::Array<char*, 3> >",
    "ampere_sgemm_128x64_tn",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct, float const*)",
)
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42314694656
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "traceEvents": [
"""
TAIL = """
  ],
  "traceName": "made.pt.trace.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1751410836000000000
}
"""


def slice_text(category: str, name: str, pid: int, tid: int, start_us: float, length_us: float, args: str) -> str:
    """A complete event."""
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {start_us:.3f}, "dur": {length_us:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def flow_text(kind: str, number: int, pid: int, tid: int, at_us: float) -> str:
    """One end of the arrow from a launch to its kernel."""
    end = ', "bp": "e"' if kind == "f" else ""
    return (
        f'  {{\n    "ph": "{kind}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {at_us:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
    )


def step_texts(step: int, kernels: int, first: int, began_us: float) -> Iterator[str]:
    """The events of one step.

    Args:
        step: Its number.
        kernels: How many it launches.
        first: Number of its first launch.
        began_us: When it begins.
    """
    length = REQUEST_US + kernels * BETWEEN_US
    mark = f'"External id": {first}, "Record function id": 0, "Ev Idx": {first}'
    yield slice_text("user_annotation", f"ProfilerStep#{step}", MAIN, MAIN, began_us, length, mark)
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    yield slice_text("user_annotation", loader, MAIN, MAIN, began_us, REQUEST_US, mark)
    for place in range(kernels):
        number, start = first + place, began_us + REQUEST_US + place * BETWEEN_US
        shapes = '"Input Dims": [[64, 256, 56, 56], [64, 256, 56, 56], []], "Input type": ["float", "float", "Scalar"]'
        about = f'"External id": {number}, "Sequence number": {number}, "Fwd thread id": 0, {shapes}'
        yield slice_text("cpu_op", f"aten::op_{place % 40}", MAIN, MAIN, start, OPERATOR_US, about)
        call = f'"External id": {number}, "cbid": 211, "correlation": {number}'
        yield slice_text("cuda_runtime", "cudaLaunchKernel", MAIN, MAIN, start + 5.5, 6.25, call)
        yield flow_text("s", number, MAIN, MAIN, start + 5.5)
        details = (
            f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": {STREAM}, '
            f'"correlation": {number}, "registers per thread": 32, "shared memory": 0, "grid": [784, 1, 1], '
            '"block": [128, 1, 1], "est. achieved occupancy %": 50'
        )
        yield slice_text("kernel", KERNELS[place % len(KERNELS)], 0, STREAM, start + 8.125, KERNEL_US, details)
        yield flow_text("f", number, 0, STREAM, start + 8.125)


def write(file: IO[bytes], size_bytes: int, kernels: int) -> int:
    """Write whole steps up to a size; returns how many."""
    written = file.write(HEAD.encode())
    steps, numbers, now = 0, 1, 3_743_411.5
    while written < size_bytes or not steps:
        text = ",\n".join(step_texts(steps, kernels, numbers, now))
        written += file.write(((",\n" if steps else "") + text).encode())
        steps += 1
        numbers += kernels
        now += REQUEST_US + kernels * BETWEEN_US + 10
    file.write(TAIL.encode())
    return steps


def main() -> None:
    """Parse the command line and write the trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=float, default=200, help="MB of JSON, about")
    parser.add_argument("--kernels", type=int, default=1500, help="kernels a step")
    asked = parser.parse_args()
    with gzip.open(asked.out, "wb", compresslevel=6) if asked.out.suffix == ".gz" else open(asked.out, "wb") as file:
        steps = write(file, int(asked.mb * 1e6), asked.kernels)
    print(f"{asked.out}: {steps} steps, {asked.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
