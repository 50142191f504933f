# SPDX-License-Identifier: Apache-2.0
"""PyTorch for CUDA 12.8: the features of tests/gpu/features.py, with other packages.

Its operators and workloads are measured by tests/gpu/conformance.py --python.
"""

from __future__ import annotations

from ..carried import Carried
from ..entry import Entry, Programs
from . import torch_cuda13

ENTRY = Entry(
    name="torch-cuda12",
    title="PyTorch 2.9 (CUDA 12.8)",
    what="features that print what they computed",
    parts=(Programs("features", torch_cuda13.commands),),
    versions=("torch", "triton"),
    gibibytes=3.4,
    figures=(
        *("workloads/cu12_resnet50_train", "workloads/cu12_resnet50_infer"),
        *("workloads/cu12_gpt2_generate", "workloads/cu12_operators"),
    ),
    carried=Carried(
        alone=True,
        left_out=(
            *("*/tests/*", "*.a", "*.pyi", "*.bc", "*/include/*"),
            *("torch/share/*", "torch/test/*", "torch/bin/protoc*", "torch/lib/*_test*.so"),
            *("torch/lib/libbackend_with_compiler.so", "nvidia/*.alt.so*"),
            *("nvidia/cublas/lib/libnvblas*", "nvidia/cufft/lib/libcufftw*"),
            *("nvidia/cusolver/lib/libcusolverMg*", "nvidia/nvshmem/lib/nvshmem_*"),
            *("nvidia/cuda_cupti/lib/lib[!c]*", "nvidia/cuda_cupti/lib/libcheckpoint*"),
            *("triton/FileCheck", "triton/instrumentation/*", "triton/_C/libproton*"),
            *("triton/backends/nvidia/lib/cupti/*", "triton/backends/nvidia/bin/[!p]*"),
            *("triton/backends/amd/lib/*", "hf_xet*", "transformers/models/*"),
        ),
        kept=(
            *("triton/backends/nvidia/include/cuda.h", "triton/backends/nvidia/lib/libdevice*"),
            *("transformers/models/__init__.py", "transformers/models/auto/*"),
            "transformers/models/gpt2/*",
        ),
        # One GPU has no collectives, and no feature has structured sparsity.
        emptied=("nvidia/nccl/*", "nvidia/nvshmem/*", "nvidia/cusparselt/*", "torch/*nvshmem*"),
    ),
)
