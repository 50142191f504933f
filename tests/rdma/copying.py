# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by disturbed.py: copies patterns to the device and back until its input ends.

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
    print("ready", flush=True)
    copies = wrong = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        size = SIZES[copies % len(SIZES)]
        sent = bytes((copies + i) & 255 for i in range(256)) * (size // 256 + 1)
        back = ctypes.create_string_buffer(size)
        must(cuda.cuMemcpyHtoD_v2(memory, sent, ctypes.c_size_t(size)))
        must(cuda.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(size)))
        copies += 1
        wrong += back.raw != sent[:size]
    print(copies, wrong)


if __name__ == "__main__":
    main()
