# SPDX-License-Identifier: Apache-2.0
"""How much host memory one session's cgroup may hold where the operator gave no figure.

Used by workers.process. A bound for a session that means harm, far above what any other
takes: on an H200 a process with PyTorch 2.11, all of whose kernels are loaded at once as a worker
loads them, and with cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE and NCCL in use, takes 8.0 GiB, of
which 2.8 GiB are its context. What sessions may have besides is bounded by itself: uploads,
stand-ins of host memory, answers under way (docs/threat-model.md).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

KIB_PER_MIB = 1024
FIRST_GPU_MIB = 16384
FURTHER_GPU_MIB = 8192


def session_memory_mib(
    *, arena_mib: int, gpus: int, software: bool, host_mib: int | None = None
) -> int:
    """MiB for a worker that sees so many GPUs (0: all of the host's), never 0.

    Never more than three quarters of the host's memory. Just those where the software GPU's
    memory, which is the host's, counts too, and where nobody knows how many GPUs there are.
    """
    if host_mib is None:
        host_mib = (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20
    most = max(host_mib * 3 // 4, 1)
    if software or gpus == 0:
        return most
    # the arena is charged to whoever touches it first, which may be the worker
    return min(most, FIRST_GPU_MIB + FURTHER_GPU_MIB * (gpus - 1) + arena_mib)


def anonymous_mib(pid: int) -> int:
    """What a process has of host memory for itself alone; 0: it has ended."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) // KIB_PER_MIB
    return 0
