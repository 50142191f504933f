# SPDX-License-Identifier: Apache-2.0
"""Applications that the matrix wants and that have no part yet, each with the reason."""

from __future__ import annotations

from ..entry import Entry

ENTRIES = (
    Entry(
        name="onnxruntime",
        title="ONNX Runtime GPU",
        what="sessions of small models",
        not_run="no part is written; imports of release 1.23 are exported in the right versions",
        gibibytes=0.4,
    ),
    Entry(
        name="xgboost",
        title="XGBoost",
        what="`device=cuda` training",
        not_run="no part is written; its wheel has NVIDIA's runtime linked into it",
        gibibytes=0.3,
    ),
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
