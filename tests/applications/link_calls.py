# SPDX-License-Identifier: Apache-2.0
"""The driver's linker by hand: prints, as JSON, what each way to use it answers.

Started by test_link.py in a process of its own, because a process has one session.
"""

from __future__ import annotations

import ctypes
import json
import struct
from typing import Any

CU = ctypes.CDLL("libcuda.so.1")
CUBIN, PTX = 0, 1
EMPTY_ELF = struct.pack(
    "<4s4B8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, 1, 0
)
EMPTY_ELF += bytes(64)  # its one section, which is none
MAX_REGISTERS, ERROR_LOG, ERROR_LOG_BYTES = 0, 5, 6

FILL = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry fill(.param .u64 to, .param .u32 value)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd0, [to];
  ld.param.u32 %r0, [value];
  mov.u32 %r1, %tid.x;
  add.u32 %r0, %r0, %r1;
  mul.wide.u32 %rd1, %r1, 4;
  add.s64 %rd2, %rd0, %rd1;
  st.global.u32 [%rd2], %r0;
  ret;
}
"""


class Link:
    """A link with an error log."""

    def __init__(self, **extra: int) -> None:
        self.state = ctypes.c_void_p()
        self.log = ctypes.create_string_buffer(b"x" * 200, 256)
        options = [ERROR_LOG, ERROR_LOG_BYTES]
        values = [ctypes.addressof(self.log), len(self.log)]
        if extra:
            options.append(MAX_REGISTERS)
            values.append(extra["max_registers"])
        self.options = (ctypes.c_int * len(options))(*options)
        self.values = (ctypes.c_void_p * len(values))(*values)
        self.created = CU.cuLinkCreate_v2(
            len(options), self.options, self.values, ctypes.byref(self.state)
        )

    def add(self, data: bytes, kind: int = PTX) -> int:
        return CU.cuLinkAddData_v2(
            self.state, kind, data, ctypes.c_size_t(len(data)), b"input", 0, None, None
        )

    def complete(self) -> tuple[int, bytes]:
        image, size = ctypes.c_void_p(), ctypes.c_size_t()
        error = CU.cuLinkComplete(self.state, ctypes.byref(image), ctypes.byref(size))
        return error, ctypes.string_at(image, size.value) if not error else b""

    def destroy(self) -> int:
        return CU.cuLinkDestroy(self.state)

    def said(self) -> list[Any]:
        """The error log, and whether its length is what was written beside the option."""
        return [self.log.value.decode(), (self.values[1] or 0) == len(self.log.value)]


def must(error: int) -> None:
    """For the calls that this is not about."""
    if error:
        raise SystemExit(f"CUDA error {error}")


def launch(image: bytes) -> list[int]:
    """Loads the image, runs its kernel, returns what it wrote."""
    module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    must(CU.cuModuleLoadData(ctypes.byref(module), image))
    must(CU.cuModuleGetFunction(ctypes.byref(function), module, b"fill"))
    must(CU.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(16)))
    value = ctypes.c_uint32(40)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(value))
    must(CU.cuLaunchKernel(function, 1, 1, 1, 4, 1, 1, 0, None, arguments, None))
    out = (ctypes.c_uint32 * 4)()
    must(CU.cuMemcpyDtoH_v2(out, memory, ctypes.c_size_t(16)))
    return list(out)


def main() -> None:
    """All ways, in one object."""
    without_context = Link().created
    must(CU.cuInit(0))
    context = ctypes.c_void_p()
    must(CU.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(CU.cuCtxSetCurrent(context))
    found: dict[str, Any] = {"before cuInit": without_context != 0}

    link = Link()
    found["log at the start"] = link.said()
    found["add"] = link.add(FILL)
    error, image = link.complete()
    found["complete"] = error
    found["product ends with NUL"] = image.endswith(b"\0") and image.count(b"\0") == 1
    found["add after complete"] = link.add(FILL)
    found["destroy"] = link.destroy()
    found["destroy again"] = link.destroy()
    found["add to a destroyed link"] = link.add(FILL)
    found["launch"] = launch(image)

    link = Link()
    found["two inputs"] = [link.add(FILL), link.add(FILL), *link.said()]
    link = Link()
    found["a cubin"] = [link.add(EMPTY_ELF, CUBIN), *link.said()]
    link = Link()
    found["no cubin"] = [link.add(b"\x7fELF" + bytes(60), CUBIN), *link.said()]
    link = Link()
    found["no input"] = [link.complete()[0], *link.said()]
    link = Link(max_registers=32)
    found["max registers"] = [link.created, *link.said()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
