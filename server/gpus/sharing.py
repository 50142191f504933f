# SPDX-License-Identifier: Apache-2.0
"""How vGPUs of this host's GPUs can be shared, as the controller is told: placement goes by it.

Made by service; told by sessions.turn_pages whether the arbiter is there.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.config.server_gpus import ThrottleSection
from sluice.rpc import pool_pb2 as rpc


class GpuSharing:
    """What is reported with the inventory, and anew when it changes."""

    def __init__(
        self,
        section: ThrottleSection,
        concurrent_problem: str,
        report: Callable[[rpc.NodeReport], None],
    ) -> None:
        """`concurrent_problem`: why sessions cannot run at once here; empty: they can."""
        self._section = section
        self._problem = concurrent_problem
        self._report = report
        self._arbiter_is_there = False

    @property
    def message(self) -> rpc.NodeSharing:
        """As the controller is told."""
        if not self._section.enable_computation_throttle:
            shares = "off"
        else:
            shares = "kept" if self._arbiter_is_there else "away"
        return rpc.NodeSharing(
            preferred=self._section.sharing.said,
            concurrent=not self._problem,
            concurrent_problem=self._problem,
            shares=shares,
        )

    def arbiter(self, is_there: bool) -> None:
        """Whether turns are handed out, as of now."""
        if is_there != self._arbiter_is_there:
            self._arbiter_is_there = is_there
            self._report(rpc.NodeReport(sharing=self.message))
