# SPDX-License-Identifier: Apache-2.0
"""cuda.core: its own test suite, which only its repository has."""

from __future__ import annotations

from pathlib import Path

from ..entry import Entry, Place, Snapshot, Suite


def folder(place: Place) -> Path:
    """Its tests."""
    return place.sources / "cuda-python" / "cuda_core" / "tests"


def files(place: Place) -> list[Path]:
    """All but those of cuda.core's own build."""
    found = folder(place).glob("test_*.py")
    return sorted(f for f in found if f.name not in ("test_build_hooks.py", "test_cuda_utils.py"))


def of_processes(place: Place) -> list[Path]:
    """Those in which processes share memory and events."""
    return sorted(folder(place).glob("memory_ipc/test_*.py"))


ENTRY = Entry(
    name="cuda-core",
    title="cuda.core",
    what="its own test suite",
    parts=(Suite("tests", files), Suite("tests of several processes", of_processes)),
    snapshots=(
        Snapshot(
            "NVIDIA/cuda-python",
            "cuda-core-v0.5.1",
            ("cuda_core/tests", "cuda_python_test_helpers"),
        ),
    ),
    divert=True,  # cuda-bindings calls the runtime for it
    versions=("cuda-core", "cuda-bindings"),
)
