# SPDX-License-Identifier: Apache-2.0
"""The host's PCI devices as sysfs shows them: class, driver, IOMMU group, functions, BARs.

Used by passthrough.py. It reads only, below a root that tests replace, and promises that no text
becomes part of a path before it is known to be a PCI address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sluice.hypervisor.errors import HypervisorError

SYSFS = Path("/sys")
DISPLAY_CLASS = 0x03
BRIDGE_CLASS = 0x06

_ADDRESS = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])"
)
_PREFETCHABLE_64 = 0x2000 | 0x100000  # IORESOURCE_PREFETCH, IORESOURCE_MEM_64


@dataclass(frozen=True, order=True)
class HostAddress:
    """Where a device of the host sits, such as 0000:65:00.0."""

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> HostAddress:
        """Reads what configuration, NVML or the controller wrote; raises HypervisorError."""
        match = _ADDRESS.fullmatch(text.strip().lower())
        if match is None:
            shown = ascii(text if len(text) <= 40 else text[:37] + "...")
            raise HypervisorError(f"{shown} is no PCI address: give one such as 0000:65:00.0")
        return cls(*(int(part, 16) for part in match.groups()))

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function:x}"

    def is_same_card(self, other: HostAddress) -> bool:
        """Whether both are functions of one device in one slot."""
        return (self.domain, self.bus, self.slot) == (other.domain, other.bus, other.slot)


@dataclass(frozen=True)
class PciDevice:
    """One function, as it is now."""

    address: HostAddress
    vendor: int
    device: int
    class_code: int  # 24 bits
    driver: str  # empty: none is bound
    iommu_group: str  # its number; empty: no IOMMU translates for it
    virtual_functions: int  # that are enabled on it
    is_virtual_function: bool
    mmio64_bytes: int  # of its 64-bit prefetchable BARs

    @property
    def base_class(self) -> int:
        """Display controller, bridge and so on."""
        return self.class_code >> 16

    @property
    def kind(self) -> str:
        """What it is, in words, for errors."""
        names = {0x02: "network", 0x01: "storage", 0x0C: "serial bus", 0x06: "bridge"}
        by_sub = {0x0C03: "USB", 0x0403: "audio", 0x0300: "VGA", 0x0302: "3D", 0x0604: "PCI bridge"}
        sub = self.class_code >> 8
        return by_sub.get(sub) or names.get(self.base_class) or f"class {self.class_code:06x}"

    def __str__(self) -> str:
        bound = f"driver {self.driver}" if self.driver else "no driver"
        return f"{self.address} ({self.kind}, {self.vendor:04x}:{self.device:04x}, {bound})"


class SysfsPci:
    """The PCI devices below one sysfs."""

    def __init__(self, root: Path = SYSFS) -> None:
        self._root = root
        self._devices = root / "bus" / "pci" / "devices"

    def device(self, address: HostAddress) -> PciDevice | None:
        """One function, or None where there is none."""
        folder = self._devices / str(address)
        if not folder.is_dir():
            return None
        return PciDevice(
            address=address,
            vendor=_number(folder / "vendor"),
            device=_number(folder / "device"),
            class_code=_number(folder / "class"),
            driver=_link_name(folder / "driver"),
            iommu_group=_link_name(folder / "iommu_group"),
            virtual_functions=_number(folder / "sriov_numvfs"),
            is_virtual_function=(folder / "physfn").is_symlink(),
            mmio64_bytes=_mmio64_bytes(folder / "resource"),
        )

    def driver(self, address: HostAddress) -> str:
        """The driver that has it now; empty: none."""
        return _link_name(self._devices / str(address) / "driver")

    def functions(self, address: HostAddress) -> list[PciDevice]:
        """Every function of the card in that slot, virtual functions left out."""
        return [found for found in self._every() if found.address.is_same_card(address)]

    def group(self, number: str) -> list[PciDevice]:
        """Everything in an IOMMU group."""
        folder = self._root / "kernel" / "iommu_groups" / number / "devices"
        addresses = [HostAddress.parse(entry.name) for entry in sorted(folder.iterdir())]
        return [found for address in addresses if (found := self.device(address)) is not None]

    def _every(self) -> list[PciDevice]:
        found = []
        for entry in sorted(self._devices.iterdir()):
            if _ADDRESS.fullmatch(entry.name) and not (entry / "physfn").is_symlink():
                device = self.device(HostAddress.parse(entry.name))
                if device is not None:
                    found.append(device)
        return found


def _number(path: Path) -> int:
    try:
        return int(path.read_text().strip(), 0)
    except (OSError, ValueError):
        return 0


def _link_name(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""


def _mmio64_bytes(path: Path) -> int:
    """Lines of first address, last address and flags, six of them BARs."""
    try:
        lines = path.read_text().splitlines()[:6]
    except OSError:
        return 0
    total = 0
    for line in lines:
        try:
            first, last, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if last > first and flags & _PREFETCHABLE_64 == _PREFETCHABLE_64:
            total += last - first + 1
    return total
