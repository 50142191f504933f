# SPDX-License-Identifier: Apache-2.0
"""The ledgers of jobs: pages on which the workers of one grant write what they have of its memory.

Used by sessions.lifecycle. native/api/protocol.yaml says what is on a page,
native/worker/grant_ledger.h how it is written. It owns a descriptor of each page that a session
uses, and which session has which slot. It promises that what a session had is the job's again once
its worker has ended, however it ended, and that pages outlive the server: workers hand theirs to
the next one. The page is read by nobody here: a worker that was taken over can write into it what
it likes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
from dataclasses import dataclass, field

from sluice.protocol.frames import (
    LEDGER_HEADER_BYTES,
    LEDGER_KINDS,
    LEDGER_MAGIC,
    LEDGER_SLOTS,
    MAX_DEVICES,
)

log = logging.getLogger("sluice.server")

ROWS = LEDGER_KINDS * MAX_DEVICES
BYTES = LEDGER_HEADER_BYTES + 8 * ROWS * LEDGER_SLOTS
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class LedgerFullError(Exception):
    """A job has as many sessions as a ledger has slots."""


@dataclass(slots=True)
class _Page:
    descriptor: int
    slots: set[int] = field(default_factory=set)


class GrantLedgers:
    """The pages of this host's jobs, by grant."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def join(self, grant_id: str) -> tuple[int, int]:
        """A slot for a new session and the page's descriptor, which stays this object's.

        Raises LedgerFullError, or OSError.
        """
        page = self._pages.get(grant_id)
        if page is None:
            page = self._pages[grant_id] = _Page(make_page(grant_id))
        slot = next((slot for slot in range(LEDGER_SLOTS) if slot not in page.slots), None)
        if slot is None:
            raise LedgerFullError(
                f"grant {grant_id} has {LEDGER_SLOTS} sessions; none can be added"
            )
        page.slots.add(slot)
        return page.descriptor, slot

    def leave(self, grant_id: str, slot: int) -> None:
        """The session's worker has ended; the last one takes the page with it."""
        page = self._pages.get(grant_id)
        if page is None or slot not in page.slots:
            return
        page.slots.discard(slot)
        if page.slots:
            clear_slots(page.descriptor, {slot})
        else:
            os.close(self._pages.pop(grant_id).descriptor)

    def adopt(self, grant_id: str, slot: int, descriptor: int) -> None:
        """A session of an earlier server, with the page that its worker handed over (-1: none)."""
        page = self._pages.get(grant_id)
        if page is None and not _is_page(descriptor):
            log.error("grant %s: its ledger is lost; a new one begins", grant_id)
            page = self._pages[grant_id] = _Page(make_page(grant_id))
        elif page is None:
            page = self._pages[grant_id] = _Page(os.dup(descriptor))
        page.slots.add(slot)
        if descriptor >= 0:
            os.close(descriptor)

    def reconcile(self) -> None:
        """After adoption: what sessions had that ended while no server ran is the jobs' again."""
        for page in self._pages.values():
            clear_slots(page.descriptor, set(range(LEDGER_SLOTS)) - page.slots)


def make_page(grant_id: str) -> int:
    """A page on which nobody has anything."""
    descriptor = os.memfd_create(f"sluice-grant-{grant_id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, BYTES)
        os.pwrite(descriptor, struct.pack("<Q", LEDGER_MAGIC), 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def clear_slots(descriptor: int, slots: set[int]) -> None:
    """Writes zero into every word of these slots, as nobody writes them any more.

    Word by word and without the workers' lock: one of them may hold it for ever. Who adds the words
    up meanwhile sees one before or after, and too much rather than too little is in use.
    """
    zero = bytes(8)
    for row in range(ROWS):
        for slot in slots:
            with contextlib.suppress(OSError):  # a worker may have handed over what it sealed
                os.pwrite(descriptor, zero, LEDGER_HEADER_BYTES + 8 * (row * LEDGER_SLOTS + slot))


def _is_page(descriptor: int) -> bool:
    try:
        return descriptor >= 0 and os.fstat(descriptor).st_size == BYTES
    except OSError:
        return False
