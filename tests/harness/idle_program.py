# SPDX-License-Identifier: Apache-2.0
"""A program that asks its node a few hundred things in a row, and then nothing for some time.

Waits for a line of its input before that and after it; prints its processor time each time.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p

CALLS = 300

cuda = ctypes.CDLL("libcuda.so.1")


def good(status: int) -> None:
    """Fail unless a call succeeded."""
    assert status == 0, status


def main() -> None:
    """Waits that are short, then one that is long."""
    context, memory, word = c_void_p(), c_uint64(), ctypes.c_uint32()
    good(cuda.cuInit(0))
    good(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    good(cuda.cuCtxSetCurrent(context))
    good(cuda.cuMemAlloc_v2(byref(memory), c_size_t(4096)))
    for _ in range(CALLS):
        good(cuda.cuMemcpyDtoH_v2(byref(word), memory, c_size_t(4)))
    for _ in range(2):
        print(time.process_time(), flush=True)
        input()


if __name__ == "__main__":
    main()
