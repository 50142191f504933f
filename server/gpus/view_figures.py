# SPDX-License-Identifier: Apache-2.0
"""What NVML says of the GPUs, by the numbers by which clients ask for it (gpu_figures.yaml).

Used by sessions.views for who looks without a session; who has one asks his worker, whose
native/worker/node_nvml.cc reads the same. NVML is asked at most twice a second, however many look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sluice.server.gpus.discovery import Driver
from sluice.server.gpus.figures import NvmlReader

FRESH_SECONDS = 0.5
#: Figures by their first number, and what of NVML answers them. A test holds the numbers against
#: gpu_figures.yaml.
ONE: dict[int, str] = {
    11: "nvmlDeviceGetPowerUsage",
    12: "nvmlDeviceGetEnforcedPowerLimit",
    13: "nvmlDeviceGetPowerManagementLimit",
    14: "nvmlDeviceGetPowerManagementDefaultLimit",
    17: "nvmlDeviceGetPowerManagementMode",
    18: "nvmlDeviceGetTotalEnergyConsumption",
    35: "nvmlDeviceGetCurrentClocksThrottleReasons",
    36: "nvmlDeviceGetSupportedClocksThrottleReasons",
    37: "nvmlDeviceGetPerformanceState",
    38: "nvmlDeviceGetFanSpeed",
    39: "nvmlDeviceGetNumFans",
    40: "nvmlDeviceGetCurrPcieLinkGeneration",
    41: "nvmlDeviceGetMaxPcieLinkGeneration",
    42: "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    43: "nvmlDeviceGetCurrPcieLinkWidth",
    44: "nvmlDeviceGetMaxPcieLinkWidth",
    45: "nvmlDeviceGetPcieReplayCounter",
    46: "nvmlDeviceGetPersistenceMode",
}
TWO: dict[int, str] = {
    2: "nvmlDeviceGetEncoderUtilization",
    4: "nvmlDeviceGetDecoderUtilization",
    15: "nvmlDeviceGetPowerManagementLimitConstraints",
}
FOUR: dict[int, str] = {
    7: "nvmlDeviceGetTemperatureThreshold",
    19: "nvmlDeviceGetClockInfo",
    23: "nvmlDeviceGetMaxClockInfo",
    27: "nvmlDeviceGetApplicationsClock",
    31: "nvmlDeviceGetDefaultApplicationsClock",
}
GPU_UTILIZATION, MEMORY_UTILIZATION, TEMPERATURE = 0, 1, 6
MOST = (1 << 64) - 1


class ViewFigures:
    """NVML beside a driver, if there is one."""

    def __init__(self, driver: Driver, gpus: Callable[[], Collection[str]]) -> None:
        """`gpus`: the UUIDs of those that are this host's to ask about."""
        self._reader: NvmlReader[dict[int, int]] = NvmlReader(
            driver, lambda nvml, gpu, _: dict(figures_of(nvml, gpu))
        )
        self._gpus = gpus
        self._known: dict[str, dict[int, int]] = {}
        self._until = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def of(self, uuid: str) -> dict[int, int]:
        """What is known of one GPU, at most half a second old; {} where nothing is."""
        if time.monotonic() >= self._until:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        return self._known.get(uuid, {})

    async def _ask(self) -> None:
        self._known = await self._reader.read(self._gpus())
        self._until = time.monotonic() + FRESH_SECONDS


def figures_of(nvml: Any, gpu: Any) -> Iterator[tuple[int, int]]:
    """Everything that one GPU tells; what it does not is left out."""
    if rates := _told(nvml, "nvmlDeviceGetUtilizationRates", gpu):
        yield GPU_UTILIZATION, int(rates.gpu)
        yield MEMORY_UTILIZATION, int(rates.memory)
    degrees = _told(nvml, "nvmlDeviceGetTemperature", gpu, nvml.NVML_TEMPERATURE_GPU)
    if degrees is not None:
        yield TEMPERATURE, int(degrees)
    for number, name in ONE.items():
        value = _told(nvml, name, gpu)
        if value is not None and 0 <= value <= MOST:
            yield number, int(value)
    for number, name in TWO.items():
        pair = _told(nvml, name, gpu)
        if pair is not None:
            yield from enumerate(map(int, pair), number)
    for number, name in FOUR.items():
        for kind in range(4):
            value = _told(nvml, name, gpu, kind)
            if value is not None:
                yield number + kind, int(value)


def _told(nvml: Any, name: str, *what: Any) -> Any:
    """The answer, or None where there is none."""
    try:
        return getattr(nvml, name)(*what)
    except (nvml.NVMLError, AttributeError):
        return None
