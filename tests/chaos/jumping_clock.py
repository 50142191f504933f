# SPDX-License-Identifier: Apache-2.0
"""sluice-controller with a wall clock that the test sets: `python -m chaos.jumping_clock …`.

SLUICE_CHAOS_CLOCK names a file of one double, the seconds by which the wall clock is wrong; it is
mapped, so that a jump is seen at once. The monotonic clock is the machine's. Everything else is the
controller's own main.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

VARIABLE = "SLUICE_CHAOS_CLOCK"
_DOUBLE = struct.Struct("d")


def set_clock(path: Path, wrong_by_seconds: float) -> None:
    """Moves the wall clock of every process that has this file."""
    flags = os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags, 0o600)
    try:
        os.pwrite(descriptor, _DOUBLE.pack(wrong_by_seconds), 0)
    finally:
        os.close(descriptor)


def main() -> int:
    """The controller, after its clock was changed."""
    with Path(os.environ[VARIABLE]).open("rb") as file:
        page = mmap.mmap(file.fileno(), _DOUBLE.size, prot=mmap.PROT_READ)
    right = time.time

    def wrong() -> float:
        seconds: float = _DOUBLE.unpack_from(page)[0]
        return right() + seconds

    time.time = wrong  # before anything takes a reference to it
    from sluice.controller.__main__ import main as controller

    return controller()


if __name__ == "__main__":
    sys.exit(main())
