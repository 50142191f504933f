# SPDX-License-Identifier: Apache-2.0
"""Ends the doorbell of a run folder: it outlives servers on purpose, and tests have none to come.

Used by tests that run a server with guests.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def end_doorbell(run_folder: Path) -> None:
    """Kills the process that was started for that folder's control socket."""
    control = str(run_folder / "doorbell.sock").encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if control in words and b"sluice-doorbell" in words[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.parent.name), signal.SIGKILL)
