# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's cuda-samples by nvcc's defaults: the runtime is linked into them, and diverted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..entry import HERE, Entry, Place, Programs
from ..packages import PackageError


def build(repositories: Path, to: Path) -> None:
    """Compiles them (tests/gpu/build_samples.py); CUDA_HOME names the toolkit."""
    places = [repositories / name for name in ("NVIDIA+cuda-samples", "cuda-samples")]
    found = next((p for p in places if p.exists()), None)
    if found is None:
        raise PackageError(f"cuda-samples is not in {repositories}: extract it there")
    if "CUDA_HOME" not in os.environ:
        raise PackageError("CUDA_HOME does not name a CUDA 13 toolkit, by which samples are built")
    builder = str(HERE.parent / "build_samples.py")
    command = [sys.executable, builder, str(found), "--out", str(to / "cuda-samples")]
    subprocess.run([*command, "--runtime", "static"], check=True)


def commands(place: Place) -> dict[str, list[str]]:
    """Each sample that was built, compared by run_samples.py's own rules."""
    program = str(HERE / "programs" / "sample.py")
    built = sorted(p for p in (place.sources / "cuda-samples").iterdir() if (p / p.name).exists())
    return {p.name: [sys.executable, program, str(p / p.name)] for p in built}


ENTRY = Entry(
    name="cuda-samples",
    title="cuda-samples 13.0",
    what="`0_Introduction` and `3_CUDA_Features` with nvcc's defaults, diverted",
    parts=(Programs("samples", commands),),
    build=build,
    divert=True,
    gibibytes=0.2,
    seconds=300,
)
