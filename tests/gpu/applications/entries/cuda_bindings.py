# SPDX-License-Identifier: Apache-2.0
"""cuda-bindings: its own test suite, which only its repository has."""

from __future__ import annotations

from pathlib import Path

from ..entry import Entry, Place, Snapshot, Suite

COMMIT = "96c7f518d73e977ca9c9fbfd20f0c1293a479d56"
"""The last one before release 13.3.1 of it, whose suite this is."""
IMPORTS = ("cuda-python/cuda_python_test_helpers",)


def folder(place: Place) -> Path:
    """Its tests."""
    return place.sources / "cuda-python" / "cuda_bindings" / "tests"


def files(place: Place) -> list[Path]:
    """Those of the driver, the runtime and what compiles for them."""
    names = ("cuda", "cudart", "kernelParams", "interoperability", "nvrtc", "nvvm", "nvjitlink")
    return [folder(place) / f"test_{name}.py" for name in (*names, "graphics_apis", "utils")]


def of_nvml(place: Place) -> list[Path]:
    """Those of the management library."""
    return sorted(folder(place).glob("nvml/test_*.py"))


ENTRY = Entry(
    name="cuda-bindings",
    title="cuda-bindings",
    what="its own test suite",
    parts=(
        Suite("tests", files, imports=IMPORTS),
        Suite("tests of NVML", of_nvml, imports=IMPORTS),
    ),
    snapshots=(
        Snapshot(
            "NVIDIA/cuda-python",
            COMMIT,
            ("cuda_bindings/tests", "cuda_python_test_helpers"),
            of="cuda-bindings",
        ),
    ),
    divert=True,
    versions=("cuda-bindings",),
)
