# SPDX-License-Identifier: Apache-2.0
"""NVIDIA Warp in parts, each printing what it computed: `python warp_parts.py NAME [DEVICE]`."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import warp as wp
import warp.sparse
from shown import show

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda:0"
RNG = np.random.default_rng(13)
TILE = wp.constant(16)


@wp.kernel
def waves(x: wp.array(dtype=float), y: wp.array(dtype=float)) -> None:
    """What is compiled when it is first launched."""
    i = wp.tid()
    y[i] = wp.sin(x[i]) * wp.exp(-x[i] * x[i])


@wp.kernel
def count(x: wp.array(dtype=float), found: wp.array(dtype=int)) -> None:
    """Atomics whose order makes no difference."""
    wp.atomic_add(found, int(wp.floor(wp.abs(x[wp.tid()]) * 4.0)), 1)


@wp.kernel
def turn(points: wp.array(dtype=wp.vec3), by: wp.quat, out: wp.array(dtype=wp.vec3)) -> None:
    """Vectors and quaternions."""
    i = wp.tid()
    out[i] = wp.normalize(wp.quat_rotate(by, points[i]))


@wp.kernel
def hits(mesh: wp.uint64, start: wp.array(dtype=wp.vec3), far: wp.array(dtype=float)) -> None:
    """Rays into a mesh, through its tree."""
    i = wp.tid()
    found = wp.mesh_query_ray(mesh, start[i], wp.vec3(0.0, 0.0, 1.0), 100.0)
    far[i] = wp.where(found.result, found.t, -1.0)


@wp.kernel
def square(a: wp.array2d(dtype=float), out: wp.array2d(dtype=float)) -> None:
    """Tiles in shared memory."""
    i, j = wp.tid()
    total = wp.tile_zeros(shape=(TILE, TILE), dtype=float)
    for k in range(a.shape[1] // TILE):
        left = wp.tile_load(a, shape=(TILE, TILE), offset=(i * TILE, k * TILE))
        right = wp.tile_load(a, shape=(TILE, TILE), offset=(k * TILE, j * TILE))
        wp.tile_matmul(left, right, total)
    wp.tile_store(out, total, offset=(i * TILE, j * TILE))


def normal(*shape: int) -> Any:
    """Numbers that are the same in each run, on the device."""
    return wp.array(RNG.normal(size=shape).astype(np.float32), dtype=float, device=DEVICE)


def kernels() -> list[Any]:
    """A kernel, and the same in a captured graph."""
    x = normal(100_000)
    y, z = wp.zeros_like(x), wp.zeros_like(x)
    wp.launch(waves, x.size, [x, y], device=DEVICE)
    if DEVICE == "cpu":
        wp.launch(waves, x.size, [y, z], device=DEVICE)
        return [y, z]
    with wp.ScopedCapture(device=DEVICE) as capture:
        wp.launch(waves, x.size, [y, z], device=DEVICE)
    wp.capture_launch(capture.graph)
    return [y, z]


def atomics() -> list[Any]:
    """A histogram."""
    found = wp.zeros(32, dtype=int, device=DEVICE)
    wp.launch(count, 100_000, [normal(100_000), found], device=DEVICE)
    return [found]


def vectors() -> list[Any]:
    """What is turned and normalized."""
    points = wp.array(RNG.normal(size=(5000, 3)).astype(np.float32), dtype=wp.vec3, device=DEVICE)
    out = wp.zeros_like(points)
    by = wp.quat_from_axis_angle(wp.vec3(0.0, 1.0, 0.0), 0.7)
    wp.launch(turn, points.size, [points, by, out], device=DEVICE)
    return [out]


def gradients() -> list[Any]:
    """A tape, backwards."""
    x = normal(1000)
    x.requires_grad = True
    y = wp.zeros_like(x, requires_grad=True)
    with wp.Tape() as tape:
        wp.launch(waves, x.size, [x, y], device=DEVICE)
    tape.backward(grads={y: wp.ones_like(y)})
    return [y, x.grad]


def meshes() -> list[Any]:
    """A bounding volume hierarchy."""
    points = wp.array(RNG.uniform(-1, 1, (300, 3)).astype(np.float32), dtype=wp.vec3, device=DEVICE)
    corners = wp.array(RNG.permutation(300).astype(np.int32), dtype=int, device=DEVICE)
    mesh = wp.Mesh(points, corners)
    start = RNG.uniform(-1, 1, (2000, 3)).astype(np.float32) - np.float32([0, 0, 5])
    far = wp.zeros(2000, dtype=float, device=DEVICE)
    starts = wp.array(start, dtype=wp.vec3, device=DEVICE)
    wp.launch(hits, 2000, [mesh.id, starts, far], device=DEVICE)
    return [far]


def tiles() -> list[Any]:
    """A product by tiles."""
    a = normal(64, 64)
    out = wp.zeros_like(a)
    wp.launch_tiled(square, dim=(4, 4), inputs=[a, out], block_dim=64, device=DEVICE)
    return [out]


def sorting() -> list[Any]:
    """What CUB does, by the runtime inside: a sort of pairs, a scan."""
    keys = wp.array(RNG.permutation(4096).repeat(2).astype(np.int32), dtype=int, device=DEVICE)
    values = wp.array(np.arange(8192, dtype=np.int32), dtype=int, device=DEVICE)
    sums = wp.zeros(4096, dtype=int, device=DEVICE)
    wp.utils.radix_sort_pairs(keys, values, 4096)
    wp.utils.array_scan(values[:4096].contiguous(), sums, inclusive=True)
    return [keys[:4096], values[:4096], sums]


def sparse() -> list[Any]:
    """Sparse matrices from triplets, and their product."""
    places = RNG.integers(0, 200, (2, 2000)).astype(np.int32)
    rows, columns = (wp.array(each, dtype=int, device=DEVICE) for each in places)
    values = wp.array(RNG.integers(-9, 9, 2000).astype(np.float32), dtype=float, device=DEVICE)
    a = wp.sparse.bsr_from_triplets(200, 200, rows, columns, values)
    b = wp.sparse.bsr_mm(a, a)
    n = b.nnz_sync()
    return [b.offsets, b.columns[:n], b.values[:n]]


PARTS = {
    f.__name__: f for f in (kernels, atomics, vectors, gradients, meshes, tiles, sorting, sparse)
}


def main() -> None:
    """A line for each array."""
    with contextlib.redirect_stdout(sys.stderr):  # what took how long to compile
        wp.init()
        found = PARTS[sys.argv[1]]()
    print("cuda" if wp.get_device(DEVICE).is_cuda else "cpu")
    for array in found:
        show(array.numpy())


if __name__ == "__main__":
    main()
