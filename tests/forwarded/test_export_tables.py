# SPDX-License-Identifier: Apache-2.0
"""No table of NVIDIA's driver that is not public is answered, and the program goes on."""

from __future__ import annotations

import sys
from pathlib import Path

from static_pool import StaticPool

PROGRAM = """
import ctypes, os
driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
assert driver.cuInit(0) == 0
for name in (bytes(16), bytes(range(16)), os.urandom(16), os.urandom(16)):
    table = ctypes.c_void_p(77)
    error = driver.cuGetExportTable(ctypes.byref(table), name)
    print(error, table.value)
    table = ctypes.c_void_p(77)
    print(runtime.cudaGetExportTable(ctypes.byref(table), name), table.value)
print(driver.cuGetExportTable(None, bytes(16)))
memory = ctypes.c_void_p()
print(runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)))
"""
INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED = 1, 500, 801


def test_none_is_answered_and_who_asked_is_said_once(tmp_path: Path) -> None:
    with StaticPool(tmp_path) as pool:
        done = pool.run(sys.executable, "-c", PROGRAM)
    answers = [f"{NOT_FOUND} None", f"{NOT_SUPPORTED} None"] * 4
    assert done.stdout.splitlines() == [*answers, str(INVALID_VALUE), "0"], done.stderr
    assert done.stderr.count("private") == 1, done.stderr
