# SPDX-License-Identifier: Apache-2.0
"""What may be given whole to a VM, on hosts that are made up file by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.passthrough import card_at, check_unused, users
from sluice.hypervisor.pci_devices import HostAddress, SysfsPci

from .fake_sysfs import AUDIO, BRIDGE, NIC, USB, FakeProc, FakeSysfs

ADDRESS = HostAddress.parse("0000:65:00.0")


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


def given(sysfs: FakeSysfs) -> list[str]:
    return [str(address) for address in card_at(SysfsPci(sysfs.root), ADDRESS).addresses]


def refused(sysfs: FakeSysfs) -> str:
    with pytest.raises(HypervisorError) as refusal:
        card_at(SysfsPci(sysfs.root), ADDRESS)
    return str(refusal.value)


def test_a_card_alone_in_its_group_is_given(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:65:00.0", bar1_mib=262144)
    sysfs.add("0000:17:00.0", group="3")
    assert given(sysfs) == ["0000:65:00.0"]
    card = card_at(SysfsPci(sysfs.root), ADDRESS)
    assert (card.mmio64_mib, card.gpu.driver, card.gpu.iommu_group) == (262144, "nvidia", "15")


def test_every_function_goes_with_it_also_those_in_groups_of_their_own(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:65:00.1", AUDIO, driver="snd_hda_intel")
    sysfs.add("0000:65:00.2", USB, driver="xhci_hcd", group="16")
    sysfs.add("0000:65:00.0")
    assert given(sysfs) == ["0000:65:00.0", "0000:65:00.1", "0000:65:00.2"]


@pytest.mark.parametrize(
    ("class_code", "driver"), [(BRIDGE, "pcieport"), (BRIDGE, ""), (NIC, "vfio-pci")]
)
def test_bridges_and_what_is_given_away_already_may_share_its_group(
    sysfs: FakeSysfs, class_code: int, driver: str
) -> None:
    sysfs.add("0000:65:00.0")
    sysfs.add("0000:64:00.0", class_code, driver=driver)
    assert given(sysfs) == ["0000:65:00.0"]


@pytest.mark.parametrize("driver", ["ixgbe", "nvidia", ""])
def test_a_device_that_would_stay_on_the_host_is_named(sysfs: FakeSysfs, driver: str) -> None:
    sysfs.add("0000:65:00.0")
    sysfs.add("0000:66:00.1", NIC, driver=driver)
    said = refused(sysfs)
    assert said.startswith(f"0000:66:00.1 (network, 10de:2335, {'driver ' * bool(driver)}"), said
    assert "IOMMU group 15" in said
    assert "driverctl set-override 0000:66:00.1" in said


def test_a_neighbour_of_its_audio_is_looked_at_too(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:65:00.0")
    sysfs.add("0000:65:00.1", AUDIO, group="16")
    sysfs.add("0000:70:00.0", NIC, driver="mlx5_core", group="16")
    assert "0000:70:00.0" in refused(sysfs)


def test_without_an_iommu_it_says_what_to_switch_on(sysfs: FakeSysfs) -> None:
    sysfs.add("0000:65:00.0", group="")
    assert "intel_iommu=on" in refused(sysfs)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"class_code": NIC}, "is no GPU"),
        ({"is_virtual": True}, "virtual function"),
        ({"numvfs": 4}, "4 virtual function(s) enabled"),
    ],
)
def test_what_is_no_whole_gpu_is_refused(sysfs: FakeSysfs, how: dict[str, int], said: str) -> None:
    sysfs.add("0000:65:00.0", **how)  # type: ignore[arg-type]
    assert said in refused(sysfs)


def test_what_is_not_there_is_said(sysfs: FakeSysfs) -> None:
    assert "no PCI device 0000:65:00.0" in refused(sysfs)


@pytest.mark.parametrize(
    "text",
    [
        "", "65:00.0", "0000:65:00.8", "0000:65:20.0", "../../../etc", "0000:65:00.0/..",
        "0000:65:00.0'/><evil/>", "0000:65:00.0\n0", "0x0000:65:00.0", "z" * 500,
    ],
)  # fmt: skip
def test_what_is_no_address_becomes_no_path(text: str) -> None:
    with pytest.raises(HypervisorError, match="is no PCI address") as refusal:
        HostAddress.parse(text)
    assert len(str(refusal.value)) < 120


def test_addresses_are_written_in_one_way() -> None:
    assert str(HostAddress.parse("00000000:65:00.0")) == "0000:65:00.0"
    assert str(HostAddress.parse("0000:AF:1F.7")) == "0000:af:1f.7"
    assert str(HostAddress.parse("10000:e1:00.0")) == "10000:e1:00.0"


def test_who_has_it_open_is_named(sysfs: FakeSysfs, tmp_path: Path) -> None:
    sysfs.add("0000:65:00.0")
    card = card_at(SysfsPci(sysfs.root), ADDRESS)
    proc = FakeProc(tmp_path / "proc")
    assert users(ADDRESS, proc.root) == [], "no driver of NVIDIA's has it"
    proc.card("0000:65:00.0", 10)
    proc.process(7, "other", "/dev/nvidia1", "/dev/nvidiactl", "socket:[1]")
    check_unused(card, proc.root)
    proc.process(8, "nvidia-persiste", "/dev/null", "/dev/nvidia10")
    with pytest.raises(HypervisorError, match=r"in use by nvidia-persiste \(pid 8\): .*-pm 0"):
        check_unused(card, proc.root, patience_seconds=0)
