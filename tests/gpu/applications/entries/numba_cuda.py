# SPDX-License-Identifier: Apache-2.0
"""numba-cuda: its own test suite, which its wheel carries."""

from __future__ import annotations

from pathlib import Path

from ..entry import Entry, Place, Snapshot, Suite


def files(place: Place) -> list[Path]:
    """Those that compile for a GPU or call one."""
    tests = place.package("numba_cuda", "numba", "cuda", "tests")
    folders = ("cudadrv", "cudapy", "doc_examples", "nrt")
    return sorted(f for folder in folders for f in (tests / folder).glob("test_*.py"))


ENTRY = Entry(
    name="numba-cuda",
    title="numba-cuda",
    what="its own test suite",
    parts=(
        Suite(
            "tests",
            files,
            conftest="numba-cuda/testing/conftest.py",
            options=("-o", "consider_namespace_packages=true"),
            left_out={"test_profiler.py": "starts and stops a profiler of the process's own"},
        ),
    ),
    snapshots=(Snapshot("NVIDIA/numba-cuda", "v0.30.4", ("testing",), of="numba-cuda"),),
    divert=True,  # cuda-bindings calls the runtime for it
    versions=("numba", "numba-cuda", "cuda-core", "cuda-bindings"),
)
