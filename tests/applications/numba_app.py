# SPDX-License-Identifier: Apache-2.0
"""A numba-cuda program as anybody would write it: an elementwise kernel and a tiled matrix product.

Knows nothing of Sluice, so it runs natively as well (`python numba_app.py` where numba-cuda and a
GPU are). What it prints does not depend on the device, except for lines that begin with "# ".
Ends with 1 when a result is not numpy's.
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
from numba import cuda, float32

TILE = 16


@cuda.jit
def scale_and_shift(out, x, y, factor):
    """out = factor * x + y, and a square root and a branch, one thread an element."""
    i = cuda.grid(1)
    if i < out.size:
        value = factor * x[i] + y[i]
        out[i] = value if value >= 0 else -value


@cuda.jit
def matrix_product(c, a, b):
    """c = a @ b with tiles in shared memory; the edges are not multiples of a tile."""
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    row, column = cuda.grid(2)
    ty, tx = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for tile in range((a.shape[1] + TILE - 1) // TILE):
        k = tile * TILE + tx
        left[ty, tx] = a[row, k] if row < a.shape[0] and k < a.shape[1] else float32(0)
        k = tile * TILE + ty
        right[ty, tx] = b[k, column] if column < b.shape[1] and k < b.shape[0] else float32(0)
        cuda.syncthreads()
        for j in range(TILE):
            total += left[ty, j] * right[j, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def report(name: str, got: np.ndarray, wanted: np.ndarray) -> bool:
    """One line: whether every element is numpy's, and a checksum of what came back."""
    right = bool(np.array_equal(got, wanted))
    checksum = zlib.crc32(np.ascontiguousarray(got).tobytes())
    print(f"{name}: {'right' if right else 'WRONG'}, {got.size} elements, checksum {checksum:08x}")
    return right


def elementwise() -> bool:
    """Arrays copied by numba at the launch, in a size that is no multiple of a block."""
    n = 100_003
    # Small integers and a power of two: every device's result is the same to the last bit.
    x = (np.arange(n, dtype=np.float32) % 1013) - 500
    y = (np.arange(n, dtype=np.float32) % 97) * np.float32(0.25)
    out = np.zeros(n, dtype=np.float32)
    scale_and_shift[(n + 255) // 256, 256](out, x, y, np.float32(0.5))
    return report("elementwise", out, np.abs(np.float32(0.5) * x + y))


def product() -> bool:
    """Arrays in device memory and a stream of the application's own."""
    rows, inner, columns = 70, 45, 83
    # Sums of small integers are exact in float32, in whatever order they are added.
    a = ((np.arange(rows * inner).reshape(rows, inner) * 7) % 11 - 5).astype(np.float32)
    b = ((np.arange(inner * columns).reshape(inner, columns) * 5) % 13 - 6).astype(np.float32)
    stream = cuda.stream()
    on_device = [cuda.to_device(matrix, stream=stream) for matrix in (a, b)]
    c = cuda.device_array((rows, columns), dtype=np.float32, stream=stream)
    blocks = ((rows + TILE - 1) // TILE, (columns + TILE - 1) // TILE)
    matrix_product[blocks, (TILE, TILE), stream](c, *on_device)
    got = c.copy_to_host(stream=stream)
    stream.synchronize()
    return report("matrix product", got, a @ b)


def main() -> int:
    """Both, then what they ran on."""
    right = [elementwise(), product()]
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    print(f"# device: {name}, compute capability {device.compute_capability}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
