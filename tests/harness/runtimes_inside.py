# SPDX-License-Identifier: Apache-2.0
"""Programs with a CUDA runtime inside: how they are compiled, and run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from static_pool import StaticPool

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
TOOLKIT = ROOT / "build" / "cuda13" / "nvidia" / "cu13"
#: CUDA 12.9's headers and runtime.
OLDER = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime"
ARCHIVE = "libcudart_static.a"
NVCC = (
    TOOLKIT / "bin" / "nvcc",
    *("-O1", "-std=c++17", "--no-compress", "-gencode=arch=compute_75,code=compute_75"),
    "-cudadevrt=none",
)


def sluice_run(
    pool: StaticPool, *command: str | Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """By `sluice run`."""
    variables = {
        "PYTHONPATH": str(ROOT / "python"),
        "SLUICE_LIBRARIES": str(find_native("libcuda.so.1").parent),
        "LD_LIBRARY_PATH": "",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "sluice.guest_runtime", "run", *map(str, command)],
        env=pool.environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def prints_as_natively(name: str, done: subprocess.CompletedProcess[str]) -> None:
    """Fails the test where a program of tests/programs did not."""
    said = [line for line in done.stdout.splitlines() if not line.startswith("# ")]
    expected = (PROGRAMS / "expected" / f"{name}.out").read_text().splitlines()
    assert said == [line for line in expected if not line.startswith("# ")], done.stderr
    assert done.returncode == 0
