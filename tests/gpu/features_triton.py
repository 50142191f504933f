# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of features.py; Triton wants their source in a file."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add two vectors."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x, out, columns, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Softmax of one row."""
    row = tl.program_id(0)
    at = tl.arange(0, block)
    values = tl.load(x + row * columns + at, mask=at < columns, other=float("-inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, values / tl.sum(values, 0), mask=at < columns)


def add(x: Any, y: Any) -> Any:
    """Return x + y."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), block=1024)
    return out


def softmax(x: Any) -> Any:
    """Return the softmax of each row."""
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], block=block)
    return out
