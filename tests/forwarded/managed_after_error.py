# SPDX-License-Identifier: Apache-2.0
"""What a program reads of managed memory when an error of the device has ended its session.

Prints, as JSON, the error, and the first and the last byte of memory that it saw full of fives, and
of memory that it held when the device failed.
"""

from __future__ import annotations

import ctypes
import json

CU = ctypes.CDLL("libcuda.so.1")
SIZE = 300_000
FAULT = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault()
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  mov.u64 %rd0, 64;
  mov.u32 %r0, 1;
  st.global.u32 [%rd0], %r0;
  ret;
}
"""


def must(error: int) -> None:
    """For what is to succeed."""
    if error:
        raise SystemExit(f"CUDA error {error}")


def managed() -> memoryview:
    """The bytes of new memory."""
    at = ctypes.c_uint64()
    must(CU.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(SIZE), 1))
    return memoryview((ctypes.c_ubyte * SIZE).from_address(at.value)).cast("B")


def device_fills(memory: memoryview, byte: int) -> None:
    """And has done so."""
    at = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    must(CU.cuMemsetD8_v2(ctypes.c_uint64(at), byte, ctypes.c_size_t(SIZE)))
    must(CU.cuCtxSynchronize())


def main() -> None:
    """All of it."""
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    must(CU.cuInit(0))
    must(CU.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(CU.cuCtxSetCurrent(context))
    must(CU.cuModuleLoadData(ctypes.byref(module), FAULT))
    must(CU.cuModuleGetFunction(ctypes.byref(kernel), module, b"fault"))
    memory, held = managed(), managed()
    device_fills(memory, 5)
    assert set(memory) == {5}
    device_fills(memory, 9)
    device_fills(held, 7)
    assert set(held) == {7}
    held[0] = 8
    must(CU.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    error = CU.cuCtxSynchronize()
    seen = [memory[0], memory[SIZE - 1], held[0], held[SIZE - 1]]
    memory[0] = 3
    print(json.dumps({"error": error, "seen": seen, "written": memory[0]}))


if __name__ == "__main__":
    main()
