# SPDX-License-Identifier: Apache-2.0
"""Finds and ends the doorbell of a run folder: it outlives servers, and tests have none to come.

Used by the control planes of tests, the demo and the benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def doorbells_of(run_folder: Path) -> list[int]:
    """The processes that were started for that folder's control socket."""
    control = os.fsencode(run_folder / "doorbell.sock")
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if control in words and words[0].endswith(b"sluice-doorbell"):
            found.append(int(path.parent.name))
    return found


def end_doorbell(run_folder: Path) -> None:
    """Kills them."""
    for pid in doorbells_of(run_folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
