# SPDX-License-Identifier: Apache-2.0
"""What NVML says of the physical GPUs at this moment, for /metrics.

Used by server.metrics, and by gpus.process_use for what it asks. NVML's calls block, and one about
a dying card may block for ever, so each round's are made in a thread of their own, which is left
behind if it does not come back; until it does, nothing is asked. A question that NVML does not
answer leaves its series out, and so does a GPU that is not this host's for now: one that a VM has
must not be held open. Nothing is asked of the software GPU: it has no sensors.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Generic, TypeVar

from sluice.config.metric_families import Family
from sluice.server.gpus.discovery import Driver
from sluice.server.gpus.nvml_watch import NVML_OPEN, nvml_beside

log = logging.getLogger("sluice.server")

ANSWER_SECONDS = 3.0
MIB = 1 << 20
T = TypeVar("T")
Reading = tuple[str, float, tuple[str, ...]]  # a family, its value, its labels after the GPU's

FAMILIES = (
    Family(
        "sluice_gpu_utilization_ratio",
        "gauge",
        "The share of the last sample period in which a kernel ran.",
        ("gpu",),
    ),
    Family(
        "sluice_gpu_memory_utilization_ratio",
        "gauge",
        "The share of the last sample period in which the GPU's memory was read or written.",
        ("gpu",),
    ),
    Family("sluice_gpu_memory_used_bytes", "gauge", "Memory in use, by anybody.", ("gpu",)),
    Family("sluice_gpu_memory_free_bytes", "gauge", "Memory that is free.", ("gpu",)),
    Family(
        "sluice_gpu_memory_reserved_bytes", "gauge", "Memory that the driver keeps.", ("gpu",)
    ),
    Family("sluice_gpu_temperature_celsius", "gauge", "Temperature of the GPU.", ("gpu",)),
    Family(
        "sluice_gpu_memory_temperature_celsius", "gauge", "Temperature of its memory.", ("gpu",)
    ),
    Family("sluice_gpu_power_watts", "gauge", "Power that it draws.", ("gpu",)),
    Family("sluice_gpu_power_limit_watts", "gauge", "Power that it may draw.", ("gpu",)),
    Family(
        "sluice_gpu_energy_joules_total",
        "counter",
        "Energy that it took since its driver was loaded.",
        ("gpu",),
    ),
    Family("sluice_gpu_clock_hertz", "gauge", "Clocks: sm, memory.", ("gpu", "clock")),
    Family(
        "sluice_gpu_ecc_errors_total",
        "counter",
        "ECC errors, corrected and uncorrected: volatile since its driver was loaded, aggregate "
        "over its life.",
        ("gpu", "type", "counter"),
    ),
    Family(
        "sluice_gpu_remapped_rows",
        "gauge",
        "Rows of its memory that were replaced, by the kind of error.",
        ("gpu", "cause"),
    ),
    Family(
        "sluice_gpu_row_remap_failed",
        "gauge",
        "1 if a row could not be replaced: the card is worn out.",
        ("gpu",),
    ),
    Family("sluice_gpu_pcie_replays_total", "counter", "PCIe packets sent again.", ("gpu",)),
)  # fmt: skip


class NvmlReader(Generic[T]):
    """Asks NVML one thing of each GPU, if there is one beside the driver."""

    def __init__(self, driver: Driver, ask: Callable[[Any, Any, str], T]) -> None:
        """`ask` is given NVML, a GPU's handle and its UUID, in another thread."""
        self._ask_one = ask
        self._library = nvml_beside(driver.path)
        self._places: dict[str, str] = {}  # PCI bus ids by UUID
        self._asking = False

    @property
    def silent(self) -> bool:
        """Whether NVML has yet to answer the last question."""
        return self._asking

    async def read(self, uuids: Collection[str]) -> dict[str, T]:
        """What these GPUs say, as far as they do, within a few seconds."""
        if self._library is None or self._asking or not uuids:
            return {}
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, T]] = loop.create_future()
        self._asking = True

        def give(found: dict[str, T]) -> None:
            self._asking = False
            if not answer.done():
                answer.set_result(found)

        def ask() -> None:
            found: dict[str, T] = {}
            try:
                found = self._ask(set(uuids))
            except Exception as error:
                log.info("NVML does not tell about the GPUs: %s", error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(give, found)

        threading.Thread(target=ask, name="nvml-figures", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, ANSWER_SECONDS)
        except TimeoutError:
            log.warning("NVML has not answered for %g s; its figures are left out", ANSWER_SECONDS)
            return {}

    # in the thread

    def _ask(self, uuids: set[str]) -> dict[str, T]:
        ctypes.CDLL(str(self._library))  # by path, before NVML's Python asks by name
        import pynvml

        with NVML_OPEN:
            pynvml.nvmlInit()
            try:
                if uuids - self._places.keys():
                    self._find_places(pynvml)
                found = {}
                for uuid in uuids & self._places.keys():
                    handle = _told(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId, self._places[uuid])
                    if handle is not None:
                        found[uuid] = self._ask_one(pynvml, handle, uuid)
                return found
            finally:
                pynvml.nvmlShutdown()

    def _find_places(self, nvml: Any) -> None:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = _told(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
            uuid = _told(nvml, nvml.nvmlDeviceGetUUID, handle) if handle is not None else None
            pci = _told(nvml, nvml.nvmlDeviceGetPciInfo, handle) if uuid else None
            if pci is not None:
                place = pci.busId
                self._places[str(uuid)] = place.decode() if isinstance(place, bytes) else str(place)


class GpuReader(NvmlReader[list[Reading]]):
    """Asks for everything that /metrics shows."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, lambda nvml, gpu, _: list(readings(nvml, gpu)))


def readings(nvml: Any, gpu: Any) -> Iterator[Reading]:
    """Everything that one GPU tells."""
    for ask in (_load, _memory, _temperatures, _power, _clocks, _ecc, _rows, _pcie):
        yield from ask(nvml, gpu)


def _load(nvml: Any, gpu: Any) -> Iterable[Reading]:
    if rates := _told(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu):
        yield "sluice_gpu_utilization_ratio", rates.gpu / 100, ()
        yield "sluice_gpu_memory_utilization_ratio", rates.memory / 100, ()


def _memory(nvml: Any, gpu: Any) -> Iterable[Reading]:
    memory = _told(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2))
    if memory:
        yield "sluice_gpu_memory_used_bytes", memory.used, ()
        yield "sluice_gpu_memory_free_bytes", memory.free, ()
        yield "sluice_gpu_memory_reserved_bytes", memory.reserved, ()


def _temperatures(nvml: Any, gpu: Any) -> Iterable[Reading]:
    core = _told(nvml, nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
    if core is not None:
        yield "sluice_gpu_temperature_celsius", core, ()
    fields = _told(nvml, nvml.nvmlDeviceGetFieldValues, gpu, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    if fields and fields[0].nvmlReturn == nvml.NVML_SUCCESS and fields[0].value.uiVal:
        yield "sluice_gpu_memory_temperature_celsius", fields[0].value.uiVal, ()


def _power(nvml: Any, gpu: Any) -> Iterable[Reading]:
    for name, ask, scale in (
        ("sluice_gpu_power_watts", nvml.nvmlDeviceGetPowerUsage, 1e3),
        ("sluice_gpu_power_limit_watts", nvml.nvmlDeviceGetEnforcedPowerLimit, 1e3),
        ("sluice_gpu_energy_joules_total", nvml.nvmlDeviceGetTotalEnergyConsumption, 1e3),
    ):
        value = _told(nvml, ask, gpu)
        if value is not None:
            yield name, value / scale, ()


def _clocks(nvml: Any, gpu: Any) -> Iterable[Reading]:
    for clock, kind in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
        megahertz = _told(nvml, nvml.nvmlDeviceGetClockInfo, gpu, kind)
        if megahertz is not None:
            yield "sluice_gpu_clock_hertz", megahertz * 1e6, (clock,)


def _ecc(nvml: Any, gpu: Any) -> Iterable[Reading]:
    for kind, error in (
        ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    ):
        for counter, which in (
            ("volatile", nvml.NVML_VOLATILE_ECC),
            ("aggregate", nvml.NVML_AGGREGATE_ECC),
        ):
            count = _told(nvml, nvml.nvmlDeviceGetTotalEccErrors, gpu, error, which)
            if count is not None:
                yield "sluice_gpu_ecc_errors_total", count, (kind, counter)


def _rows(nvml: Any, gpu: Any) -> Iterable[Reading]:
    if rows := _told(nvml, nvml.nvmlDeviceGetRemappedRows, gpu):
        corrected, uncorrected, _pending, failed = rows
        yield "sluice_gpu_remapped_rows", corrected, ("corrected",)
        yield "sluice_gpu_remapped_rows", uncorrected, ("uncorrected",)
        yield "sluice_gpu_row_remap_failed", 1 if failed else 0, ()


def _pcie(nvml: Any, gpu: Any) -> Iterable[Reading]:
    replays = _told(nvml, nvml.nvmlDeviceGetPcieReplayCounter, gpu)
    if replays is not None:
        yield "sluice_gpu_pcie_replays_total", replays, ()


def _told(nvml: Any, ask: Callable[..., Any], *what: Any) -> Any:
    """The answer, or None where there is none."""
    try:
        return ask(*what)
    except (nvml.NVMLError, AttributeError):
        return None
