# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by test_sessions.py: a program that forks in the middle of its work.

The parent copies patterns to the device and back before, while and after children live: one that
only ends, one that asks CUDA for something, one that becomes another program. Prints the CUresult
that the second child got, and how many of the parent's copies were wrong.
"""

from __future__ import annotations

import ctypes
import os

SIZE = 3 << 20
NOT_INITIALIZED = 3


def main() -> None:
    """Forks, and holds what comes back against what was sent."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()

    def must(result: int) -> None:
        if result:
            raise SystemExit(f"a CUDA call ended with {result}")

    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(SIZE)))
    sent, back = (ctypes.create_string_buffer(SIZE) for _ in range(2))
    pinned = [ctypes.c_void_p(), ctypes.c_void_p()]
    for block in pinned:
        must(cuda.cuMemHostAlloc(ctypes.byref(block), ctypes.c_size_t(SIZE), 0))
    wrong = 0

    def copy(seed: int) -> None:
        nonlocal wrong
        pattern = bytes((seed * 7 + i) & 255 for i in range(256)) * (SIZE // 256)
        for source, target in ((sent, back), (pinned[0], pinned[1])):
            ctypes.memmove(source, pattern, SIZE)
            must(cuda.cuMemcpyHtoDAsync_v2(memory, source, ctypes.c_size_t(SIZE), None))
            must(cuda.cuMemcpyDtoHAsync_v2(target, memory, ctypes.c_size_t(SIZE), None))
            must(cuda.cuCtxSynchronize())
            wrong += ctypes.string_at(target, SIZE) != pattern

    copy(1)
    ending = os.fork()
    if ending == 0:
        ctypes.memset(back, 255, SIZE)
        ctypes.memset(pinned[0], 255, SIZE)
        os._exit(0)
    for seed in range(2, 5):
        copy(seed)
    os.waitpid(ending, 0)
    asking = os.fork()
    if asking == 0:
        other = ctypes.c_uint64()
        os._exit(cuda.cuMemAlloc_v2(ctypes.byref(other), ctypes.c_size_t(4096)) & 0xFF)
    copy(5)
    _, status = os.waitpid(asking, 0)
    becoming = os.fork()
    if becoming == 0:
        os.execv("/bin/true", ["true"])
    for seed in range(6, 9):
        copy(seed)
    os.waitpid(becoming, 0)
    print(f"child {os.waitstatus_to_exitcode(status)}, wrong {wrong}")


if __name__ == "__main__":
    main()
