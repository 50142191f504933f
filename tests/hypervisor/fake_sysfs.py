# SPDX-License-Identifier: Apache-2.0
"""A sysfs and a /proc of a host with GPUs, for tests on machines without GPU or IOMMU."""

from __future__ import annotations

from pathlib import Path

GPU, AUDIO, USB, BRIDGE, NIC = 0x030200, 0x040300, 0x0C0330, 0x060400, 0x020000


class FakeSysfs:
    """As much of sysfs as a card that is given to a VM is looked up in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)
        (root / "bus/pci/drivers").mkdir(parents=True)

    def add(
        self,
        address: str,
        class_code: int = GPU,
        *,
        driver: str = "nvidia",
        group: str = "15",
        bar1_mib: int = 0,
        numvfs: int = 0,
        is_virtual: bool = False,
    ) -> None:
        folder = self.root / "bus/pci/devices" / address
        folder.mkdir()
        (folder / "vendor").write_text("0x10de\n")
        (folder / "device").write_text("0x2335\n")
        (folder / "class").write_text(f"{class_code:#08x}\n")
        (folder / "sriov_numvfs").write_text(f"{numvfs}\n")
        bars = ["0x00000000c4000000 0x00000000c4ffffff 0x0000000000040200"]
        if bar1_mib:
            bars.append(f"{1 << 44:#x} {(1 << 44) + (bar1_mib << 20) - 1:#x} 0x000000000014220c")
        (folder / "resource").write_text("\n".join(bars) + "\n")
        if is_virtual:
            (folder / "physfn").symlink_to("../0000:65:00.0")
        if group:
            members = self.root / "kernel/iommu_groups" / group / "devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / address).symlink_to(folder)
            (folder / "iommu_group").symlink_to(members.parent)
        self.bind(address, driver)

    def bind(self, address: str, driver: str) -> None:
        """Another driver has it from now on; empty: none."""
        link = self.root / "bus/pci/devices" / address / "driver"
        link.unlink(missing_ok=True)
        if driver:
            target = self.root / "bus/pci/drivers" / driver
            target.mkdir(exist_ok=True)
            link.symlink_to(target)


class FakeProc:
    """Processes, and which of NVIDIA's device nodes is which card's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def card(self, address: str, minor: int) -> None:
        folder = self.root / "driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\n")

    def process(self, pid: int, name: str, *opened: str) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        for number, path in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(path)
