# SPDX-License-Identifier: Apache-2.0
"""CuPy for CUDA 13, whose extension modules have NVIDIA's runtime linked into them: diverted."""

from __future__ import annotations

from pathlib import Path

from ..entry import Entry, Place, Snapshot, Suite

FOLDERS = (
    *("binary", "core", "creation", "cuda", "fft", "functional", "indexing", "lib", "linalg"),
    *("logic", "manipulation", "math", "misc", "padding", "random", "sorting", "statistics"),
)


def files(place: Place) -> list[Path]:
    """Its test suite, less what needs several GPUs' hours."""
    tests = place.sources / "cupy" / "tests" / "cupy_tests"
    return sorted(f for name in FOLDERS for f in (tests / f"{name}_tests").rglob("test_*.py"))


ENTRY = Entry(
    name="cupy",
    title="CuPy 14 (cuda13x)",
    what="its own test suite, diverted",
    parts=(
        Suite(
            "tests",
            files,
            options=("-m", "not slow and not multi_gpu"),
            left_out={"test_profile.py": "starts and stops a profiler of the process's own"},
        ),
    ),
    snapshots=(Snapshot("cupy/cupy", "v14.2.0", ("tests", "pyproject.toml"), of="cupy-cuda13x"),),
    divert=True,
    versions=("cupy-cuda13x", "numpy"),
    seconds=1800,
)
