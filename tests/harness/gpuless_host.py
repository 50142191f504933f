# SPDX-License-Identifier: Apache-2.0
"""The sessions of a host without a GPU that has joined a plane's pool: all of them are relayed.

Used by tests of guests there, which add what serves guests; the rest is a server's own parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from control_plane import ControlPlane

from sluice.config.server import ServerConfig
from sluice.resources.ends import End
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink
from sluice.server.gpus.discovery import Driver
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.workers.process import WorkerFiles, WorkerStarter
from sluice.server.workers.warm import WarmWorkers


class NoGpus:
    """The side of a server that has guests and no GPU, as the controller sees it."""

    def inventory(self) -> rpc.Inventory:
        """A node with nothing to give."""
        return rpc.Inventory(node="node-b", data_address="127.0.0.1", data_port=1, vgpu_count=4)

    def report_holdings(self) -> None:
        """No VM here has a whole GPU."""

    def end_grant(self, grant_id: str, why: End) -> None:
        """Nothing of one is here."""


@dataclass
class GpulessHost:
    """What serves sessions there, as node-b."""

    lifecycle: SessionLifecycle
    starter: WorkerStarter
    run: Path
    log: Path


@asynccontextmanager
async def gpuless_host(plane: ControlPlane, folder: Path) -> AsyncIterator[GpulessHost]:
    """It has joined the pool; what runs in `folder` then goes on."""
    run, log = folder / "run", folder / "log"
    starter = WorkerStarter(ServerConfig(), WorkerFiles(run))
    workers = WarmWorkers(starter, Driver("", software=False), log, per_gpu=0, start_seconds=10)
    link = ControllerLink([f"127.0.0.1:{plane.grpc_port}"], NoGpus(), 5)  # type: ignore[arg-type]
    lifecycle = SessionLifecycle("node-b", link, workers, starter, log)
    lifecycle.relay_by(run, None)
    linked = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(20):
            while not link.is_connected:
                await asyncio.sleep(0.01)
        yield GpulessHost(lifecycle, starter, run, log)
    finally:
        linked.cancel()
        await link.close()
