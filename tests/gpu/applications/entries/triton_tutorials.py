# SPDX-License-Identifier: Apache-2.0
"""Triton's tutorials: what they check of themselves; their benchmarks are left out."""

from __future__ import annotations

from ..entry import HERE, Entry, Place, Programs, Snapshot

COMMIT = "004d7f5f58c2299a714e20c214893d4907dc8509"
"""Where release 3.6 was branched off; its tutorials are those of v3.6.0."""
LIBDEVICE = "third_party/nvidia/backend/lib/libdevice.10.bc"
NAMES = (
    *("01-vector-add", "02-fused-softmax", "03-matrix-multiplication", "04-low-memory-dropout"),
    *("05-layer-norm", "06-fused-attention", "07-extern-functions", "08-grouped-gemm"),
)


def commands(place: Place) -> dict[str, list[str]]:
    """Each tutorial by programs/tutorial.py."""
    program = str(HERE / "programs" / "tutorial.py")
    folder = place.sources / "triton" / "python" / "tutorials"
    return {name: [str(place.python), program, str(folder / f"{name}.py")] for name in NAMES}


ENTRY = Entry(
    name="triton-tutorials",
    title="Triton 3.6, its tutorials",
    what="the tutorials' own checks",
    parts=(Programs("tutorials", commands),),
    snapshots=(Snapshot("triton-lang/triton", COMMIT, ("python/tutorials", LIBDEVICE)),),
    versions=("torch", "triton"),
    gibibytes=0.1,
)
