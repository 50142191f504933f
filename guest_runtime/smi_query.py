# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi --query-gpu and --query-compute-apps: fields, and their CSV.

Used by smi.py. Every field that NVIDIA's own program has is taken, so that what asks for many gets
those that there are; one that a vGPU has not, or that nobody here knows, is [N/A].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from .smi_facts import MIB, Gpu, System

NOTHING = "[N/A]"


def words(text: str) -> tuple[str, ...]:
    """A table of names."""
    return tuple(text.split())


#: Other names of fields.
ALIASES = {
    "gpu_name": "name",
    "gpu_serial": "serial",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "inforom.image": "inforom.img",
    "inforom.power": "inforom.pwr",
    "gpu_operation_mode.current": "gom.current",
    "gpu_operation_mode.pending": "gom.pending",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "clocks.gr": "clocks.current.graphics",
    "clocks.current.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.current.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory",
    "clocks.default_applications.gr": "clocks.default_applications.graphics",
    "clocks.default_applications.mem": "clocks.default_applications.memory",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}
_REASONS = words("""
    supported active gpu_idle applications_clocks_setting sw_power_cap hw_slowdown
    hw_thermal_slowdown hw_power_brake_slowdown sw_thermal_slowdown sync_boost
""")
ALIASES.update(
    {f"clocks_throttle_reasons.{each}": f"clocks_event_reasons.{each}" for each in _REASONS}
)
_ECC_PLACES = words("""
    device_memory dram register_file l1_cache l2_cache texture_memory cbu sram total
""")

#: Every field of a GPU, in the order of --help-query-gpu.
GPU_FIELDS: tuple[str, ...] = (
    *words("""
        timestamp driver_version vgpu_driver_capability.heterogenous_multivGPU count name serial
        uuid pci.bus_id pci.domain pci.bus pci.device pci.baseClass pci.subClass pci.device_id
        pci.sub_device_id vgpu_device_capability.fractional_multiVgpu
        vgpu_device_capability.heterogeneous_timeSlice_profile
        vgpu_device_capability.heterogeneous_timeSlice_sizes pcie.link.gen.current
        pcie.link.gen.gpucurrent pcie.link.gen.max pcie.link.gen.gpumax pcie.link.gen.hostmax
        pcie.link.width.current pcie.link.width.max index display_attached display_mode
        display_active persistence_mode addressing_mode accounting.mode accounting.buffer_size
        driver_model.current driver_model.pending vbios_version inforom.img inforom.oem inforom.ecc
        inforom.pwr inforom.checksum_validation reset_status.reset_required
        reset_status.drain_and_reset_recommended gpu_recovery_action gom.current gom.pending
        fan.speed pstate
"""),
    *(f"clocks_event_reasons.{each}" for each in _REASONS),
    *words("""
        memory.total memory.reserved memory.used memory.free compute_mode compute_cap
        utilization.gpu utilization.memory utilization.encoder utilization.decoder utilization.jpeg
        utilization.ofa encoder.stats.sessionCount encoder.stats.averageFps
        encoder.stats.averageLatency dramEncryption.mode.current dramEncryption.mode.pending
        ecc.mode.current ecc.mode.pending
"""),
    *(
        f"ecc.errors.{kind}.{life}.{place}"
        for kind in ("corrected", "uncorrected")
        for life in ("volatile", "aggregate")
        for place in _ECC_PLACES
    ),
    *words("""
        retired_pages.single_bit_ecc.count retired_pages.double_bit.count retired_pages.pending
        remapped_rows.correctable remapped_rows.uncorrectable remapped_rows.pending
        remapped_rows.failure remapped_rows.histogram.max remapped_rows.histogram.high
        remapped_rows.histogram.partial remapped_rows.histogram.low remapped_rows.histogram.none
        temperature.gpu temperature.gpu.tlimit temperature.memory power.management power.draw
        power.draw.average power.draw.instant power.limit enforced.power.limit power.default_limit
        power.min_limit power.max_limit module.power.draw.average module.power.draw.instant
        module.power.limit module.enforced.power.limit module.power.default_limit
        module.power.min_limit module.power.max_limit clocks.current.graphics clocks.current.sm
        clocks.current.memory clocks.current.video clocks.applications.graphics
        clocks.applications.memory clocks.default_applications.graphics
        clocks.default_applications.memory clocks.max.graphics clocks.max.sm clocks.max.memory
        mig.mode.current mig.mode.pending gsp.mode.current gsp.mode.default c2c.mode
        protected_memory.total protected_memory.used protected_memory.free fabric.state
        fabric.status fabric.cliqueId fabric.clusterUuid hostname
"""),
)
APP_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}
APP_FIELDS = words("""
    timestamp gpu_name gpu_bus_id gpu_serial gpu_uuid pid process_name used_gpu_memory
""")
#: The units of a field, by how it begins.
_UNITS = (
    (("memory.", "protected_memory.", "used_gpu_memory", "dramEncryption.size"), "MiB"),
    (("utilization.", "fan.speed"), "%"),
    (("power.draw", "power.limit", "enforced.power.limit", "power.default_limit"), "W"),
    (("power.min_limit", "power.max_limit", "module."), "W"),
    (("clocks.",), "MHz"),
)


class Format(NamedTuple):
    """--format: of the three words, what is left out."""

    header: bool = True
    units: bool = True


class BadQuery(Exception):
    """What is asked for cannot be asked; the text is the line that says so."""


def read_format(text: str | None) -> Format:
    """`csv`, `noheader`, `nounits`, with commas; raises BadQuery."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if word not in ("csv", "noheader", "nounits"):
            raise BadQuery(f'Format "{shown(word)}" is not a valid format: csv, noheader, nounits')
    if "csv" not in words:
        raise BadQuery('The option "--format=csv" is needed for a query')
    return Format("noheader" not in words, "nounits" not in words)


def read_fields(text: str, known: Sequence[str], aliases: dict[str, str]) -> list[str]:
    """The fields of a list with commas; raises BadQuery."""
    fields = []
    for word in (each.strip() for each in text.split(",")):
        field = aliases.get(word, word)
        if field not in known:
            raise BadQuery(f'Field "{shown(word)}" is not a valid field to query.')
        fields.append(field)
    return fields


def unit_of(field: str) -> str:
    """Its unit; empty: it has none."""
    return next((unit for starts, unit in _UNITS if field.startswith(starts)), "")


def header(fields: Iterable[str]) -> str:
    """The first line."""
    return ", ".join(f"{f} [{unit}]" if (unit := unit_of(f)) else f for f in fields)


def gpu_row(fields: Iterable[str], gpu: Gpu, system: System, form: Format, now: datetime) -> str:
    """One GPU's line."""
    special = {
        "timestamp": stamp(now),
        "driver_version": system.driver_version,
        "count": str(system.gpus),
    }
    return _row(
        ((field, special[field] if field in special else gpu.value(field)) for field in fields),
        form,
    )


def app_rows(fields: Sequence[str], gpu: Gpu, form: Format, now: datetime) -> Iterator[str]:
    """A line for each process of a GPU."""
    for process in gpu.processes:
        values = {
            "timestamp": stamp(now),
            "gpu_name": gpu.value("name"),
            "gpu_bus_id": gpu.value("pci.bus_id"),
            "gpu_serial": gpu.value("serial"),
            "gpu_uuid": gpu.value("uuid"),
            "pid": str(process.pid),
            "process_name": process.name or None,
            "used_gpu_memory": None if process.used is None else str(process.used // MIB),
        }
        yield _row(((field, values[field]) for field in fields), form)


def stamp(now: datetime) -> str:
    """As NVIDIA's program writes a moment in CSV."""
    return now.strftime("%Y/%m/%d %H:%M:%S.") + f"{now.microsecond // 1000:03d}"


def shown(text: str) -> str:
    """Somebody's text, for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:80])


def _row(values: Iterable[tuple[str, str | None]], form: Format) -> str:
    cells = []
    for field, value in values:
        unit = unit_of(field) if form.units else ""
        # a comma in a name would be read as another column
        cell = NOTHING if value is None else value.replace(",", " ")
        cells.append(f"{cell} {unit}" if unit and value is not None else cell)
    return ", ".join(cells)
