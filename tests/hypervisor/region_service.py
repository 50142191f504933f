# SPDX-License-Identifier: Apache-2.0
"""The server's part that follows libvirt, with somebody who writes down what a server is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.service import HypervisorService
from tests.rigs.kvm.rig import Rig

REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=32)


class FakeRegions:
    """Writes down what a server would be told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.broken = self.deaf = False

    async def add_region(
        self, region_id: str, path: Path, owner: RegionOwner, request: DomainRequest
    ) -> None:
        if self.broken:
            raise RuntimeError("the doorbell does not answer")
        size = await asyncio.to_thread(lambda: path.stat().st_size)
        assert size == request.region_bytes, "the file is whole before it is told of"
        self.calls.append(("add", region_id, owner.name, str(request.compute_percent)))

    async def remove_region(self, region_id: str, reason: str) -> None:
        self.calls.append(("remove", region_id, reason))

    async def domain_paused(self, region_id: str) -> None:
        self.calls.append(("paused", region_id))

    async def domain_resumed(self, region_id: str) -> None:
        self.calls.append(("resumed", region_id))

    async def domain_stopped(self, region_id: str, reason: str) -> None:
        if self.deaf:
            self.deaf = False
            raise RuntimeError("the session manager does not answer")
        self.calls.append(("stopped", region_id, reason))

    async def told(self, *expected: str, within: float = 60) -> tuple[str, ...]:
        """Waits for a call that begins so, and forgets it and all before it."""
        async with asyncio.timeout(within):
            while True:
                for index, call in enumerate(self.calls):
                    if call[: len(expected)] == expected:
                        del self.calls[: index + 1]
                        return call
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def serving(
    rig: Rig, regions: FakeRegions, files: RegionFiles, **how: float
) -> AsyncIterator[HypervisorService]:
    service = HypervisorService(
        regions, uri=rig.uri, files=files, reconnect_seconds=0.1, **{"reconcile_seconds": 60, **how}
    )
    task = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(60):
            await service.connected.wait()
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def do(action: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(action, *arguments)


async def until(condition: Callable[[], bool], within: float = 60) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)
