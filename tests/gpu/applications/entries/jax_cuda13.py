# SPDX-License-Identifier: Apache-2.0
"""JAX for CUDA 13."""

from __future__ import annotations

from ..entry import HERE, Entry, Place, Programs

NAMES = ("elementwise", "products", "gradients", "convolution", "loops", "linear", "fft", "random")


def commands(place: Place) -> dict[str, list[str]]:
    """Each part of programs/jax_parts.py."""
    program = str(HERE / "programs" / "jax_parts.py")
    return {name: [str(place.python), program, name] for name in NAMES}


ENTRY = Entry(
    name="jax",
    title="JAX (CUDA 13)",
    what="products, gradients, convolutions, solvers, FFT, loops; the same digits",
    parts=(Programs("programs", commands),),
    versions=("jax", "jaxlib"),
    environment={
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # The same kernels both times, whatever autotuning would have found faster.
        "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true",
    },
    gibibytes=0.3,
)
