# SPDX-License-Identifier: Apache-2.0
"""PyTorch for CUDA 13: the features of tests/gpu/features.py.

Its operators (tests/gpu/operators.py) and workloads (tests/gpu/run_workloads.py) are compared by
programs of their own; what is kept of those stands beside the results.
"""

from __future__ import annotations

from ..entry import HERE, Entry, Place, Programs

NAMES = (
    *("compile_model", "amp", "data_loader", "triton_kernels", "cuda_graph", "async_allocator"),
    *("expandable_segments", "out_of_memory", "rnn", "ctc_loss", "attention", "linear_algebra"),
    *("streams_and_events", "shared_tensors", "profiler"),
)


def commands(place: Place) -> dict[str, list[str]]:
    """Each feature in a process."""
    program = str(HERE.parent / "features.py")
    return {name: [str(place.python), program, name] for name in NAMES}


ENTRY = Entry(
    name="torch-cuda13",
    title="PyTorch 2.11 (CUDA 13.0)",
    what="features that print what they computed",
    parts=(Programs("features", commands),),
    versions=("torch", "triton"),
    gibibytes=3.5,
    figures=(
        *("workloads/resnet50_train", "workloads/resnet50_infer"),
        *("workloads/gpt2_train", "workloads/gpt2_generate"),
    ),
)
