# SPDX-License-Identifier: Apache-2.0
"""PyTorch for CUDA 12.8: the features of tests/gpu/features.py, with other packages."""

from __future__ import annotations

from ..entry import Entry, Programs
from . import torch_cuda13

ENTRY = Entry(
    name="torch-cuda12",
    title="PyTorch 2.9 (CUDA 12.8)",
    what="features that print what they computed",
    parts=(Programs("features", torch_cuda13.commands),),
    versions=("torch", "triton"),
    gibibytes=3.4,
)
