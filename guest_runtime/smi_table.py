# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi without options: the table, in the layout that people and programs know.

Used by smi.py. A vGPU's memory is the slice's; temperature, power and utilization are those of the
whole GPU that it is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from .smi_facts import MIB, Gpu, System

WIDE = 89
_COLUMNS = (41, 24, 22)


def table(system: System, gpus: Sequence[Gpu], now: datetime) -> Iterator[str]:
    """Its lines."""
    yield f"{now.strftime('%a %b %e %H:%M:%S %Y'):<31}"
    yield from _head(system)
    for gpu in gpus:
        yield from _gpu(gpu)
    yield ""
    yield from _processes(gpus)


def _head(system: System) -> Iterator[str]:
    # the version is the driver's, as that of NVIDIA's own program is; beside it, whose this one is
    own = f"{system.driver_version or 'N/A'} (Sluice)"
    yield f"+{'-' * WIDE}+"
    yield (
        f"| NVIDIA-SMI {own:<23}Driver Version: {system.driver_version or 'N/A':<15}"
        f"CUDA Version: {system.cuda_version or 'N/A':<9}|"
    )
    yield _rule("-")
    yield _line(
        " GPU  Name                 Persistence-M ",
        " Bus-Id          Disp.A ",
        " Volatile Uncorr. ECC ",
    )
    yield _line(
        " Fan  Temp   Perf          Pwr:Usage/Cap ",
        "           Memory-Usage ",
        " GPU-Util  Compute M. ",
    )
    yield _line("", "", "               MIG M. ")
    yield f"|{'+'.join('=' * width for width in _COLUMNS)}|"


def _gpu(gpu: Gpu) -> Iterator[str]:
    value = gpu.value
    name = _short(value("name") or "N/A", 29)
    persistence = _on(value("persistence_mode"))
    yield _line(
        f"{gpu.number:>4}  {name:<31}{persistence:<4}",
        f"   {value('pci.bus_id') or 'N/A':<16} {_on(value('display_active')):<4}",
        f"{_ecc(value('ecc.mode.current')):>21} ",
    )
    fan, temperature = value("fan.speed"), value("temperature.gpu")
    fan = "N/A" if fan is None else f"{fan}%"
    temperature = "N/A" if temperature is None else f"{temperature}C"
    power = f"{_watts(value('power.draw'))} / {_watts(value('power.limit')):>5}"
    use, mode = value("utilization.gpu"), value("compute_mode") or "N/A"
    yield _line(
        f" {fan:>3}{temperature:>6}{value('pstate') or 'N/A':>6}{power:>24} ",
        f"{_mib(value('memory.used')):>11} / {_mib(value('memory.total')):>9} ",
        f"{'N/A' if use is None else use + '%':>8}{_short(mode, 12):>13} ",
    )
    yield _line("", "", f"{value('mig.mode.current') or 'N/A':>21} ")
    yield _rule("-")


def _processes(gpus: Sequence[Gpu]) -> Iterator[str]:
    yield f"+{'-' * WIDE}+"
    yield f"| {'Processes:':<88}|"
    yield (
        "|  GPU   GI   CI              PID   Type   Process name"
        "                        GPU Memory |"
    )
    yield f"|        ID   ID{' ' * 63}Usage      |"
    yield f"|{'=' * WIDE}|"
    running = [(gpu, process) for gpu in gpus for process in gpu.processes]
    for gpu, process in running:
        used = "N/A" if process.used is None else f"{process.used // MIB}MiB"
        name = _tail(process.name or "[Not Found]", 36)
        yield f"|{gpu.number:>5}   N/A  N/A{process.pid:>16}      C   {name:<38}{used:>8} |"
    if not running:
        yield f"|  {'No running processes found':<87}|"
    yield f"+{'-' * WIDE}+"


def _line(first: str, second: str, third: str) -> str:
    cells = zip((first, second, third), _COLUMNS)
    return "|" + "|".join(f"{cell:<{width}}"[:width] for cell, width in cells) + "|"


def _rule(sign: str) -> str:
    return f"+{'+'.join(sign * width for width in _COLUMNS)}+"


def _on(mode: str | None) -> str:
    return {"Enabled": "On", "Disabled": "Off"}.get(mode or "", "N/A")


def _ecc(mode: str | None) -> str:
    return "Off" if mode == "Disabled" else "N/A"  # errors are the node's to count


def _watts(value: str | None) -> str:
    return "N/A" if value is None else f"{float(value):.0f}W"


def _mib(value: str | None) -> str:
    return "N/A" if value is None else f"{value}MiB"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else f"...{text[3 - most :]}"
