# SPDX-License-Identifier: Apache-2.0
"""cuda.core: its own test suite, which only its repository has."""

from __future__ import annotations

from pathlib import Path

from ..entry import Entry, Place, Snapshot, Suite

COMMIT = "8eb9dc2ba180394a763d40405be4cf8865b5f8eb"
"""The last one before release 1.1.0 of it, whose suite this is."""
IMPORTS = ("cuda-python/cuda_core/tests", "cuda-python/cuda_python_test_helpers")


def folder(place: Place) -> Path:
    """Its tests."""
    return place.sources / "cuda-python" / "cuda_core" / "tests"


def files(place: Place) -> list[Path]:
    """All but those of cuda.core's own build, of its sources, and of its examples."""
    own = ("test_build_hooks.py", "test_enum_coverage.py", "test_typing_imports.py")
    places = (folder(place), *(folder(place) / name for name in ("graph", "memory", "system")))
    return sorted(f for each in places for f in each.glob("test_*.py") if f.name not in own)


def of_processes(place: Place) -> list[Path]:
    """Those in which processes share memory and events."""
    return sorted(folder(place).glob("memory_ipc/test_*.py"))


ENTRY = Entry(
    name="cuda-core",
    title="cuda.core",
    what="its own test suite",
    parts=(
        Suite("tests", files, imports=IMPORTS),
        Suite("tests of several processes", of_processes, imports=IMPORTS),
    ),
    snapshots=(
        Snapshot(
            "NVIDIA/cuda-python",
            COMMIT,
            ("cuda_core/tests", "cuda_core/pytest.ini", "cuda_python_test_helpers"),
            of="cuda-core",
        ),
    ),
    divert=True,  # cuda-bindings calls the runtime for it
    versions=("cuda-core", "cuda-bindings"),
)
