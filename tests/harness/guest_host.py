# SPDX-License-Identifier: Apache-2.0
"""What serves guests on a host, in this process: regions with the real doorbell, real workers.

Used by tests without a VM, whose programs run on this host and map a region's file as a guest maps
its PCI BAR. `async with guest_host(folder) as host:` owns the doorbell; the controller is a fake
that grants everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fake_controller_link import FakeControllerLink

from sluice.config.native_files import SOFTGPU, find_native
from sluice.config.server import ServerConfig
from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.request import DomainRequest
from sluice.server.gpus.discovery import Driver, describe_gpus
from sluice.server.guests.doorbell import Doorbell
from sluice.server.guests.regions import Regions
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.views import GpusHere
from sluice.server.workers.process import WorkerFiles, WorkerStarter
from sluice.server.workers.warm import WarmWorkers


@dataclass
class GuestHost:
    """The parts of a server that guests come to."""

    folder: Path
    regions: Regions
    lifecycle: SessionLifecycle
    controller: FakeControllerLink
    doorbell: Doorbell

    @asynccontextmanager
    async def region(self, owner: RegionOwner, request: DomainRequest) -> AsyncIterator[Path]:
        """The region of a guest, for as long as the guest lives."""
        path = Path("/dev/shm") / f"sluice-test-{os.getpid()}"
        with path.open("wb") as file:
            file.truncate(request.region_bytes)
        try:
            await self.regions.add_region(owner.uuid, path, owner, request)
            yield path
            await self.regions.remove_region(owner.uuid, "the test is over")
        finally:
            path.unlink()

    async def quiet(self) -> None:
        """Waits until no session is left."""
        async with asyncio.timeout(60):
            for session in list(self.lifecycle.sessions.values()):
                await session.gone.wait()
        assert self.lifecycle.sessions == {}


@asynccontextmanager
async def guest_host(folder: Path) -> AsyncIterator[GuestHost]:
    """A host whose guests are served."""
    starter = WorkerStarter(ServerConfig(), WorkerFiles(folder / "run"))
    log = folder / "log"
    driver = Driver(str(find_native(SOFTGPU)), software=True)
    workers = WarmWorkers(starter, driver, log, per_gpu=0, start_seconds=10)
    [gpu] = await workers.see_devices()
    controller = FakeControllerLink(gpu.uuid)
    lifecycle = SessionLifecycle("node-a", controller, workers, starter, log)
    here = {each.uuid: each for each in describe_gpus([gpu], driver, 0, None)}

    async def no_figures(uuid: str) -> dict[int, int]:
        del uuid
        return {}

    lifecycle.show(GpusHere(lambda: here, no_figures))
    regions = Regions(lifecycle, silent_seconds=300)
    doorbell = Doorbell(
        starter, folder / "run", log, regions.doorbell_said, regions.doorbell_connected
    )
    regions.use_doorbell(doorbell)
    running = asyncio.create_task(doorbell.run())
    async with asyncio.timeout(60):
        while not doorbell.is_connected:
            await asyncio.sleep(0.01)
    try:
        yield GuestHost(folder, regions, lifecycle, controller, doorbell)
    finally:
        running.cancel()
        doorbell.close()
        os.kill(doorbell.pid, signal.SIGKILL)
