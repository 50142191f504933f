# SPDX-License-Identifier: Apache-2.0
"""What a flavor's `vgpu:` extra specs mean: the one reader and the one set of limits.

Used by Nova's API (validators.py), the virt driver (driver.py), and by the adapter for flavors,
Placement and grants. Pure. Flavors are written by administrators through any API version, so
nothing is believed: every problem is named with its key and its remedy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

NAMESPACE = "vgpu:"
MEMORY_CLASS = "CUSTOM_SLUICE_VGPU_MIB"
COMPUTE_CLASS = "CUSTOM_SLUICE_VGPU_COMPUTE"

#: Key → (lowest, highest, default; None where it must be given, what it is).
NUMBERS: Mapping[str, tuple[int, int, int | None, str]] = {
    "count": (1, 64, 1, "How many vGPUs an instance has."),
    "memory_mib": (1, 16 << 20, None, "GPU memory of each vGPU, in MiB."),
    "compute": (1, 100, None, "Share of a GPU's time of each vGPU, in percent."),
    "priority": (-1000, 1000, 0, "Place in the queue of the pool; higher goes first."),
}
MODES = ("reserved", "on-demand")
MODE_MEANING = (
    "reserved: held for the instance from its boot on; on-demand: taken from the pool while a "
    "program runs."
)
CROSS_NODE_MEANING = (
    "Whether a program's vGPUs may be on several GPU nodes. Only false: a program's session, and "
    "with it all its vGPUs, is on one node so far."
)
KEYS = (*NUMBERS, "mode", "cross_node")
_TRUE = ("true", "yes", "1", "on")
FALSE = ("false", "no", "0", "off")
_SHOWN_CHARACTERS = 60


class InvalidSpecs(ValueError):
    """The extra specs cannot be used; `problems` has a line for each thing that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class VgpuSpecs:
    """What one instance of a flavor gets: `count` vGPUs of one size (MiB, percent)."""

    memory_mib: int
    compute: int
    count: int = 1
    mode: str = "reserved"
    priority: int = 0

    @property
    def is_reserved(self) -> bool:
        """Whether room is held for the instance from its boot on."""
        return self.mode == "reserved"

    @property
    def resources(self) -> dict[str, int]:
        """What an instance takes of the pool in Placement; on-demand work takes nothing there."""
        if not self.is_reserved:
            return {}
        return {
            MEMORY_CLASS: self.count * self.memory_mib,
            COMPUTE_CLASS: self.count * self.compute,
        }

    def extra_specs(self) -> dict[str, str]:
        """The whole set that a flavor needs: ours, and the matching `resources:`."""
        ours = {
            "count": str(self.count),
            "memory_mib": str(self.memory_mib),
            "compute": str(self.compute),
            "mode": self.mode,
            "priority": str(self.priority),
        }
        specs = {NAMESPACE + key: value for key, value in ours.items()}
        specs |= {f"resources:{name}": str(amount) for name, amount in self.resources.items()}
        return specs


def parse(extra_specs: Mapping[str, str]) -> VgpuSpecs | None:
    """Reads a flavor's extra specs; None where it asks for no vGPU. Raises InvalidSpecs."""
    ours = {
        key[len(NAMESPACE) :]: str(value)
        for key, value in extra_specs.items()
        if key.startswith(NAMESPACE)
    }
    if not ours:
        return None
    problems = [
        f"{NAMESPACE}{_shown(key)} is unknown: there are {', '.join(KEYS)}"
        for key in sorted(ours.keys() - set(KEYS))
    ]
    numbers = {key: _number(key, ours.get(key), problems) for key in NUMBERS}
    mode = ours.get("mode", MODES[0])
    if mode not in MODES:
        problems.append(f"{NAMESPACE}mode={_shown(mode)}: give {' or '.join(MODES)}")
    _refuse_cross_node(ours.get("cross_node", "false"), problems)
    if problems:
        raise InvalidSpecs(problems)
    return VgpuSpecs(mode=mode, **numbers)


def _number(key: str, text: str | None, problems: list[str]) -> int:
    low, high, default, _ = NUMBERS[key]
    if text is None:
        if default is None:
            problems.append(f"{NAMESPACE}{key} is missing: give {low} to {high}")
        return default or 0
    value = int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None
    if value is None or not low <= value <= high:
        problems.append(f"{NAMESPACE}{key}={_shown(text)}: give a number, {low} to {high}")
        return low
    return value


def _refuse_cross_node(text: str, problems: list[str]) -> None:
    if text.lower() in _TRUE:
        problems.append(
            f"{NAMESPACE}cross_node={_shown(text)}: the vGPUs of a program are on one GPU node so "
            "far; leave it out, or give false"
        )
    elif text.lower() not in FALSE:
        problems.append(f"{NAMESPACE}cross_node={_shown(text)}: leave it out, or give false")


def _shown(text: str) -> str:
    """A hostile string, safe and short enough for a log line."""
    return ascii(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "...")
