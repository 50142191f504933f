# SPDX-License-Identifier: Apache-2.0
"""Applications that the matrix wants and that have no part yet, each with the reason."""

from __future__ import annotations

from ..entry import Entry

ENTRIES = (
    Entry(
        name="llama-cpp",
        title="llama.cpp",
        what="a small model's tokens",
        not_run="no part is written; it is compiled from source with a CUDA toolkit",
    ),
    Entry(
        name="vllm",
        title="vLLM",
        what="a small model's tokens",
        not_run="no part is written; it needs a PyTorch of its own",
        gibibytes=5,
    ),
    Entry(
        name="tensorflow",
        title="TensorFlow (CUDA 12)",
        what="training steps",
        not_run="no part is written; it needs NVIDIA's libraries for CUDA 12",
        gibibytes=3,
    ),
)
