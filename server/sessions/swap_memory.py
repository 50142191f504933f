# SPDX-License-Identifier: Apache-2.0
"""The host's memory for suspended sessions: how much there is, who has it, and how it is made.

Used by sessions.suspending. Sizes are MiB. Each session's copy is shared memory of its own, which
its worker alone keeps: when the worker is done with it or ends, the kernel has the pages back, and
gives them to nobody before it has emptied them. It promises that no more is taken than
[suspend] swap_mib says, workers of an earlier server included, and that what is handed out is
there: pages are taken before anything is moved.
"""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
FREE_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
HUGE_PAGE_MIB = 2


class NoSwapMemory(Exception):
    """It is not to be had; the text says what to do."""


class SwapMemory:
    """What there is for suspended sessions, by session."""

    def __init__(self, limit_mib: int) -> None:
        self.limit_mib = limit_mib
        self._taken: dict[str, int] = {}

    @property
    def used_mib(self) -> int:
        """What sessions have."""
        return sum(self._taken.values())

    def take(self, wanted: dict[str, int]) -> None:
        """Books for sessions, by id, all or none. Raises NoSwapMemory."""
        before = sum(self._taken.get(session_id, 0) for session_id in wanted)
        needed, left = sum(wanted.values()), self.limit_mib - self.used_mib + before
        if needed > left:
            raise NoSwapMemory(
                f"{needed} MiB would move to the host, and of [suspend] swap_mib "
                f"({self.limit_mib}) {max(0, left)} MiB are left: raise it, or resume or end what "
                "is suspended there"
            )
        self._taken |= wanted

    def adopt(self, session_id: str, mib: int) -> None:
        """What a worker of an earlier server has, whatever the limit says by now."""
        self._taken[session_id] = mib

    def give(self, session_id: str) -> None:
        """A session has none any more."""
        self._taken.pop(session_id, None)


def make_memory(mib: int) -> int:
    """A descriptor of shared memory that is there already; blocks. Raises NoSwapMemory.

    On huge pages where enough of them are free. The caller closes it.
    """
    flags = os.MFD_CLOEXEC | (os.MFD_HUGETLB if _huge_pages_mib() >= mib else 0)
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
