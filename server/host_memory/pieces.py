# SPDX-License-Identifier: Apache-2.0
"""A piece of host memory for a suspended session, and how the kernel makes one.

Used by sessions.swap_memory; what the driver makes is driver_memory.py's. Sizes are MiB.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20
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
