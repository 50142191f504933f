# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that works when it is told to: it is there to be held, killed and ended.

It loads libcuda.so.1 as any program does, makes a context and prints "ready". Each line that it
then reads makes it allocate 1 MiB, set it, wait for the device, and print the CUresult of the first
call that failed, or 0.
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
    for _ in sys.stdin:
        address = ctypes.c_uint64()
        status = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
        status = status or cuda.cuMemsetD8_v2(address, 1, ctypes.c_size_t(1 << 20))
        status = status or cuda.cuCtxSynchronize()
        print(status, flush=True)


if __name__ == "__main__":
    main()
