# SPDX-License-Identifier: Apache-2.0
"""Programs with a CUDA runtime inside: how they are compiled, and run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from static_pool import StaticPool

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
TOOLKIT = ROOT / "build" / "cuda13" / "nvidia" / "cu13"
#: CUDA 12.9's headers and runtime.
OLDER = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime"
ARCHIVE = "libcudart_static.a"
NVCC: tuple[str | Path, ...] = (
    TOOLKIT / "bin" / "nvcc",
    *("-O1", "-std=c++17", "--no-compress", "-gencode=arch=compute_75,code=compute_75"),
    "-cudadevrt=none",
)


Archives = dict[tuple[int, str], Path]


def archives(ours: Path | None = None) -> Archives:
    """The static runtimes by major and by what becomes of them; `ours`: the folder of our own."""
    ours = ours or find_native("libcuda.so.1").parent
    return {
        (12, "diverted"): OLDER / "lib" / ARCHIVE,
        (13, "diverted"): TOOLKIT / "lib" / ARCHIVE,
        (12, "relinked"): ours / "cuda12" / ARCHIVE,
        (13, "relinked"): ours / ARCHIVE,
    }


def build_inside(folder: Path, names: Iterable[str], linked: Archives) -> Path:
    """NAME-MAJOR-WAY of them all: compiled once for each major, and linked with each archive."""
    nvcc: list[str | Path] = [*NVCC, "-cudart=none"]
    headers = {12: [f"-I{OLDER / 'include'}"], 13: []}
    for name in names:
        for major in headers:
            compiled = folder / f"{name}-{major}.o"
            source = PROGRAMS / f"{name}.cu"
            subprocess.run([*nvcc, *headers[major], "-c", "-o", compiled, source], check=True)
            for (version, way), archive in linked.items():
                if version == major:
                    out = folder / f"{name}-{major}-{way}"
                    command = [*nvcc, "-o", out, compiled, archive, "-ldl", "-lrt", "-lpthread"]
                    subprocess.run(command, check=True)
    return folder


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
    assert facts_of(done.stdout) == natively(name), done.stderr
    assert done.returncode == 0


def natively(name: str) -> list[str]:
    """What a program prints natively, on any machine."""
    return facts_of((PROGRAMS / "expected" / f"{name}.out").read_text())


def facts_of(text: str) -> list[str]:
    """Its lines that describe no machine."""
    return [line for line in text.splitlines() if not line.startswith("# ")]
