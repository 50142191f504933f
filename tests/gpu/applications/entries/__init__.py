# SPDX-License-Identifier: Apache-2.0
"""The entries of the matrix, in the order in which the page has them."""

from __future__ import annotations

from ..entry import Entry
from . import (
    cuda_bindings,
    cuda_core,
    cuda_samples,
    cupy_13x,
    jax_cuda13,
    llama_cpp,
    numba_cuda,
    onnxruntime,
    others,
    tensorflow_cuda12,
    torch_cuda12,
    torch_cuda13,
    triton_tutorials,
    warp,
    xgboost,
)

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        torch_cuda13.ENTRY,
        torch_cuda12.ENTRY,
        cupy_13x.ENTRY,
        numba_cuda.ENTRY,
        cuda_bindings.ENTRY,
        cuda_core.ENTRY,
        jax_cuda13.ENTRY,
        triton_tutorials.ENTRY,
        cuda_samples.ENTRY,
        onnxruntime.ENTRY,
        xgboost.ENTRY,
        warp.ENTRY,
        llama_cpp.ENTRY,
        tensorflow_cuda12.ENTRY,
        *others.ENTRIES,
    )
}
