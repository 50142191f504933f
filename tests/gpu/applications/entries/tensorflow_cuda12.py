# SPDX-License-Identifier: Apache-2.0
"""TensorFlow for CUDA 12, with NVIDIA's libraries that the PyTorch of that major brings."""

from __future__ import annotations

from ..carried import Carried
from ..entry import HERE, Entry, Programs, each_part

NAMES = (
    *("elementwise", "products", "convolutions", "linear", "fft", "sorting", "random"),
    *("graphs", "training"),
)
ENTRY = Entry(
    name="tensorflow",
    title="TensorFlow (CUDA 12)",
    what="kernels, products, convolutions, solvers, FFT, traced and Keras's training; the same "
    "digits",
    parts=(Programs("programs", each_part(HERE / "programs/tensorflow_parts.py", NAMES)),),
    versions=("tensorflow", "keras", "numpy"),
    environment={
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        # The same kernels both times, whatever autotuning would have found faster.
        "TF_CUDNN_USE_AUTOTUNE": "0",
    },
    gibibytes=0.3,
    carried=Carried(
        alone=True,
        left_out=(
            *("*/tests/*", "*.pyi", "*.a", "tensorflow/include/*", "clang/*"),
            *("*_test.py", "nvidia/cuda_nvcc/nvvm/lib64/*"),
            "nvidia/cuda_nvcc/include/*",
        ),
        borrowed=(("nvidia", "torch-cuda12"),),
    ),
)
