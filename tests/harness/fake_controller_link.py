# SPDX-License-Identifier: Apache-2.0
"""FakeControllerLink: grants everything at once and remembers what was asked and reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, GrantedVgpu, LocalGrant


class FakeControllerLink(ControllerLink):
    """Stands in for a controller where a test is about the server alone."""

    #: What who asks is told before the grant; "" is nothing.
    wait_line = "sluice: waiting"

    def __init__(self, gpu: str = "GPU-fake-0") -> None:
        self.asked: list[rpc.GrantRequest] = []
        self.reports: list[rpc.NodeReport] = []
        self.gpu = gpu
        #: What who only looks is shown, and what was asked for that.
        self.viewed = rpc.ViewAnswer()
        self.looks: list[rpc.ViewRequest] = []

    async def view(self, request: rpc.ViewRequest) -> rpc.ViewAnswer:
        self.looks.append(request)
        return self.viewed

    @property
    def is_connected(self) -> bool:
        return True

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass

    def report(self, report: rpc.NodeReport) -> None:
        self.reports.append(report)

    def report_inventory(self) -> None:
        pass

    def granted(self, request: rpc.GrantRequest) -> LocalGrant:
        """The answer to a request, which is the last of `asked`."""
        number = len(self.asked)
        vgpus = (GrantedVgpu(self.gpu, request.memory_mib, request.compute_percent),)
        return LocalGrant(f"{number:016x}", f"{number + 100:016x}", "r", vgpus)

    @asynccontextmanager
    async def grant(
        self, request: rpc.GrantRequest, tell: Callable[[str], None]
    ) -> AsyncIterator[LocalGrant]:
        self.asked.append(request)
        if self.wait_line:
            tell(self.wait_line)
        yield self.granted(request)
