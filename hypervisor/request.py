# SPDX-License-Identifier: Apache-2.0
"""What a domain asks for: the `<vgpu>` element of its metadata as a checked value.

Made by cli.py from options and by domain_document.py from domain XML, which anybody who may edit
the domain wrote: every number is bounded before it is believed. Owns the metadata's vocabulary,
whose attributes are append-only.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.hypervisor.errors import InvalidRequest

NAMESPACE = "https://sluice.dev/xmlns/libvirt/1"
NAMESPACE_KEY = "sluice"
ELEMENT = "vgpu"

#: A slot below this cannot hold its control words, lanes and ring (native/channel/slot.h).
MIN_SLOT_BYTES = 4 << 20
REGION_HEADER_BYTES = 4096

#: Attribute → (field, lowest, highest, default; None where it must be given).
_NUMBERS: Mapping[str, tuple[str, int, int, int | None]] = {
    "count": ("count", 1, 64, 1),
    "memory-mib": ("memory_mib", 1, 16 << 20, None),
    "compute": ("compute", 1, 100, None),
    "region-mib": ("region_mib", 1, 1 << 20, 256),
    "slots": ("slots", 1, 64, 4),
    "priority": ("priority", -1000, 1000, 0),
}


def slot_bytes_of(region_bytes: int, slots: int) -> int:
    """How large each of a region's slots is (native/channel/slot.h)."""
    return (region_bytes - REGION_HEADER_BYTES) // slots // 4096 * 4096


_VSOCK = {"yes": True, "no": False}
MODES = ("auto", "on-demand", "reserved")
CHANNELS = ("ivshmem", "ivshmem-doorbell", "vsock")


@dataclass(frozen=True)
class VgpuRequest:
    """One request; always valid once made.

    `memory_mib` and `compute` (percent) are per vGPU. `region_mib` is the size of the ivshmem
    region, `slots` how many processes of the guest share it. `mode` "reserved" has the controller
    hold this much for the VM whether it is used or not, "on-demand" draws on no reservation, "auto"
    first on one, if there is any. `channel` "ivshmem-doorbell" is a region whose device has a
    register that wakes the host; "vsock" has no region: the domain's vsock device carries all.
    Beside a region, `vsock` says that the `<vsock>` device of the domain was put there for this
    request and goes with it.
    """

    memory_mib: int
    compute: int
    count: int = 1
    region_mib: int = 256
    slots: int = 4
    priority: int = 0
    vsock: bool = False
    mode: str = "auto"
    channel: str = "ivshmem"

    def __post_init__(self) -> None:
        if self.channel not in CHANNELS:
            raise InvalidRequest(f"channel={_shown(self.channel)}: give {', '.join(CHANNELS)}")
        if self.mode not in MODES:
            raise InvalidRequest(f"mode={_shown(self.mode)}: give {', '.join(MODES)}")
        for attribute, (field, low, high, _) in _NUMBERS.items():
            value = getattr(self, field)
            if not low <= value <= high:
                raise InvalidRequest(f"{attribute}={value}: give {low} to {high}")
        if self.region_mib & (self.region_mib - 1):
            below = 1 << (self.region_mib.bit_length() - 1)
            raise InvalidRequest(
                f"region-mib={self.region_mib} is not a power of two, which a PCI BAR has to be: "
                f"give {below} or {below * 2}"
            )
        if slot_bytes_of(self.region_bytes, self.slots) < MIN_SLOT_BYTES:
            needed = 1 << ((self.slots * MIN_SLOT_BYTES + REGION_HEADER_BYTES) - 1).bit_length()
            raise InvalidRequest(
                f"region-mib={self.region_mib} is too small for {self.slots} slots of at least "
                f"{MIN_SLOT_BYTES >> 20} MiB: give region-mib={needed >> 20} or fewer slots"
            )

    @property
    def has_region(self) -> bool:
        """Whether a region is its channel."""
        return self.channel != "vsock"

    @property
    def has_doorbell(self) -> bool:
        """Whether the region's device is one that a server of ours answers for."""
        return self.channel == "ivshmem-doorbell"

    @property
    def region_bytes(self) -> int:
        """The size of the region's file."""
        return self.region_mib << 20

    def attributes(self) -> dict[str, str]:
        """The attributes of the metadata element, complete and in a fixed order."""
        numbers = {name: str(getattr(self, entry[0])) for name, entry in _NUMBERS.items()}
        words = {"mode": self.mode, "vsock": "yes" if self.vsock else "no"}
        return {**numbers, **words, "channel": self.channel}


def parse_request(element: ElementTree.Element) -> VgpuRequest:
    """Reads a `<vgpu>` element of our namespace; InvalidRequest says what is wrong with it.

    Attributes that this version does not know are ignored, so that an older server reads what a
    newer one wrote.
    """
    if element.tag != f"{{{NAMESPACE}}}{ELEMENT}":
        raise InvalidRequest(f"the element {_shown(element.tag)} is not ours: expected <{ELEMENT}>")
    values: dict[str, Any] = {}
    for attribute, (field, low, high, default) in _NUMBERS.items():
        text = element.get(attribute)
        if text is None:
            if default is None:
                raise InvalidRequest(f"{attribute} is missing: give {low} to {high}")
            values[field] = default
        elif not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise InvalidRequest(f"{attribute}={_shown(text)}: give a number, {low} to {high}")
        else:
            values[field] = int(text)
    vsock = element.get("vsock", "no")
    if vsock not in _VSOCK:
        raise InvalidRequest(f"vsock={_shown(vsock)}: give yes or no")
    return VgpuRequest(
        **values,
        vsock=_VSOCK[vsock],
        mode=element.get("mode", "auto"),
        channel=element.get("channel", "ivshmem"),
    )


def _shown(text: str) -> str:
    """A hostile string, safe and short enough for a log line."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")
