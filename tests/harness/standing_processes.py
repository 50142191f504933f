# SPDX-License-Identifier: Apache-2.0
"""Finds and ends what of a run folder outlives servers: doorbell, arbiter.

Used by the control planes of tests, the demo and the benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

NAMES = ("doorbell", "arbiter")


def standing_processes(run_folder: Path, *names: str) -> list[int]:
    """The processes of these names (none: all) that were started for that folder's sockets."""
    wanted = {
        os.fsencode(run_folder / f"{name}.sock"): f"sluice-{name}".encode()
        for name in names or NAMES
    }
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word in wanted and words[0].endswith(wanted[word]) for word in words):
            found.append(int(path.parent.name))
    return found


def end_standing_processes(run_folder: Path) -> None:
    """Kills them."""
    for pid in standing_processes(run_folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
