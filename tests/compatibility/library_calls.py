# SPDX-License-Identifier: Apache-2.0
"""A client of cuBLAS, for whose part on the node tests/server/fake_cublas.c stands in.

Recorded, and run with the client libraries of releases: handles made and destroyed, a number asked
of the library, its memory charged to the session. Prints what a program can see of it.
"""

from __future__ import annotations

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
blas = ctypes.CDLL("libcublas.so.13")


def check(status: int) -> None:
    """Raises unless it is success."""
    if status:
        raise SystemExit(f"status {status}")


def left() -> int:
    """MiB of the vGPU that are free."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value >> 20


def main() -> None:
    """Uses the library a little."""
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    before = left()
    handles = [ctypes.c_void_p() for _ in range(2)]
    for handle in handles:
        check(blas.cublasCreate_v2(ctypes.byref(handle)))
    print(f"two handles took {before - left()} MiB")
    seen = ctypes.c_int()
    check(blas.cublasGetVersion_v2(handles[0], ctypes.byref(seen)))
    print(f"the library answers {seen.value}")
    for handle in handles:
        check(blas.cublasDestroy_v2(handle))
    print(f"all of it is back: {before == left()}")


if __name__ == "__main__":
    main()
