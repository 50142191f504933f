# SPDX-License-Identifier: Apache-2.0
"""What operators ask of nodes and GPUs: taken out of the pool, given back, drained.

Part of pool.Pool, called by controller.api through the grant service, and by it for what servers
say has become of a handover. A step that cannot be done raises Impossible or Unknown and has
changed nothing.
"""

from __future__ import annotations

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.gpus.modes import GpuModes
from sluice.controller.pool.model import GpuKey, GpuMode
from sluice.controller.pool.queue.progress import Progress


class GpuOperations:
    """Steps that change which pool a GPU is in."""

    def __init__(self, modes: GpuModes, progress: Progress) -> None:
        self._modes = modes
        self._progress = progress

    def switch_gpu(self, key: GpuKey, to: GpuMode, *, preempt: bool = False) -> Decisions:
        """Takes a GPU out of the pool, or back; raises Impossible, Unknown."""
        decisions = Decisions()
        self._modes.switch(key, to, preempt=preempt, decisions=decisions)
        return self._progress.after(decisions)

    def cancel_switch(self, key: GpuKey) -> Decisions:
        """Leaves it in the pool after all; raises Impossible, Unknown."""
        decisions = Decisions()
        self._modes.cancel(key, decisions)
        return self._progress.after(decisions)

    def handed_over(self, key: GpuKey, error: str = "", generation: int | None = None) -> Decisions:
        """What was ordered by a Handover is done, or cannot be."""
        self._modes.handed_over(key, error, generation)
        return self._progress.after(Decisions())

    def drain_node(self, name: str, *, drained: bool) -> Decisions:
        """A node takes nothing new, or takes it again; raises Unknown."""
        self._modes.drain_node(name, drained=drained)
        return self._progress.after(Decisions())
