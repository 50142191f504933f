# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's cuda-samples by nvcc's defaults: the runtime is linked into them, and diverted."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from ..entry import HERE, Entry, Place, Programs, Snapshot
from ..packages import PackageError

FOLDERS = ("0_Introduction", "1_Utilities", "3_CUDA_Features")


def build(sources: Path, to: Path) -> None:
    """Compiles them (tests/gpu/build_samples.py); CUDA_HOME names the toolkit."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if not (toolkit / "bin" / "nvcc").exists():
        raise PackageError(f"{toolkit} has no nvcc: CUDA_HOME names a CUDA 13 toolkit")
    builder = str(HERE.parent / "build_samples.py")
    command = [sys.executable, builder, str(sources / "cuda-samples")]
    command += ["--toolkit", str(toolkit), "--jobs", str(len(os.sched_getaffinity(0)))]
    for runtime in ("static", "shared"):
        done = subprocess.run(
            [*command, "--out", str(to / f"samples-{runtime}"), "--runtime", runtime],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise PackageError(f"the samples with the {runtime} runtime were not built")


def commands(place: Place, runtime: str) -> dict[str, list[str]]:
    """Each sample that was built, compared by run_samples.py's own rules."""
    program = str(HERE / "programs" / "sample.py")
    folder = place.sources / f"samples-{runtime}"
    built = sorted(p for p in folder.iterdir() if (p / p.name).exists())
    return {p.name: [sys.executable, program, str(p / p.name)] for p in built}


ENTRY = Entry(
    name="cuda-samples",
    title="cuda-samples 13.0",
    what="introduction, utilities, CUDA features; with nvcc's defaults and with the shared runtime",
    parts=(
        Programs("the static runtime, diverted", partial(commands, runtime="static")),
        Programs("the shared runtime", partial(commands, runtime="shared")),
    ),
    snapshots=(
        Snapshot("NVIDIA/cuda-samples", "v13.0", ("Common", *(f"Samples/{f}" for f in FOLDERS))),
    ),
    build=build,
    divert=True,
    gibibytes=0.2,
    seconds=300,
)
