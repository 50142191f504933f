# SPDX-License-Identifier: Apache-2.0
"""What a library takes on the node is the session's memory: charged, limited, given back.

A stand-in for cuBLAS takes 32 MiB with each handle. Skipped where the native part or a C compiler
is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from control_plane import native_worker, running

from sluice.config.native_files import NativeFileMissing, find_native

HERE = Path(__file__).resolve().parent

PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
blas = ctypes.CDLL("libcublas.so.13")
size = ctypes.c_size_t

def check(status):
    assert status == 0, status

def left():
    free, total = size(), size()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    assert total.value == 256 << 20
    return free.value >> 20

def create():
    handle = ctypes.c_void_p()
    status = blas.cublasCreate_v2(ctypes.byref(handle))
    return status, handle

def allocate(mib):
    p = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(p), size(mib << 20)), p

check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
assert left() == 256
handles = []
while True:
    status, handle = create()
    if status:
        break
    handles.append(handle)
    assert left() == 256 - 32 * len(handles), left()
assert (status, len(handles)) == (3, 8), (status, len(handles))
assert allocate(2)[0] == 2, "the libraries have it all"
seen = ctypes.c_int()
check(blas.cublasGetVersion_v2(handles[0], ctypes.byref(seen)))
assert seen.value == 256, f"a library sees the slice: {seen.value}"
# Memory comes back to both: to the program, and from it.
for handle in handles[4:]:
    check(blas.cublasDestroy_v2(handle))
check(cuda.cuCtxSynchronize())
assert left() == 128
status, memory = allocate(120)
check(status)
assert left() == 8
assert create()[0] == 3, "the program has it"
check(cuda.cuMemFree_v2(memory))
check(create()[0])
check(cuda.cuCtxSynchronize())
assert left() == 96
print("all of it")
"""


def usable() -> bool:
    try:
        find_native("libcublas.so.13")
    except NativeFileMissing:
        return False
    return native_worker() is not None and shutil.which("cc") is not None


@pytest.mark.skipif(not usable(), reason="the native part is not built, or there is no C compiler")
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_what_libraries_take_is_charged(tmp_path: Path, channel: str) -> None:
    with (
        tempfile.TemporaryDirectory() as libraries,
        running(tmp_path, server={"cuda_libraries": libraries}) as plane,
    ):
        Path(libraries).chmod(0o755)  # the worker has an account of its own
        made = f"{libraries}/libcublas.so.13"
        options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libcublas.so.13"]
        subprocess.run(["cc", *options, "-o", made, str(HERE / "fake_cublas.c")], check=True)
        shutil.copy(made, f"{libraries}/libcublasLt.so.13")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(Path(find_native("libcublas.so.13")).parent),
                "SLUICE_SERVER_SOCKET": str(plane.socket_path),
                "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
                "SLUICE_CHANNEL": channel,
                "SLUICE_GMEM": "256",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all of it\n"
