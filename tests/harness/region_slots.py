# SPDX-License-Identifier: Apache-2.0
"""The slots of a guest's region as its file on the host has them (native/channel/slot.h)."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

FREE = 0
_STATE = 128  # of a slot's header


def slot_states(region: Path, slots: int) -> list[int]:
    """The state word of each slot."""
    size = region.stat().st_size
    slot_bytes = (size - mmap.PAGESIZE) // slots // mmap.PAGESIZE * mmap.PAGESIZE
    with region.open("rb") as file:
        states = []
        for slot in range(slots):
            file.seek(mmap.PAGESIZE + slot * slot_bytes + _STATE)
            states.append(struct.unpack("<I", file.read(4))[0])
        return states
