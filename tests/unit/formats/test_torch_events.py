from __future__ import annotations

import pytest

from dlprof.formats.torch_events import kind_of
from dlprof.model.kinds import Kind


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", Kind.OPERATOR),
        ("Operator", "aten::mm", Kind.OPERATOR),
        ("kernel", "ampere_sgemm_128x64_tn", Kind.KERNEL),
        ("Kernel", "void at::native::vectorized_elementwise_kernel<4>", Kind.KERNEL),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", Kind.COLLECTIVE),
        ("kernel", "ncclKernel_Broadcast_RING_LL_Sum_int8_t", Kind.COLLECTIVE),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", Kind.COPY_H2D),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", Kind.COPY_H2D),
        ("gpu_memcpy", "CopyHostToDevice (Host -> Device)", Kind.COPY_H2D),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", Kind.COPY_D2H),
        ("Memcpy", "CopyDeviceToHost (Device -> Host)", Kind.COPY_D2H),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", Kind.COPY_OTHER),
        ("cuda_runtime", "cudaDeviceSynchronize", Kind.SYNCHRONIZE),
        ("cuda_runtime", "cudaStreamSynchronize", Kind.SYNCHRONIZE),
        ("cuda_runtime", "cudaEventSynchronize", Kind.SYNCHRONIZE),
        ("hip_runtime", "hipDeviceSynchronize", Kind.SYNCHRONIZE),
        ("cuda_runtime", "cudaLaunchKernel", Kind.LAUNCH),
        ("cuda_runtime", "cudaLaunchKernelExC", Kind.LAUNCH),
        ("cuda_driver", "cuLaunchKernelEx", Kind.LAUNCH),
        ("Runtime", "hipLaunchKernel", Kind.LAUNCH),
        ("cuda_runtime", "cudaMemcpyAsync", Kind.LAUNCH),
        ("cuda_runtime", "cudaMemsetAsync", Kind.LAUNCH),
        ("cuda_runtime", "cudaMalloc", Kind.ALLOCATOR),
        ("cuda_runtime", "cudaFree", Kind.ALLOCATOR),
        ("cuda_runtime", "cudaHostAlloc", Kind.ALLOCATOR),
        ("cuda_runtime", "cudaGetDeviceCount", None),
        ("cuda_runtime", "cudaStreamIsCapturing", None),
        ("Runtime", "cudaEventElapsedTime", None),
        ("cuda_runtime", "INVALID", None),
        # A stream waits, or the host is told at once: not the host's wait.
        ("cuda_runtime", "cudaStreamWaitEvent", Kind.LAUNCH),
        ("cuda_runtime", "hipStreamWaitEvent", Kind.LAUNCH),
        ("cuda_runtime", "cudaEventQuery", Kind.LAUNCH),
        ("Runtime", "cudaEventRecord", Kind.LAUNCH),
        ("cuda_runtime", "cudaGraphLaunch", Kind.LAUNCH),
        ("cuda_runtime", "hipExtModuleLaunchKernel", Kind.LAUNCH),
        ("cuda_runtime", "hipMemcpyAsync", Kind.LAUNCH),
        ("cuda_driver", "cuMemcpyHtoDAsync_v2", Kind.LAUNCH),
        ("cuda_runtime", "cudaMemcpyToSymbolAsync", Kind.LAUNCH),
        ("xpu_runtime", "urEnqueueKernelLaunch", Kind.LAUNCH),
        ("xpu_runtime", "urEnqueueUSMMemcpy", Kind.LAUNCH),
        ("xpu_runtime", "urEnqueueEventsWait", Kind.LAUNCH),
        # The host waits for the device.
        ("Runtime", "cudaMemcpy", Kind.SYNCHRONIZE),
        ("cuda_runtime", "cudaMemcpy2D", Kind.SYNCHRONIZE),
        ("cuda_driver", "cuMemcpyHtoD_v2", Kind.SYNCHRONIZE),
        ("cuda_runtime", "hipMemcpyWithStream", Kind.SYNCHRONIZE),
        ("xpu_runtime", "urEventWait", Kind.SYNCHRONIZE),
        ("xpu_driver", "zeEventHostSynchronize", Kind.SYNCHRONIZE),
        ("cuda_runtime", "cudaHostRegister", Kind.ALLOCATOR),
        ("cuda_runtime", "cudaMallocAsync", Kind.ALLOCATOR),
        ("cuda_driver", "cuMemSetAccess", Kind.ALLOCATOR),
        ("cuda_driver", "cuMemUnmap", Kind.ALLOCATOR),
        ("xpu_runtime", "urUSMDeviceAlloc", Kind.ALLOCATOR),
        ("gpu_memset", "Memset (Device)", Kind.KERNEL),
        ("Memset", "Memset (Device)", Kind.KERNEL),
        ("kernel", "void at::native::_scatter_gather_elementwise_kernel<128>", Kind.KERNEL),
        ("kernel", "void vllm::cross_device_reduce_1stage<half>", Kind.COLLECTIVE),
        ("kernel", "one_shot_all_reduce_kernel", Kind.COLLECTIVE),
        ("user_annotation", "ProfilerStep#3", None),
        ("python_function", "train.py(3): main", None),
        ("ac2g", "ac2g", None),
        ("cpu_instant_event", "[memory]", None),
        ("", "aten::mm", None),
    ],
)
def test_what_a_trace_event_is(category, name, kind):
    assert kind_of(category, name) is kind
