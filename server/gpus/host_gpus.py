# SPDX-License-Identifier: Apache-2.0
"""This host's GPUs in the pool: found at start, kept warm while fit, their sessions told of faults.

Made by service. It is the Ward of its GpuHealth: a card that fails is reported first, and its
sessions end after that, but for those all of which is in the host's memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from sluice.config.server import ServerConfig
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink
from sluice.server.gpus.acceptance import Acceptance
from sluice.server.gpus.discovery import Driver, LocalGpu, describe_gpus
from sluice.server.gpus.health import CHECKING, Condition, GpuHealth, driver_version
from sluice.server.gpus.nvml_watch import NvmlWatch, nvml_beside
from sluice.server.gpus.records import GpuRecords
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.workers.warm import WarmWorkers
from sluice.server.workers.worker import WorkerError

log = logging.getLogger("sluice.server")

DISCOVERY_RETRY_SECONDS = 10.0


class HostGpus:
    """The GPUs that this server puts into the pool, and their health."""

    def __init__(
        self,
        config: ServerConfig,
        driver: Driver,
        libraries: Sequence[Path],
        workers: WarmWorkers,
        controller: ControllerLink,
        lifecycle: SessionLifecycle,
    ) -> None:
        self._config = config
        self._driver = driver
        self._workers = workers
        self._controller = controller
        self._lifecycle = lifecycle
        self._suspensions = lifecycle.suspensions
        self._suspensions.why_closed = self._why_closed
        self.gpus: list[LocalGpu] = []
        self.health = self._make_health(libraries)

    async def find(self, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Looks for them; where a look fails, `run` has a task look again and again."""
        if self._driver.is_none:
            log.info("this host gives no GPU: [server] driver = none")
            return
        try:
            await self._look()
        except WorkerError as error:
            log.error("no GPU of this host is in the pool: %s", error)
            run(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(DISCOVERY_RETRY_SECONDS)
            try:
                await self._look()
            except WorkerError as error:
                log.debug("still no GPU: %s", error)
            else:
                self._controller.report_inventory()
                return

    async def _look(self) -> None:
        section = self._config.server
        wanted = {uuid.strip() for uuid in section.visible_devices.split(",") if uuid.strip()}
        devices = [d for d in await self._workers.see_devices() if not wanted or d.uuid in wanted]
        self.gpus = describe_gpus(
            devices, self._driver, section.prestart_workers, section.context_overhead_mib
        )
        for gpu in self.gpus:
            log.info("GPU %s: %s, %d MiB", gpu.uuid, gpu.name, gpu.memory_mib)
        self._workers.know({gpu.uuid: f"{gpu.name} {gpu.memory_mib}" for gpu in self.gpus})
        self.health.join(self.gpus)
        for gpu in self.gpus:
            self._keep_warm(gpu.uuid)

    def conditions(self) -> dict[str, Condition]:
        """How each GPU that the host offers is, by UUID."""
        return {gpu.uuid: self.health.condition(gpu.uuid) for gpu in self.gpus}

    async def look_again(self) -> None:
        """Looks anew, after some have come or gone, and reports what there is."""
        await self._look()
        self._controller.report_inventory()

    def _keep_warm(self, uuid: str) -> None:
        (self._workers.wake if self.health.condition(uuid).takes_work else self._workers.rest)(uuid)

    # what becomes of them (Ward)

    def condition_changed(self, uuid: str) -> None:
        """Tells the controller first: nothing may be placed where a session has just ended."""
        now = self.health.condition(uuid)
        told = rpc.GpuCondition(uuid=uuid, fault=now.fault, held=now.held, note=now.note)
        self._controller.report(rpc.NodeReport(gpu_condition=told))
        self._keep_warm(uuid)
        if now.fault:
            cause, _, _ = now.fault.partition(";")  # what to do then is for operators
            why = End(EndCause.GPU_FAILED, f"GPU {uuid} has failed: {cause}")
            for session in self._lifecycle.on_gpu(uuid):
                if self._suspensions.is_off(session.grant_id, uuid):
                    session.log.write(f"{why.text}; nothing of it is there", logging.WARNING)
                else:
                    self._lifecycle.end(session, why)

    def sessions_on(self, uuid: str) -> int:
        """How many sessions have something on a GPU."""
        sessions = self._lifecycle.on_gpu(uuid)
        return sum(not self._suspensions.is_off(each.grant_id, uuid) for each in sessions)

    def _why_closed(self, uuid: str) -> str:
        """Why nothing may come back on a GPU now; "": it may."""
        now = self.health.condition(uuid)
        if now.fault:
            return f"it has failed: {now.fault}"
        return now.held if now.held == CHECKING else ""

    def note_on_sessions(self, uuid: str, text: str) -> None:
        """Tells in the logs of a GPU's sessions what happened on it."""
        for session in self._lifecycle.on_gpu(uuid):
            session.log.write(text, logging.WARNING)

    def _make_health(self, libraries: Sequence[Path]) -> GpuHealth:
        section, driver = self._config.health, self._driver
        library = nvml_beside(driver.path)
        return GpuHealth(
            section,
            GpuRecords(self._config.server.state_dir),
            Acceptance(
                driver.path, section.acceptance_seconds, section.acceptance_memory_mib, libraries
            ),
            self,
            driver_version=driver_version(),
            watch=(lambda health: NvmlWatch(library, health)) if library else None,
        )
