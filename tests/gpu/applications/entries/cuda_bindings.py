# SPDX-License-Identifier: Apache-2.0
"""cuda-bindings: its own test suite, which only its repository has."""

from __future__ import annotations

from pathlib import Path

from ..entry import Entry, Place, Snapshot, Suite


def files(place: Place) -> list[Path]:
    """Those of the driver, the runtime and what compiles for them."""
    tests = place.sources / "cuda-python" / "cuda_bindings" / "tests"
    names = ("cuda", "cudart", "kernelParams", "interoperability", "nvrtc", "nvvm", "nvjitlink")
    return [tests / f"test_{name}.py" for name in (*names, "graphics_apis", "utils")]


ENTRY = Entry(
    name="cuda-bindings",
    title="cuda-bindings",
    what="its own test suite",
    parts=(Suite("tests", files),),
    snapshots=(
        Snapshot("NVIDIA/cuda-python", "v13.0.3", ("cuda_bindings/tests",), of="cuda-bindings"),
    ),
    divert=True,
    versions=("cuda-bindings",),
)
