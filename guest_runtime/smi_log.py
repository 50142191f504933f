# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi -q and -x: everything that is known of GPUs, as text and as XML.

Used by smi.py. Both are made of one outline, which has NVIDIA's titles and tags in NVIDIA's order;
what a vGPU has not, or nobody here knows, is N/A in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from .smi_facts import MIB, REASONS, Gpu, System
from .smi_query import words

UNKNOWN = "N/A"
_COLUMN = 51


class Item(NamedTuple):
    """A line: its title, its tag, and a field with its unit, or what it says always."""

    title: str
    tag: str
    field: str = ""
    unit: str = ""
    always: str = UNKNOWN


class Group(NamedTuple):
    """Lines below a title. `section`: the word of -d by which it is shown; "": only with all."""

    title: str
    tag: str
    inside: Sequence[Item | Group]
    section: str = ""


def _clocks(title: str, tag: str, start: str, names: str) -> Group:
    titles = {"graphics": "Graphics", "sm": "SM", "memory": "Memory", "video": "Video"}
    items = [
        Item(titles[n], f"{'mem' if n == 'memory' else n}_clock", f"{start}.{n}", "MHz")
        for n in words(names)
    ]
    return Group(title, tag, items, "CLOCK")


def _memory(title: str, tag: str, start: str) -> Group:
    kinds = ("Total", "Reserved", "Used", "Free")
    return Group(
        title,
        tag,
        [Item(w, w.lower(), f"{start}.{w.lower()}" if start else "", "MiB") for w in kinds],
        "MEMORY",
    )


_REASON_WORDS = {
    "gpu_idle": "Idle",
    "applications_clocks_setting": "Applications Clocks Setting",
    "sw_power_cap": "SW Power Cap",
    "hw_slowdown": "HW Slowdown",
    "sync_boost": "Sync Boost",
    "sw_thermal_slowdown": "SW Thermal Slowdown",
    "hw_thermal_slowdown": "HW Thermal Slowdown",
    "hw_power_brake_slowdown": "HW Power Brake Slowdown",
}
_LINK = (
    Group(
        "PCIe Generation",
        "pcie_gen",
        [
            Item("Max", "max_link_gen", "pcie.link.gen.max"),
            Item("Current", "current_link_gen", "pcie.link.gen.current"),
            Item("Device Current", "device_current_link_gen", "pcie.link.gen.gpucurrent"),
            Item("Device Max", "max_device_link_gen", "pcie.link.gen.gpumax"),
            Item("Host Max", "max_host_link_gen"),
        ],
    ),
    Group(
        "Link Width",
        "link_widths",
        [
            Item("Max", "max_link_width", "pcie.link.width.max", "x"),
            Item("Current", "current_link_width", "pcie.link.width.current", "x"),
        ],
    ),
)
OUTLINE: Sequence[Item | Group] = (
    Item("Product Name", "product_name", "name"),
    Item("Product Brand", "product_brand", "product_brand"),
    Item("Product Architecture", "product_architecture", "architecture"),
    Item("Display Mode", "display_mode", "display_mode"),
    Item("Display Attached", "display_attached", "display_attached"),
    Item("Display Active", "display_active", "display_active"),
    Item("Persistence Mode", "persistence_mode", "persistence_mode"),
    Item("Addressing Mode", "addressing_mode"),
    Group(
        "MIG Mode",
        "mig_mode",
        [
            Item("Current", "current_mig", "mig.mode.current"),
            Item("Pending", "pending_mig", "mig.mode.pending"),
        ],
    ),
    Item("Accounting Mode", "accounting_mode"),
    Item("Accounting Mode Buffer Size", "accounting_mode_buffer_size"),
    Item("Serial Number", "serial", "serial"),
    Item("GPU UUID", "uuid", "uuid"),
    Item("Minor Number", "minor_number", "minor_number"),
    Item("VBIOS Version", "vbios_version", "vbios_version"),
    Item("MultiGPU Board", "multigpu_board", "multi_gpu_board"),
    Item("Board ID", "board_id"),
    Item("Board Part Number", "board_part_number"),
    Item("GPU Part Number", "gpu_part_number"),
    Group(
        "GPU Virtualization Mode",
        "gpu_virtualization_mode",
        [Item("Virtualization Mode", "virtualization_mode", always="None")],
    ),
    Group(
        "PCI",
        "pci",
        [
            Item("Bus", "pci_bus", "pci.bus"),
            Item("Device", "pci_device", "pci.device"),
            Item("Domain", "pci_domain", "pci.domain"),
            Item("Device Id", "pci_device_id", "pci.device_id"),
            Item("Bus Id", "pci_bus_id", "pci.bus_id"),
            Item("Sub System Id", "pci_sub_system_id", "pci.sub_device_id"),
            Group("GPU Link Info", "pci_gpu_link_info", _LINK),
            Item("Replays Since Reset", "replay_counter", "pcie.replays"),
        ],
    ),
    Item("Fan Speed", "fan_speed", "fan.speed", "%"),
    Item("Performance State", "performance_state", "pstate"),
    Group(
        "Clocks Event Reasons",
        "clocks_event_reasons",
        [
            Item(_REASON_WORDS[name], f"clocks_event_reason_{name}", f"clocks_event_reasons.{name}")
            for name in REASONS
        ],
        "PERFORMANCE",
    ),
    _memory("FB Memory Usage", "fb_memory_usage", "memory"),
    _memory("BAR1 Memory Usage", "bar1_memory_usage", ""),
    Item("Compute Mode", "compute_mode", "compute_mode"),
    Group(
        "Utilization",
        "utilization",
        [
            Item("GPU", "gpu_util", "utilization.gpu", "%"),
            Item("Memory", "memory_util", "utilization.memory", "%"),
            Item("Encoder", "encoder_util", "utilization.encoder", "%"),
            Item("Decoder", "decoder_util", "utilization.decoder", "%"),
            Item("JPEG", "jpeg_util"),
            Item("OFA", "ofa_util"),
        ],
        "UTILIZATION",
    ),
    Group(
        "ECC Mode",
        "ecc_mode",
        [
            Item("Current", "current_ecc", "ecc.mode.current"),
            Item("Pending", "pending_ecc", "ecc.mode.pending"),
        ],
        "ECC",
    ),
    Group(
        "ECC Errors",
        "ecc_errors",
        [
            Group(life, life.lower(), [Item("DRAM Correctable", "dram_correctable"),
                                       Item("DRAM Uncorrectable", "dram_uncorrectable")])
            for life in ("Volatile", "Aggregate")
        ],
        "ECC",
    ),
    Group(
        "Retired Pages",
        "retired_pages",
        [Item("Single Bit ECC", "single_bit_ecc"), Item("Double Bit ECC", "double_bit_ecc")],
        "PAGE_RETIREMENT",
    ),
    Item("Remapped Rows", "remapped_rows"),
    Group(
        "Temperature",
        "temperature",
        [
            Item("GPU Current Temp", "gpu_temp", "temperature.gpu", "C"),
            Item("GPU Shutdown Temp", "gpu_temp_max_threshold", "temperature.shutdown", "C"),
            Item("GPU Slowdown Temp", "gpu_temp_slow_threshold", "temperature.slowdown", "C"),
            Item("GPU Max Operating Temp", "gpu_temp_max_gpu_threshold",
                 "temperature.gpu_max", "C"),
            Item("Memory Current Temp", "memory_temp"),
            Item("Memory Max Operating Temp", "gpu_temp_max_mem_threshold",
                 "temperature.memory_max", "C"),
        ],
        "TEMPERATURE",
    ),
    Group(
        "GPU Power Readings",
        "gpu_power_readings",
        [
            Item("Power Draw", "power_draw", "power.draw", "W"),
            Item("Current Power Limit", "current_power_limit", "enforced.power.limit", "W"),
            Item("Requested Power Limit", "requested_power_limit", "power.limit", "W"),
            Item("Default Power Limit", "default_power_limit", "power.default_limit", "W"),
            Item("Min Power Limit", "min_power_limit", "power.min_limit", "W"),
            Item("Max Power Limit", "max_power_limit", "power.max_limit", "W"),
        ],
        "POWER",
    ),
    _clocks("Clocks", "clocks", "clocks.current", "graphics sm memory video"),
    _clocks("Applications Clocks", "applications_clocks", "clocks.applications", "graphics memory"),
    _clocks("Default Applications Clocks", "default_applications_clocks",
            "clocks.default_applications", "graphics memory"),
    _clocks("Max Clocks", "max_clocks", "clocks.max", "graphics sm memory video"),
)  # fmt: skip
#: What -d takes, besides those that a vGPU has nothing for.
SECTIONS = words("""
    MEMORY UTILIZATION ECC TEMPERATURE POWER CLOCK COMPUTE PIDS PERFORMANCE SUPPORTED_CLOCKS
    PAGE_RETIREMENT ACCOUNTING ENCODER_STATS FBC_STATS SUPPORTED_GPU_TARGET_TEMP VOLTAGE
    ROW_REMAPPER RESET_STATUS GSP_FIRMWARE_VERSION
""")


def shown_parts(sections: Sequence[str]) -> Sequence[Item | Group]:
    """What of the outline is shown; all without sections."""
    if not sections:
        return OUTLINE
    parts: list[Item | Group] = [
        part for part in OUTLINE if isinstance(part, Group) and part.section in sections
    ]
    if "COMPUTE" in sections:
        parts += [part for part in OUTLINE if part.tag == "compute_mode"]
    return parts


def has_processes(sections: Sequence[str]) -> bool:
    """Whether processes are shown."""
    return not sections or "PIDS" in sections


# text


def text(
    system: System, gpus: Sequence[Gpu], sections: Sequence[str], now: datetime
) -> Iterator[str]:
    """Its lines."""
    yield ""
    yield "==============NVSMI LOG=============="
    yield ""
    yield _said(0, "Timestamp", now.strftime("%a %b %e %H:%M:%S %Y"))
    yield _said(0, "Driver Version", system.driver_version or UNKNOWN)
    yield _said(0, "CUDA Version", system.cuda_version or UNKNOWN)
    yield ""
    yield _said(0, "Attached GPUs", str(system.gpus))
    for gpu in gpus:
        yield f"GPU {gpu.value('pci.bus_id') or UNKNOWN}"
        yield from _text_of(shown_parts(sections), gpu, 1)
        if has_processes(sections):
            yield from _text_of_processes(gpu)
        yield ""


def _text_of(parts: Sequence[Item | Group], gpu: Gpu, depth: int) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Group):
            yield f"{'    ' * depth}{part.title}"
            yield from _text_of(part.inside, gpu, depth + 1)
        else:
            yield _said(depth, part.title, _value(part, gpu))


def _text_of_processes(gpu: Gpu) -> Iterator[str]:
    if not gpu.processes:
        yield _said(1, "Processes", "None")
        return
    yield "    Processes"
    for process in gpu.processes:
        used = UNKNOWN if process.used is None else f"{process.used // MIB} MiB"
        yield _said(2, "GPU instance ID", UNKNOWN)
        yield _said(2, "Compute instance ID", UNKNOWN)
        yield _said(2, "Process ID", str(process.pid))
        yield _said(3, "Type", "C")
        yield _said(3, "Name", process.name or UNKNOWN)
        yield _said(3, "Used GPU Memory", used)


def _said(depth: int, title: str, value: str) -> str:
    return f"{'    ' * depth + title:<{_COLUMN}}: {value}"


# XML


def escape(text: str) -> str:
    """As the text of an element, or an attribute's value."""
    for mark, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot")):
        text = text.replace(mark, f"&{name};")
    return text


def xml(
    system: System, gpus: Sequence[Gpu], sections: Sequence[str], now: datetime
) -> Iterator[str]:
    """Its lines."""
    yield '<?xml version="1.0" ?>'
    yield '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">'
    yield "<nvidia_smi_log>"
    yield _tagged(1, "timestamp", now.strftime("%a %b %e %H:%M:%S %Y"))
    yield _tagged(1, "driver_version", system.driver_version or UNKNOWN)
    yield _tagged(1, "cuda_version", system.cuda_version or UNKNOWN)
    yield _tagged(1, "attached_gpus", str(system.gpus))
    for gpu in gpus:
        place = escape(gpu.value("pci.bus_id") or UNKNOWN)
        yield f'\t<gpu id="{place}">'
        yield from _xml_of(shown_parts(sections), gpu, 2)
        if has_processes(sections):
            yield from _xml_of_processes(gpu)
        yield "\t</gpu>"
    yield "</nvidia_smi_log>"


def _xml_of(parts: Sequence[Item | Group], gpu: Gpu, depth: int) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Group):
            tabs = "\t" * depth
            yield f"{tabs}<{part.tag}>"
            yield from _xml_of(part.inside, gpu, depth + 1)
            yield f"{tabs}</{part.tag}>"
        else:
            yield _tagged(depth, part.tag, _value(part, gpu))


def _xml_of_processes(gpu: Gpu) -> Iterator[str]:
    yield "\t\t<processes>"
    for process in gpu.processes:
        used = UNKNOWN if process.used is None else f"{process.used // MIB} MiB"
        yield "\t\t\t<process_info>"
        yield _tagged(4, "gpu_instance_id", UNKNOWN)
        yield _tagged(4, "compute_instance_id", UNKNOWN)
        yield _tagged(4, "pid", str(process.pid))
        yield _tagged(4, "type", "C")
        yield _tagged(4, "process_name", process.name or UNKNOWN)
        yield _tagged(4, "used_memory", used)
        yield "\t\t\t</process_info>"
    yield "\t\t</processes>"


def _tagged(depth: int, tag: str, value: str) -> str:
    tabs = "\t" * depth
    return f"{tabs}<{tag}>{escape(value)}</{tag}>"


def _value(item: Item, gpu: Gpu) -> str:
    value: str | None = gpu.value(item.field) if item.field else item.always
    if value is None:
        return UNKNOWN
    if not item.unit or value == UNKNOWN:
        return value
    return f"{value}{item.unit}" if item.unit == "x" else f"{value} {item.unit}"
