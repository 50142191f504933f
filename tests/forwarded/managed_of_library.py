# SPDX-License-Identifier: Apache-2.0
"""A managed variable of code that the program loads itself: by a library, and by its module.

Prints, as JSON, what the program reads of it, before and after kernels, and what is no such.
"""

from __future__ import annotations

import ctypes
import json

CU = ctypes.CDLL("libcuda.so.1")
POINTER, ADDRESS, SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
CODE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 total = 5;
.visible .global .align 4 .u32 plain = 7;
.visible .entry add()
{
  .reg .b32 %r<2>;
  atom.global.add.u32 %r0, [total], 10;
  ret;
}
"""


def must(error: int) -> None:
    """For what is to succeed."""
    if error:
        raise SystemExit(f"CUDA error {error}")


def main() -> None:
    """All of it."""
    context, library, module, kernel = POINTER(), POINTER(), POINTER(), POINTER()
    must(CU.cuInit(0))
    must(CU.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(CU.cuCtxSetCurrent(context))
    must(CU.cuLibraryLoadData(ctypes.byref(library), CODE, None, None, 0, None, None, 0))
    must(CU.cuLibraryGetModule(ctypes.byref(module), library))
    must(CU.cuModuleGetFunction(ctypes.byref(kernel), module, b"add"))

    def run() -> None:
        must(CU.cuLaunchKernel(kernel, 1, 1, 1, 4, 1, 1, 0, None, None, None))
        must(CU.cuCtxSynchronize())

    by_library, by_module, bytes_of = ADDRESS(), ADDRESS(), SIZE()
    must(
        CU.cuLibraryGetManaged(ctypes.byref(by_library), ctypes.byref(bytes_of), library, b"total")
    )
    must(CU.cuModuleGetGlobal_v2(ctypes.byref(by_module), None, module, b"total"))
    total = ctypes.c_uint32.from_address(by_library.value)
    seen = [total.value]
    run()
    seen.append(total.value)
    total.value = 100
    run()
    seen.append(total.value)
    said = {
        "seen": seen,
        "bytes": bytes_of.value,
        "one address": by_library.value == by_module.value,
        "refused": [
            CU.cuLibraryGetManaged(ctypes.byref(ADDRESS()), None, library, name)
            for name in (b"plain", b"absent")
        ],
    }
    must(CU.cuLibraryUnload(library))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
