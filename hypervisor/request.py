# SPDX-License-Identifier: Apache-2.0
"""What a domain asks for: the `<vgpu>` element of its metadata as a checked value.

The vGPU request itself, its bounds and its attributes are resources'; the channel is added here.
Made by cli.py from options and by domain_document.py from domain XML, which anybody who may edit
the domain wrote: every number is bounded before it is believed. Owns the metadata's vocabulary,
whose attributes are append-only.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.hypervisor.errors import InvalidRequest
from sluice.resources.request_forms import METADATA, NumberKey, read_numbers
from sluice.resources.vgpu_request import (
    MODE,
    Choice,
    Mode,
    Number,
    RequestError,
    VgpuRequest,
    shown,
)

NAMESPACE = "https://sluice.dev/xmlns/libvirt/1"
NAMESPACE_KEY = "sluice"
ELEMENT = "vgpu"

#: A slot below this cannot hold its control words, lanes and ring (native/channel/slot.h).
MIN_SLOT_BYTES = 4 << 20
REGION_HEADER_BYTES = 4096

REGION_MIB = Number(1, 1 << 20)
SLOTS = Number(1, 64)
CHANNEL = Choice(("ivshmem", "ivshmem-doorbell", "vsock"))
_VSOCK = Choice(("yes", "no"))

#: The attributes with numbers, in the order in which they are written.
_NUMBERS: Mapping[str, NumberKey] = {
    **{name: METADATA[name] for name in ("count", "memory-mib", "compute")},
    "region-mib": NumberKey("region_mib", REGION_MIB, 256),
    "slots": NumberKey("slots", SLOTS, 4),
    "priority": METADATA["priority"],
}


def slot_bytes_of(region_bytes: int, slots: int) -> int:
    """How large each of a region's slots is (native/channel/slot.h)."""
    return (region_bytes - REGION_HEADER_BYTES) // slots // 4096 * 4096


@dataclass(frozen=True, kw_only=True)
class DomainRequest(VgpuRequest):
    """A domain's request and its channel; always valid once made.

    Of the vGPU request it has count, memory, compute, priority and mode. `region_mib` is the size
    of the ivshmem region, `slots` how many processes of the guest share it. `mode` RESERVED has the
    controller hold this much for the VM whether it is used or not. `channel` "ivshmem-doorbell" is
    a region whose device has a register that wakes the host; "vsock" has no region: the domain's
    vsock device carries all. Beside a region, `vsock` says that the `<vsock>` device of the domain
    was put there for this request and goes with it.
    """

    memory_mib: int
    compute_percent: int
    region_mib: int = 256
    slots: int = 4
    vsock: bool = False
    channel: str = "ivshmem"

    def __post_init__(self) -> None:
        try:
            CHANNEL.read("channel", self.channel)
            MODE.read("mode", self.mode)
            for attribute, key in _NUMBERS.items():
                key.bounds.check(attribute, getattr(self, key.field))
        except RequestError as error:
            raise InvalidRequest(error.field, error.found, error.allowed) from None
        if self.region_mib & (self.region_mib - 1):
            below = 1 << (self.region_mib.bit_length() - 1)
            raise InvalidRequest(
                "region-mib",
                str(self.region_mib),
                f"is not a power of two, which a PCI BAR has to be: give {below} or {below * 2}",
            )
        if slot_bytes_of(self.region_bytes, self.slots) < MIN_SLOT_BYTES:
            needed = 1 << ((self.slots * MIN_SLOT_BYTES + REGION_HEADER_BYTES) - 1).bit_length()
            raise InvalidRequest(
                "region-mib",
                str(self.region_mib),
                f"is too small for {self.slots} slots of at least {MIN_SLOT_BYTES >> 20} MiB: give "
                f"region-mib={needed >> 20} or fewer slots",
            )

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.attributes().items())

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
        numbers = {name: str(getattr(self, key.field)) for name, key in _NUMBERS.items()}
        words = {"mode": str(self.mode), "vsock": "yes" if self.vsock else "no"}
        return {**numbers, **words, "channel": self.channel}


def read_mode(text: str) -> Mode:
    """A mode as a person gives it; raises InvalidRequest."""
    try:
        return Mode(MODE.read("mode", text))
    except RequestError as error:
        raise InvalidRequest(error.field, error.found, error.allowed) from None


def parse_request(element: ElementTree.Element) -> DomainRequest:
    """Reads a `<vgpu>` element of our namespace; InvalidRequest says what is wrong with it.

    Attributes that this version does not know are ignored, so that an older server reads what a
    newer one wrote.
    """
    if element.tag != f"{{{NAMESPACE}}}{ELEMENT}":
        raise InvalidRequest("element", shown(element.tag), f"is not ours: give <{ELEMENT}>")
    said = element.attrib
    try:
        values: dict[str, Any] = {
            **read_numbers(_NUMBERS, said),
            "mode": read_mode(said.get("mode", Mode.AUTO)),
            "vsock": _VSOCK.read("vsock", said.get("vsock", "no")) == "yes",
        }
    except RequestError as error:
        raise InvalidRequest(error.field, error.found, error.allowed) from None
    return DomainRequest(**values, channel=said.get("channel", "ivshmem"))
