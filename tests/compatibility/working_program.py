# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that works when it is told to, for as long as one likes: it keeps no memory.

Run by pool_nodes.py. It prints "ready"; each line that it then reads makes it allocate 1 MiB, set
it, copy a byte of it back, free it, and print the CUresult of the first call that failed, 0, or -1
where the byte is not the one that was set.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for status in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
    ):
        if status != 0:
            print(f"failed {status}", flush=True)
            sys.exit(1)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        print(work(cuda, number % 256), flush=True)


def work(cuda: ctypes.CDLL, value: int) -> int:
    """One round."""
    address, found, size = ctypes.c_uint64(), ctypes.c_ubyte(), ctypes.c_size_t(1 << 20)
    if status := cuda.cuMemAlloc_v2(ctypes.byref(address), size):
        return int(status)
    last = ctypes.c_uint64(address.value + size.value - 1)
    status = cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(value), size)
    status = status or cuda.cuMemcpyDtoH_v2(ctypes.byref(found), last, ctypes.c_size_t(1))
    status = status or cuda.cuMemFree_v2(address)
    return int(status) or (0 if found.value == value else -1)


if __name__ == "__main__":
    main()
