# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime for CUDA 13: small models, none of which may run on the CPU."""

from __future__ import annotations

from ..carried import Carried
from ..entry import HERE, Entry, Programs, each_part

NAMES = (*("perceptron", "convolutions", "attention", "recurrent", "sorting", "halves", "graphs"),)
ENTRY = Entry(
    name="onnxruntime",
    title="ONNX Runtime GPU (CUDA 13)",
    what="small models on the CUDA provider alone; the same digits",
    parts=(Programs("programs", each_part(HERE / "programs/onnx_parts.py", NAMES)),),
    versions=("onnxruntime-gpu", "onnx", "numpy"),
    gibibytes=0.2,
    carried=Carried(
        left_out=(
            *("*/tests/*", "*.pyi", "*/include/*", "onnx/backend/test/*", "*_tensorrt.so"),
            *("onnxruntime/transformers/*", "onnxruntime/tools/*", "onnxruntime/quantization/*"),
        ),
    ),
)
