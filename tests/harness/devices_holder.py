# SPDX-License-Identifier: Apache-2.0
"""As cuda_holder.py, on each of the devices that there are.

It prints how many there are. Each line that it then reads names one: it is made current, and what
cuda_holder does is done there; the CUresult of the first call that failed is printed, or 0.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    contexts = [ctypes.c_void_p() for _ in range(count.value)]
    for device, context in enumerate(contexts):
        status = status or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if status != 0:
        print(f"failed {status}", flush=True)
        sys.exit(1)
    print(count.value, flush=True)
    for line in sys.stdin:
        address = ctypes.c_uint64()
        status = cuda.cuCtxSetCurrent(contexts[int(line)])
        status = status or cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
        status = status or cuda.cuMemsetD8_v2(address, 1, ctypes.c_size_t(1 << 20))
        status = status or cuda.cuCtxSynchronize()
        print(status, flush=True)


if __name__ == "__main__":
    main()
