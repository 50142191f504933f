# SPDX-License-Identifier: Apache-2.0
"""A program that moves a model of so many tensors (300) to its vGPU as PyTorch does.

Each tensor is copied from pageable memory and its stream waited for. Prints how often this process
waited for the node meanwhile, and whether all is there.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_int, c_longlong, c_size_t, c_uint64, c_void_p

TENSORS = 300

cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemcpyHtoDAsync_v2.argtypes = (c_uint64, ctypes.c_char_p, c_size_t, c_void_p)
cuda.cuMemcpyDtoH_v2.argtypes = (c_void_p, c_uint64, c_size_t)
cuda.cuMemsetD8Async.argtypes = (c_uint64, ctypes.c_ubyte, c_size_t, c_void_p)


def good(status: int) -> None:
    """Fail unless a call succeeded."""
    assert status == 0, status


def round_trips() -> int:
    """How often this process has waited for the node."""
    commands, waits = c_longlong(), c_longlong()
    cuda.sluice_library_statistics(byref(commands), byref(waits))
    return waits.value


def main() -> None:
    """One line of JSON: `waits`, `same`, `seen_waits`."""
    context, device = c_void_p(), c_int()
    good(cuda.cuInit(0))
    good(cuda.cuDeviceGet(byref(device), 0))
    good(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    good(cuda.cuCtxSetCurrent(context))
    tensors = []
    for n in range(int(sys.argv[1]) if len(sys.argv) > 1 else TENSORS):
        content = os.urandom(1000 + 997 * (n % 50) + (3 << 20 if n % 100 == 0 else 0))
        at = c_uint64()
        good(cuda.cuMemAlloc_v2(byref(at), c_size_t(len(content))))
        tensors.append((at, content))
    before = round_trips()
    for at, content in tensors:
        good(cuda.cuMemsetD8Async(at, 1, len(content), None))
        good(cuda.cuMemcpyHtoDAsync_v2(at, content, len(content), None))
        good(cuda.cuStreamSynchronize(None))
        good(cuda.cuStreamQuery(None))
    waits = round_trips() - before
    same = True
    for at, content in tensors:
        back = ctypes.create_string_buffer(len(content))
        good(cuda.cuMemcpyDtoH_v2(back, at, len(content)))
        same = same and back.raw == content
    # An event may be asked for what lies before it: then the answer has to be awaited.
    event = c_void_p()
    good(cuda.cuEventCreate(byref(event), 0))
    good(cuda.cuMemcpyHtoDAsync_v2(tensors[0][0], tensors[0][1], len(tensors[0][1]), None))
    good(cuda.cuEventRecord(event, None))
    before = round_trips()
    good(cuda.cuStreamSynchronize(None))
    seen_waits = round_trips() - before
    good(cuda.cuEventQuery(event))
    print(json.dumps({"waits": waits, "same": same, "seen_waits": seen_waits}))


if __name__ == "__main__":
    main()
