# SPDX-License-Identifier: Apache-2.0
"""What Sluice knows of a vCenter's inventory: plain values without any object of vSphere's API.

Made by inventory.py; used by everything that decides. Ids are vCenter's (`vm-42`, `host-7`) and
good for one vCenter; a VM's identity towards the controller is its instance UUID, which vCenter
keeps unique. Memory is in MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

NVIDIA = 0x10DE
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of an ESXi host, as DirectPath I/O sees it."""

    pci_address: str
    device_id: int
    name: str
    memory_mib: int  # 0: the host did not say
    is_active: bool  # passed through since the host's last start


@dataclass(frozen=True, slots=True)
class Host:
    """An ESXi host."""

    id: str
    name: str
    connected: bool
    in_maintenance: bool
    gpus: tuple[HostGpu, ...] = ()


@dataclass(frozen=True, slots=True)
class PassedThrough:
    """A PCI device that a VM holds: one address, or any card of a kind (dynamic DirectPath I/O)."""

    key: int
    kind: Literal["static", "dynamic"]
    pci_address: str = ""  # empty: a dynamic one that has no card now
    allowed: tuple[tuple[int, int], ...] = ()  # vendor and device ids of a dynamic one
    vendor_id: int = 0  # of a static one

    @property
    def is_gpu(self) -> bool:
        """Whether it is one of NVIDIA's."""
        if self.kind == "static":
            return self.vendor_id == NVIDIA
        return any(vendor == NVIDIA for vendor, _ in self.allowed)


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM, as far as Sluice asks."""

    id: str
    name: str
    instance_uuid: str
    is_template: bool
    is_on: bool
    host: str  # its host's id
    folder: str  # its folder's path, such as DC0/vm/ai
    resource_pool: str  # its resource pool's path, such as DC0_C0/Resources/ai
    memory_mib: int
    reserved_mib: int
    devices: tuple[PassedThrough, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    extra: Mapping[str, str] = field(default_factory=lambda: NOTHING)  # guestinfo.sluice.*, MMIO
    tag: str = ""  # of the configured category

    @property
    def gpus(self) -> tuple[PassedThrough, ...]:
        """Its passed-through GPUs."""
        return tuple(device for device in self.devices if device.is_gpu)
