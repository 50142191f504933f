# SPDX-License-Identifier: Apache-2.0
"""Applications that the matrix wants and that have no part yet, each with the reason."""

from __future__ import annotations

from ..entry import Entry

ENTRIES = (
    Entry(
        name="vllm",
        title="vLLM",
        what="a small model's tokens",
        not_run="no part is written; release 0.33 (320 MiB) is built for PyTorch 2.13 and has its "
        "kernels in further packages, some 4 GiB to be brought to a machine with a GPU",
        gibibytes=4,
    ),
)
