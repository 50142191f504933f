# SPDX-License-Identifier: Apache-2.0
"""FakeControllerLink: grants everything at once and remembers what was asked and reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, GrantedVgpu, LocalGrant


class FakeControllerLink(ControllerLink):
    """Stands in for a controller where a test is about the server alone."""

    def __init__(self, gpu: str = "GPU-fake-0") -> None:
        self.asked: list[rpc.GrantRequest] = []
        self.reports: list[rpc.NodeReport] = []
        self._gpu = gpu

    def report(self, report: rpc.NodeReport) -> None:
        self.reports.append(report)

    @asynccontextmanager
    async def grant(
        self, request: rpc.GrantRequest, tell: Callable[[str], None]
    ) -> AsyncIterator[LocalGrant]:
        self.asked.append(request)
        number = len(self.asked)
        tell("sluice: waiting")
        vgpus = (GrantedVgpu(self._gpu, request.memory_mib, request.compute_percent),)
        yield LocalGrant(f"{number:016x}", f"{number + 100:016x}", "r", vgpus)
