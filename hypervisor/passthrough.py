# SPDX-License-Identifier: Apache-2.0
"""Whether a whole GPU can be given to a VM, and what goes with it.

Called by native_gpu.py and by the server. Reads sysfs and /proc, changes nothing, and knows no
libvirt. It promises that a card is given whole, every function of it, and that nothing of the
host's own work shares an IOMMU group with it; what is in the way is named, with the way out.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.pci_devices import (
    BRIDGE_CLASS,
    DISPLAY_CLASS,
    HostAddress,
    PciDevice,
    SysfsPci,
)

PROC = Path("/proc")
_POLL_SECONDS = 0.1
#: Drivers that leave a device to a VM, or do nothing with it.
GIVEN_DRIVERS = ("vfio-pci", "pci-stub")
NO_IOMMU = (
    "this host translates no device's memory: switch VT-d or AMD-Vi on in the firmware and boot "
    "with intel_iommu=on iommu=pt (Intel) or iommu=pt (AMD)"
)


@dataclass(frozen=True)
class Card:
    """A GPU that can be given away: its functions in order, the GPU itself first."""

    gpu: PciDevice
    functions: tuple[PciDevice, ...]

    @property
    def addresses(self) -> tuple[HostAddress, ...]:
        """Where its functions are."""
        return tuple(function.address for function in self.functions)

    @property
    def mmio64_mib(self) -> int:
        """MiB of 64-bit address space that its BARs take in a guest."""
        return sum(function.mmio64_bytes for function in self.functions) >> 20


def card_at(sysfs: SysfsPci, address: HostAddress) -> Card:
    """The card of the GPU there; HypervisorError says what keeps it from being given to a VM."""
    gpu = sysfs.device(address)
    if gpu is None:
        raise HypervisorError(f"there is no PCI device {address} on this host")
    if gpu.base_class != DISPLAY_CLASS:
        raise HypervisorError(f"{gpu} is no GPU: only display and 3D controllers are given away")
    if gpu.is_virtual_function:
        raise HypervisorError(f"{gpu} is a virtual function: only whole cards are given away")
    functions = sysfs.functions(address)
    for function in functions:
        _check_function(function)
    given = {function.address for function in functions}
    for number in sorted({function.iommu_group for function in functions}):
        for other in sysfs.group(number):
            if other.address not in given:
                _check_neighbour(other, number, gpu)
    first = [function for function in functions if function.address == address]
    return Card(gpu, (*first, *(f for f in functions if f.address != address)))


def _check_function(function: PciDevice) -> None:
    if function.virtual_functions:
        raise HypervisorError(
            f"{function} has {function.virtual_functions} virtual function(s) enabled, which its "
            "card cannot be given away with: write 0 to its sriov_numvfs"
        )
    if not function.iommu_group:
        raise HypervisorError(f"{function} is in no IOMMU group: {NO_IOMMU}")


def _check_neighbour(other: PciDevice, group: str, gpu: PciDevice) -> None:
    """A device of the group that stays on the host."""
    if other.base_class == BRIDGE_CLASS:
        return  # the kernel leaves bridges where they are; VFIO knows them
    if other.driver in GIVEN_DRIVERS:
        return
    raise HypervisorError(
        f"{other} shares IOMMU group {group} with {gpu.address} and would stay on the host: bind "
        f"it to vfio-pci too (driverctl set-override {other.address} vfio-pci), or put the card "
        "into a slot that the firmware isolates (ACS)"
    )


def users(address: HostAddress, proc: Path = PROC) -> list[str]:
    """The processes that have NVIDIA's device node of a GPU open: its driver waits for them."""
    minor = _nvidia_minor(address, proc)
    if minor is None:
        return []
    node = f"/dev/nvidia{minor}"
    found = []
    for folder in sorted(proc.iterdir()):
        if folder.name.isdecimal() and _has_open(folder / "fd", node):
            found.append(f"{_name_of(folder)} (pid {folder.name})")
    return found


def check_unused(card: Card, proc: Path = PROC, patience_seconds: float = 3.0) -> None:
    """Raises HypervisorError if a process of the host uses the card: unbinding it would hang.

    Blocking: who only looks at it for a moment, as monitoring does, is waited for.
    """
    deadline = time.monotonic() + patience_seconds
    while having := users(card.gpu.address, proc):
        if time.monotonic() > deadline:
            raise HypervisorError(
                f"{card.gpu} is in use by {', '.join(having)}: end them (of nvidia-persistenced: "
                f"nvidia-smi -i {card.gpu.address} -pm 0), as the driver lets go of it only then"
            )
        time.sleep(_POLL_SECONDS)


def _nvidia_minor(address: HostAddress, proc: Path) -> int | None:
    path = proc / "driver" / "nvidia" / "gpus" / str(address) / "information"
    with contextlib.suppress(OSError):
        if match := re.search(r"^Device Minor:\s*([0-9]+)", path.read_text(), re.MULTILINE):
            return int(match[1])
    return None


def _has_open(folder: Path, node: str) -> bool:
    with contextlib.suppress(OSError):  # it ended while it was looked at
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == node:
                    return True
    return False


def _name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return "a process"
