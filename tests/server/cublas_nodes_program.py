# SPDX-License-Identifier: Apache-2.0
"""The program of test_several_nodes.py's cuBLAS: a handle on each of two nodes' devices.

Run with libcublas.so.13 and libcuda.so.1 of Sluice in the loader's path and fake_cublas.c, whose
handles take 32 MiB each, on the nodes.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
cublas = ctypes.CDLL("libcublas.so.13")
NOT_INITIALIZED = 1  # of CUBLAS_STATUS


def good(status: int) -> None:
    """Fail unless a call succeeded."""
    assert status == 0, status


def free_mib() -> int:
    """Of the current device, once it has nothing to do."""
    free, total = c_size_t(), c_size_t()
    good(cuda.cuCtxSynchronize())
    good(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20


def main() -> None:
    """Each handle is its own node's, and its memory is that device's."""
    good(cuda.cuInit(0))
    contexts, handles = [c_void_p(), c_void_p()], [c_void_p(), c_void_p()]
    for device, context in enumerate(contexts):
        good(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    before = []
    for context in contexts:
        good(cuda.cuCtxSetCurrent(context))
        before.append(free_mib())
    good(cublas.cublasCreate_v2(byref(handles[1])))  # device 1 is current
    assert free_mib() <= before[1] - 32
    good(cuda.cuCtxSetCurrent(contexts[0]))
    assert free_mib() == before[0], "nothing of it is device 0's"
    good(cublas.cublasCreate_v2(byref(handles[0])))
    assert free_mib() <= before[0] - 32
    assert cublas.cublasDestroy_v2(handles[1]) == NOT_INITIALIZED, "device 0 is current"
    for context, handle in zip(contexts, handles, strict=True):
        good(cuda.cuCtxSetCurrent(context))
        good(cublas.cublasDestroy_v2(handle))
        good(cuda.cuCtxSynchronize())
    print("all of it")


if __name__ == "__main__":
    main()
