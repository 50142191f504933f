# SPDX-License-Identifier: Apache-2.0
"""NVIDIA Warp, whose library has NVIDIA's runtime and compilers linked into it: diverted."""

from __future__ import annotations

from ..carried import Carried
from ..entry import HERE, Entry, Programs, each_part

NAMES = (*("kernels", "atomics", "vectors", "gradients", "meshes", "tiles", "sorting", "sparse"),)
ENTRY = Entry(
    name="warp",
    title="NVIDIA Warp",
    what="kernels, graphs, gradients, meshes, tiles, sorts, sparse matrices, diverted; the same "
    "digits",
    parts=(Programs("programs", each_part(HERE / "programs/warp_parts.py", NAMES)),),
    divert=True,
    versions=("warp-lang", "numpy"),
    gibibytes=0.1,
    carried=Carried(left_out=("*/tests/*", "*.pyi", "warp/examples/*")),
)
