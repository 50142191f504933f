# SPDX-License-Identifier: Apache-2.0
"""A piece of host memory for a suspended session, and how the kernel makes one.

Used by sessions.swap_memory; what the driver makes is driver_memory.py's. Sizes are MiB.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from sluice.server.host_memory.driver_process import LEFT_FREE_MIB, MEMORY, kib_of

MIB = 1 << 20
KIB_PER_MIB = 1024
LEFT_OF_TOTAL = 16  # of a small host less stays free
FREE_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
HUGE_PAGE_MIB = 2


class NoSwapMemory(Exception):
    """It is not to be had; the text says what to do."""


class HostPiece(NamedTuple):
    """A descriptor, which its owner closes."""

    memory: int
    mib: int
    of_driver: bool = False  #: the driver exported it; else it is shared memory

    def close(self) -> None:
        """Nobody has it from here any more."""
        os.close(self.memory)


def check_free(mib: int) -> None:
    """Before so much is made: the kernel gives it, and ends somebody for it. Raises NoSwapMemory.

    What is on huge pages was set aside before.
    """
    about = MEMORY.read_text()
    total, free = (kib_of(about, name) // KIB_PER_MIB for name in ("MemTotal", "MemAvailable"))
    left = min(LEFT_FREE_MIB, total // LEFT_OF_TOTAL)
    if free < max(0, mib - _huge_pages_mib()) + left:
        raise NoSwapMemory(
            f"the host has {free} MiB of memory available, and {mib} would be taken beside the "
            f"{left} that stay free: lower [suspend] swap_mib, or free some"
        )


def make_shared(mib: int) -> HostPiece:
    """Shared memory that is there already; blocks. Raises NoSwapMemory.

    On huge pages where enough of them are free.
    """
    if mib and _huge_pages_mib() >= mib:
        # Another thread, or process, may have them first.
        with contextlib.suppress(NoSwapMemory):
            return HostPiece(_made(mib, os.MFD_CLOEXEC | os.MFD_HUGETLB), mib)
    return HostPiece(_made(mib, os.MFD_CLOEXEC), mib)


def _made(mib: int, flags: int) -> int:
    try:
        descriptor = os.memfd_create("sluice-suspended", flags)
    except OSError as error:
        raise NoSwapMemory(f"the host gives no shared memory ({error.strerror})") from None
    try:
        os.ftruncate(descriptor, mib * MIB)
        if mib:
            os.posix_fallocate(descriptor, 0, mib * MIB)
    except OSError as error:
        os.close(descriptor)
        raise NoSwapMemory(
            f"the host has no {mib} MiB of memory left ({error.strerror}): lower [suspend] "
            "swap_mib, or free some"
        ) from None
    return descriptor


def _huge_pages_mib() -> int:
    try:
        return int(FREE_HUGE_PAGES.read_text()) * HUGE_PAGE_MIB
    except (OSError, ValueError):
        return 0
