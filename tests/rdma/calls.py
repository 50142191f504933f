# SPDX-License-Identifier: Apache-2.0
"""Run in the guest: what a synchronous call and copies take over the channel of SLUICE_CHANNEL.

Prints the median of a call that waits for its answer, in microseconds, then the best GiB/s of
copies from pageable memory to the device and back, and from pinned; then the medians of a call
after a pause, and of the one right after it: `calls.py CALLS MEBIBYTES`.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time

PAUSES, PAUSE_SECONDS = 15, 0.1


def main() -> None:
    """Measures and prints."""
    calls, mebibytes = int(sys.argv[1]), int(sys.argv[2])
    cuda = ctypes.CDLL("libcuda.so.1")

    def must(result: int) -> None:
        if result:
            raise SystemExit(f"a CUDA call ended with {result}")

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    stream = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDeviceGet(ctypes.byref(device), 0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    must(cuda.cuCtxSetCurrent(context))
    size = mebibytes << 20
    must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
    must(cuda.cuStreamCreate(ctypes.byref(stream), 0))
    word = ctypes.c_uint32()

    def call() -> float:
        begin = time.perf_counter()
        must(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), memory, ctypes.c_size_t(4)))
        return (time.perf_counter() - begin) * 1e6

    took = [call() for _ in range(calls)]
    rested = []
    for _ in range(min(calls, PAUSES)):
        time.sleep(PAUSE_SECONDS)
        rested.append((call(), call()))
    host = ctypes.create_string_buffer(size)
    pinned = ctypes.c_void_p()
    must(cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(size), 0))
    speeds = []
    for copy in (
        lambda: must(cuda.cuMemcpyHtoDAsync_v2(memory, pinned, ctypes.c_size_t(size), stream)),
        lambda: must(cuda.cuMemcpyDtoHAsync_v2(pinned, memory, ctypes.c_size_t(size), stream)),
        lambda: must(cuda.cuMemcpyHtoD_v2(memory, host, ctypes.c_size_t(size))),
        lambda: must(cuda.cuMemcpyDtoH_v2(host, memory, ctypes.c_size_t(size))),
    ):
        best = 0.0
        for _ in range(2):
            begin = time.perf_counter()
            copy()
            must(cuda.cuCtxSynchronize())
            best = max(best, size / (time.perf_counter() - begin) / (1 << 30))
        speeds.append(best)
    waits = (statistics.median(column) for column in zip(*rested, strict=True))
    print(
        f"{statistics.median(took):.2f}",
        *(f"{speeds[i]:.5f}" for i in (2, 3, 0, 1)),
        *(f"{wait:.2f}" for wait in waits),
    )


if __name__ == "__main__":
    main()
