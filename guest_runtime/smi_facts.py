# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi knows of one GPU: values by the names of its --query-gpu.

Used by smi.py and what it prints with. A value is a text without its unit, or None where nobody
knows it: nothing is made up. All of a GPU is read in one go, so that what is printed fits together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .smi_nvml import Device, Nvml, Process

TRIES = 3
MIB = 1 << 20
#: nvmlClocksEventReasons, by the ends of their names.
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
#: nvmlBrandType_t, as far as NVIDIA's own program has words for it.
BRANDS = {1: "Quadro", 2: "Tesla", 3: "NVS", 5: "GeForce", 6: "Titan", 14: "NVIDIA"}
BRANDS.update({11: "NVIDIA RTX", 15: "GeForce RTX", 16: "Titan RTX", 13: "Quadro RTX"})
ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere"}
ARCHITECTURES.update({8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell"})
CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}


class System(NamedTuple):
    """What is the same of all GPUs that are seen."""

    driver_version: str | None
    cuda_version: str | None
    nvml_version: str | None
    gpus: int


class Gpu(NamedTuple):
    """One GPU."""

    number: int  # by which it is named: NVML's index
    values: dict[str, str | None]
    processes: list[Process]

    def value(self, name: str) -> str | None:
        """A value without its unit; None: nobody knows."""
        return self.values.get(name)


def read_system(nvml: Nvml) -> System:
    """Raises NvmlError where nothing can be shown."""
    return System(nvml.driver_version(), nvml.cuda_version(), nvml.nvml_version(), nvml.count())


def read_gpu(nvml: Nvml, index: int) -> Gpu:
    """Everything of one GPU; raises NvmlError where there is none with this index any more."""
    for _ in range(TRIES):
        device = nvml.device(index)
        uuid = device.uuid()
        gpu = Gpu(index, _values(device, index, uuid), device.processes())
        if device.uuid() == uuid:  # else another has its place since
            return gpu
    return gpu


def _values(device: Device, index: int, uuid: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {"index": str(index), "uuid": uuid}
    for part in (_names, _pci, _memory, _use, _power, _clocks, _modes):
        values.update(part(device))
    return values


def _names(device: Device) -> Iterator[tuple[str, str | None]]:
    yield "name", device.text("Name")
    yield "product_brand", _word(device.number("Brand"), lambda n: BRANDS.get(n))
    yield "architecture", _word(device.number("Architecture"), lambda n: ARCHITECTURES.get(n))
    yield "serial", device.text("Serial")
    yield "vbios_version", device.text("VbiosVersion")
    yield "minor_number", _said(device.number("MinorNumber"))
    major, minor = device.two("CudaComputeCapability")
    yield "compute_cap", None if major is None else f"{major}.{minor}"


def _pci(device: Device) -> Iterator[tuple[str, str | None]]:
    pci = device.pci()
    if pci is not None:
        yield "pci.bus_id", pci.bus_id.decode("ascii", "replace")
        yield "pci.domain", f"0x{pci.domain:04X}"
        yield "pci.bus", f"0x{pci.bus:02X}"
        yield "pci.device", f"0x{pci.device:02X}"
        if pci.id:  # else only its node knows
            yield "pci.device_id", f"0x{pci.id:08X}"
            yield "pci.sub_device_id", f"0x{pci.sub_id:08X}"
    for name, question in (
        ("gen.current", "CurrPcieLinkGeneration"),
        ("gen.gpucurrent", "CurrPcieLinkGeneration"),
        ("gen.max", "MaxPcieLinkGeneration"),
        ("gen.gpumax", "GpuMaxPcieLinkGeneration"),
        ("width.current", "CurrPcieLinkWidth"),
        ("width.max", "MaxPcieLinkWidth"),
    ):
        yield f"pcie.link.{name}", _said(device.number(question))
    yield "pcie.replays", _said(device.number("PcieReplayCounter"))


def _memory(device: Device) -> Iterator[tuple[str, str | None]]:
    memory = device.memory()
    if memory is None:
        return
    for name in ("total", "reserved", "used", "free"):
        yield f"memory.{name}", str(getattr(memory, name) // MIB)


def _use(device: Device) -> Iterator[tuple[str, str | None]]:
    gpu, memory = device.utilization()
    yield "utilization.gpu", _said(gpu)
    yield "utilization.memory", _said(memory)
    yield "utilization.encoder", _said(device.two("EncoderUtilization")[0])
    yield "utilization.decoder", _said(device.two("DecoderUtilization")[0])
    yield "temperature.gpu", _said(device.number("Temperature", 0))
    for name, which in (("shutdown", 0), ("slowdown", 1), ("memory_max", 2), ("gpu_max", 3)):
        yield f"temperature.{name}", _said(device.number("TemperatureThreshold", which))
    yield "fan.speed", _said(device.number("FanSpeed"))
    yield "pstate", _word(device.number("PerformanceState"), lambda n: f"P{n}" if n < 32 else None)


def _power(device: Device) -> Iterator[tuple[str, str | None]]:
    def watts(milliwatts: int | None) -> str | None:
        return None if milliwatts is None else f"{milliwatts / 1000:.2f}"

    yield "power.draw", watts(device.number("PowerUsage"))
    yield "power.limit", watts(device.number("PowerManagementLimit"))
    yield "enforced.power.limit", watts(device.number("EnforcedPowerLimit"))
    yield "power.default_limit", watts(device.number("PowerManagementDefaultLimit"))
    least, most = device.two("PowerManagementLimitConstraints")
    yield "power.min_limit", watts(least)
    yield "power.max_limit", watts(most)
    yield "power.management", _enabled(device.number("PowerManagementMode"))


def _clocks(device: Device) -> Iterator[tuple[str, str | None]]:
    for name, which in CLOCKS.items():
        yield f"clocks.current.{name}", _said(device.number("ClockInfo", which))
        yield f"clocks.max.{name}", _said(device.number("MaxClockInfo", which))
    for name in ("graphics", "memory"):
        which = CLOCKS[name]
        yield f"clocks.applications.{name}", _said(device.number("ApplicationsClock", which))
        default = device.number("DefaultApplicationsClock", which)
        yield f"clocks.default_applications.{name}", _said(default)
    wide = ctypes.c_ulonglong
    known = device.number("SupportedClocksEventReasons", kind=wide)
    active = device.number("CurrentClocksEventReasons", kind=wide)
    yield "clocks_event_reasons.supported", None if known is None else f"0x{known:016X}"
    yield "clocks_event_reasons.active", None if active is None else f"0x{active:016X}"
    for name, bit in REASONS.items():
        said = None if active is None else "Active" if active & bit else "Not Active"
        yield f"clocks_event_reasons.{name}", said


def _modes(device: Device) -> Iterator[tuple[str, str | None]]:
    yield "display_mode", _enabled(device.number("DisplayMode"))
    yield "display_active", _enabled(device.number("DisplayActive"))
    yield "display_attached", _word(device.number("DisplayMode"), lambda n: "Yes" if n else "No")
    yield "persistence_mode", _enabled(device.number("PersistenceMode"))
    yield "compute_mode", _word(device.number("ComputeMode"), _compute_mode)
    current, pending = device.two("EccMode")
    yield "ecc.mode.current", _enabled(current)
    yield "ecc.mode.pending", _enabled(pending)
    current, pending = device.two("MigMode")
    yield "mig.mode.current", _enabled(current)
    yield "mig.mode.pending", _enabled(pending)
    yield "multi_gpu_board", _word(device.number("MultiGpuBoard"), lambda n: "Yes" if n else "No")


def _compute_mode(number: int) -> str | None:
    return COMPUTE_MODES[number] if number < len(COMPUTE_MODES) else None


def _said(number: int | None) -> str | None:
    return None if number is None else str(number)


def _word(number: int | None, word: Callable[[int], str | None]) -> str | None:
    return None if number is None else word(number)


def _enabled(number: int | None) -> str | None:
    return _word(number, lambda n: "Enabled" if n else "Disabled")
