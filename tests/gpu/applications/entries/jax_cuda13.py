# SPDX-License-Identifier: Apache-2.0
"""JAX for CUDA 13."""

from __future__ import annotations

from ..entry import HERE, Entry, Programs, each_part

NAMES = ("elementwise", "products", "gradients", "convolution", "loops", "linear", "fft", "random")
ENTRY = Entry(
    name="jax",
    title="JAX (CUDA 13)",
    what="products, gradients, convolutions, solvers, FFT, loops; the same digits",
    parts=(Programs("programs", each_part(HERE / "programs/jax_parts.py", NAMES)),),
    versions=("jax", "jaxlib"),
    environment={
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # The same kernels both times, whatever autotuning would have found faster.
        "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true",
    },
    gibibytes=0.3,
)
