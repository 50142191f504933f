# SPDX-License-Identifier: Apache-2.0
"""The line to sluice-doorbell, the process that watches the guests' regions.

Used by guests.regions, which tells it what to watch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sluice.protocol.control import DOORBELL_SENT
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerStarter
from sluice.server.workers.standing_process import StandingKind, StandingProcess

KIND = StandingKind("doorbell", DOORBELL_SENT, "guests cannot be served")


class Doorbell(StandingProcess):
    """One connection to the host's doorbell process."""

    def __init__(
        self,
        starter: WorkerStarter,
        run_dir: Path,
        log_dir: Path,
        on_message: Callable[[Message], None],
        on_connected: Callable[[], None],
    ) -> None:
        super().__init__(KIND, starter, run_dir, log_dir, on_message, on_connected)
