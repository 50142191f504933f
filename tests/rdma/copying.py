# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by disturbed.py: copies patterns to the device and back until its input ends.

From pageable and from pinned memory in turn. From pinned memory without a wait in between, so that
a break finds memory that is only referred to; it is overwritten as soon as the stream has passed.

Prints "ready", and at the end the number of copies and of those that came back wrong. Sizes go from
a few bytes to more than the rings of a connection hold, so that a break finds some under way.
"""

from __future__ import annotations

import ctypes
import select
import sys

SIZES = (8, 3 << 20, 70_001, 1 << 20)


def main() -> None:
    """Copies; every CUDA error ends it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()

    def must(result: int) -> None:
        if result:
            raise SystemExit(f"a CUDA call ended with {result}")

    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(max(SIZES))))
    most = ctypes.c_size_t(max(SIZES) + 256)
    pinned = [ctypes.c_void_p(), ctypes.c_void_p()]
    for block in pinned:
        must(cuda.cuMemHostAlloc(ctypes.byref(block), most, 0))
    print("ready", flush=True)
    copies = wrong = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        size = SIZES[copies % len(SIZES)]
        sent = bytes((copies + i) & 255 for i in range(256)) * (size // 256 + 1)
        length = ctypes.c_size_t(size)
        if copies // len(SIZES) % 2:
            ctypes.memmove(pinned[0], sent, size)
            must(cuda.cuMemcpyHtoDAsync_v2(memory, pinned[0], length, None))
            must(cuda.cuStreamSynchronize(None))
            ctypes.memset(pinned[0], 255, size)  # which is allowed from here on
            must(cuda.cuMemcpyDtoHAsync_v2(pinned[1], memory, length, None))
            must(cuda.cuStreamSynchronize(None))
            got = ctypes.string_at(pinned[1], size)
        else:
            back = ctypes.create_string_buffer(size)
            must(cuda.cuMemcpyHtoD_v2(memory, sent, length))
            must(cuda.cuMemcpyDtoH_v2(back, memory, length))
            got = back.raw
        copies += 1
        wrong += got != sent[:size]
    print(copies, wrong)


if __name__ == "__main__":
    main()
