# SPDX-License-Identifier: Apache-2.0
"""Whether a VM with passed-through GPUs can be a node, and if not, why, by name.

Used by pool_vms.py and the commands; plain data in, plain data out. The rules are VMware's for
GPUs with large BARs: 64-bit MMIO, a window of the next power of two above the cards' memory, and
all of the VM's memory reserved.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.hypervisor.vsphere.model import Host, HostGpu, PassedThrough, Vm

USE_MMIO, MMIO_SIZE = "pciPassthru.use64bitMMIO", "pciPassthru.64bitMMIOSizeGB"
MOST_GB = 1 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a VM is no node; `name` stays the same, `text` says what to do."""

    name: str
    text: str


def problems_of(vm: Vm, host: Host | None) -> list[Problem]:
    """Every reason; none: it can be a node."""
    found: list[Problem] = []
    if not vm.gpus:
        found.append(Problem("no-gpu", "no GPU is passed through to it"))
    if not vm.is_on:
        found.append(Problem("power", "it is powered off; power it on"))
    if vm.extra.get(USE_MMIO, "").upper() != "TRUE":
        found.append(Problem("mmio", f"{USE_MMIO} is not TRUE; set it in its advanced parameters"))
    elif problem := _mmio_size(vm, host):
        found.append(problem)
    if vm.reserved_mib < vm.memory_mib:
        found.append(
            Problem(
                "memory-reservation",
                f"{vm.reserved_mib} of {vm.memory_mib} MiB are reserved; reserve all guest memory",
            )
        )
    if host is not None:
        found += _cards(vm, host)
    return found


def mmio_gb_wanted(memory_mib: int) -> int:
    """The window for so much memory of cards: the next power of two above it, in GB."""
    gb = -(-memory_mib // 1024)
    return 1 << gb.bit_length()


def _mmio_size(vm: Vm, host: Host | None) -> Problem | None:
    text = vm.extra.get(MMIO_SIZE, "")
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    wanted = mmio_gb_wanted(sum(_memory_mib(device, host) for device in vm.gpus))
    if 0 < size <= MOST_GB and size >= wanted:
        return None
    return Problem("mmio-size", f"{MMIO_SIZE} is {text[:12] or 'not set'}; set it to {wanted}")


def _memory_mib(device: PassedThrough, host: Host | None) -> int:
    fitting = [gpu.memory_mib for gpu in (host.gpus if host else ()) if _fits(device, gpu)]
    return max(fitting, default=0)


def _fits(device: PassedThrough, gpu: HostGpu) -> bool:
    if device.pci_address:
        return device.pci_address == gpu.pci_address
    return any(device_id == gpu.device_id for _, device_id in device.allowed)


def _cards(vm: Vm, host: Host) -> list[Problem]:
    found = []
    for device in vm.gpus:
        fitting = [gpu for gpu in host.gpus if _fits(device, gpu)]
        which = device.pci_address or "a card of its kind"
        if not fitting:
            found.append(Problem("card-missing", f"host {host.name} has not {which}"))
        elif not any(gpu.is_active for gpu in fitting):
            text = f"{which} of host {host.name} is not in passthrough; toggle it there"
            found.append(Problem("card-inactive", text))
    return found
