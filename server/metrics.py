# SPDX-License-Identifier: Apache-2.0
"""The server's /metrics: this host's GPUs, vGPUs, sessions and channels.

Made by server.service. Nothing is measured unless somebody scrapes: then workers and NVML are
asked, together and within a few seconds, and what does not answer is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from sluice.config import peer_lines
from sluice.config.metric_families import Family, FamilyCollector, Samples, exposition
from sluice.config.version import own_version
from sluice.server.controller.link import ControllerLink
from sluice.server.gpus import figures as gpu_figures
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.gpus.figures import GpuReader, Reading
from sluice.server.gpus.health import GpuHealth
from sluice.server.rdma import figures as rdma_figures
from sluice.server.rdma.figures import RdmaFigures
from sluice.server.sessions import memory_figures, swap_figures
from sluice.server.sessions.figures import SessionFigures
from sluice.server.sessions.memory_figures import MemoryFigures
from sluice.server.sessions.swap_memory import SwapMemory
from sluice.server.workers.warm import WarmWorkers

MIB = 1 << 20

FAMILIES = (
    Family(
        "sluice_gpu_info",
        "gauge",
        "Always 1; what the GPU is.",
        ("gpu", "node", "model", "architecture", "software", "nvlink_group"),
    ),
    Family(
        "sluice_gpu_healthy",
        "gauge",
        "1 if the server offers the GPU, 0 while it is at fault or its checks run.",
        ("gpu",),
    ),
    Family("sluice_gpu_memory_bytes", "gauge", "Memory of the GPU.", ("gpu",)),
    Family(
        "sluice_gpu_xid_errors_total",
        "counter",
        "XID errors that its driver reported since this server started, by number.",
        ("gpu", "xid"),
    ),
    Family(
        "sluice_server_warm_workers", "gauge", "Workers that wait ready for a client.", ("gpu",)
    ),
    Family(
        "sluice_server_controller_connected",
        "gauge",
        "1 if the controller has welcomed this server, 0 while it cannot be reached.",
    ),
    Family("sluice_server_nvml_silent", "gauge", "1 while NVML does not answer what it was asked."),
    peer_lines.FAMILY,
)


class ServerMetrics:
    """Reads the server's parts."""

    def __init__(
        self,
        node: str,
        *,
        gpus: Callable[[], Sequence[LocalGpu]],
        reader: GpuReader,
        sessions: SessionFigures,
        workers: WarmWorkers,
        controller: ControllerLink,
        health: GpuHealth,
        rdma: RdmaFigures,
        memory: MemoryFigures | None = None,
        swap: SwapMemory | None = None,
    ) -> None:
        self._node = node
        self._gpus = gpus
        self._reader = reader
        self._sessions = sessions
        self._workers = workers
        self._controller = controller
        self._health = health
        self._readings: dict[str, list[Reading]] = {}
        self.registry = CollectorRegistry()
        Gauge(
            "sluice_build_info",
            "Always 1; which release of Sluice runs here.",
            ["component", "version"],
            registry=self.registry,
        ).labels("server", own_version()).set(1)
        ProcessCollector(registry=self.registry)
        self.registry.register(FamilyCollector(FAMILIES, self._fill))
        self.registry.register(FamilyCollector(rdma_figures.FAMILIES, rdma.fill))
        if memory:
            self.registry.register(FamilyCollector(memory_figures.FAMILIES, memory.fill))
        if swap:
            fill = partial(swap_figures.fill, swap)
            self.registry.register(FamilyCollector(swap_figures.FAMILIES, fill))
        self.registry.register(FamilyCollector(gpu_figures.FAMILIES, self._fill_readings))
        self.registry.register(sessions.registry)

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Asks whoever knows; returns the body and its content type."""
        _, self._readings = await asyncio.gather(
            self._sessions.refresh(), self._reader.read(self._here())
        )
        return exposition(self.registry, accept)

    def _here(self) -> Collection[str]:
        """GPUs that may be asked: one that a VM has must not be held open."""
        return [gpu.uuid for gpu in self._gpus() if not self._workers.has_let_go(gpu.uuid)]

    def _fill(self, samples: Samples) -> None:
        for gpu in self._gpus():
            samples.add(
                "sluice_gpu_info",
                1,
                gpu.uuid,
                self._node,
                gpu.name,
                gpu.architecture,
                "true" if gpu.software else "false",
                gpu.nvlink_group,
            )
            offered = self._health.condition(gpu.uuid).takes_work
            samples.add("sluice_gpu_healthy", 1 if offered else 0, gpu.uuid)
            samples.add("sluice_gpu_memory_bytes", gpu.memory_mib * MIB, gpu.uuid)
            samples.add("sluice_server_warm_workers", self._workers.ready(gpu.uuid), gpu.uuid)
        for (uuid, number), count in self._health.xid_counts.items():
            samples.add("sluice_gpu_xid_errors_total", count, uuid, str(number))
        connected = 1 if self._controller.is_connected else 0
        samples.add("sluice_server_controller_connected", connected)
        samples.add("sluice_server_nvml_silent", 1 if self._reader.silent else 0)
        peer_lines.SERVER.fill(samples)

    def _fill_readings(self, samples: Samples) -> None:
        for uuid, readings in self._readings.items():
            for family, value, labels in readings:
                samples.add(family, value, uuid, *labels)
