# SPDX-License-Identifier: Apache-2.0
"""What follows every step that may have freed something: the queue is served, draining GPUs go on.

Called at the end of the pool's steps, by whichever part takes the step.
"""

from __future__ import annotations

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.gpus.modes import GpuModes
from sluice.controller.pool.queue.scheduling import Scheduler


class Progress:
    """The end of a step."""

    def __init__(self, scheduler: Scheduler, modes: GpuModes) -> None:
        self._scheduler = scheduler
        self._modes = modes

    def after(self, decisions: Decisions) -> Decisions:
        """Adds to what a step has decided what can be done since."""
        self._scheduler.serve(decisions)
        self._modes.advance(decisions)
        return decisions
