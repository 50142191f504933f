# SPDX-License-Identifier: Apache-2.0
"""A program that needs a library of NVIDIA's which the node does not have.

Skipped where the native part is not built, and where the node has the library after all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from control_plane import ControlPlane, native_worker

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.server.gpus.cuda_libraries import find_libraries, search_folders

PROGRAM = """
import ctypes
blas = ctypes.CDLL("libcublas.so.13")
handle = ctypes.c_void_p()
print("create", blas.cublasCreate_v2(ctypes.byref(handle)))
print("again", blas.cublasCreate_v2(ctypes.byref(handle)))
cuda = ctypes.CDLL("libcuda.so.1")
print("session", cuda.cuCtxSynchronize())
"""


def usable() -> bool:
    try:
        find_native("libcublas.so.13")
    except NativeFileMissing:
        return False
    there = find_libraries(search_folders())
    return native_worker() is not None and not any(x.title == "cuBLAS" and x.path for x in there)


@pytest.mark.skipif(not usable(), reason="the native part is not built, or the node has cuBLAS")
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_the_program_is_told_once_and_its_session_lives(plane: ControlPlane, channel: str) -> None:
    folder = Path(find_native("libcublas.so.13")).parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(folder),
            "SLUICE_SERVER_SOCKET": str(plane.socket_path),
            "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
            "SLUICE_CHANNEL": channel,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    not_supported = 15  # CUBLAS_STATUS_NOT_SUPPORTED
    assert done.stdout.split("\n")[:3] == [
        f"create {not_supported}",
        f"again {not_supported}",
        "session 0",
    ]
    lines = [line for line in done.stderr.splitlines() if "cublas" in line]
    assert len(lines) == 1, done.stderr
    assert "the GPU node has no libcublas.so.13" in lines[0]
    assert "[server] cuda_libraries" in lines[0]
