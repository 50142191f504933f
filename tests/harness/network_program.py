# SPDX-License-Identifier: Apache-2.0
"""CUDA programs over TCP, with nothing in their environment but what a test says.

Used by tests/server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cuda_holder
from control_plane import native_worker

from sluice.config.native_files import NativeFileMissing, find_native

HOLDER = Path(cuda_holder.__file__)


def built() -> bool:
    """Whether client library, worker and software GPU are there."""
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing:
        return False
    return native_worker() is not None


def start(home: Path, *command: str | Path, **environment: object) -> subprocess.Popen[str]:
    """Starts a program, the holder if none is named."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    return subprocess.Popen(
        command or (sys.executable, HOLDER),
        env={
            **clean,
            "HOME": str(home),
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            "SLUICE_CHANNEL": "tcp",
            "SLUICE_GMEM": "64",
            **{name: str(value) for name, value in environment.items()},
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(home: Path, **environment: object) -> tuple[bool, str]:
    """Whether the holder computed, and all that it said."""
    out, error = start(home, **environment).communicate("go\n", timeout=60)
    return out == "ready\n0\n", out + error
