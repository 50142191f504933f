# SPDX-License-Identifier: Apache-2.0
"""Channel devices that users cannot use are named, with what sets them right."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from sluice.guest_runtime.device_check import check_devices
from tests.support.findings_of import bad, noted, only_bad

OWN_GROUP = grp.getgrgid(os.getegid()).gr_name
SLUICE_CID = 0x53400001


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """A guest with one good channel of each kind."""
    device = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1af4\n")
    (device / "device").write_text("0x1110\n")
    (device / "resource2").write_bytes(bytes(1 << 20))
    (device / "resource2").chmod(0o660)
    rules = tmp_path / "etc/udev/rules.d"
    rules.mkdir(parents=True)
    (rules / "70-sluice.rules").touch()
    vsock = tmp_path / "dev/vsock"
    vsock.parent.mkdir()
    vsock.touch(0o666)
    vsock.chmod(0o666)
    return tmp_path


def cid(_: Path) -> int:
    return SLUICE_CID


def resource(guest: Path) -> Path:
    return guest / "sys/bus/pci/devices/0000:03:00.0/resource2"


def test_a_good_guest_is_good(guest: Path) -> None:
    found = check_devices(guest, OWN_GROUP, cid)
    assert not bad(found)
    assert len(found) == 3


def test_a_machine_without_channels_is_good(tmp_path: Path) -> None:
    assert not bad(check_devices(tmp_path, OWN_GROUP, lambda _: None))


def test_a_missing_rule_is_named(guest: Path) -> None:
    (guest / "etc/udev/rules.d/70-sluice.rules").unlink()
    only_bad(check_devices(guest, OWN_GROUP, cid), "70-sluice.rules", "install.sh")


def test_a_channel_without_memory_is_named(guest: Path) -> None:
    resource(guest).unlink()
    only_bad(check_devices(guest, OWN_GROUP, cid), "0000:03:00.0", "sluice-pci-setup")


def test_a_channel_that_its_group_cannot_open_is_named(guest: Path) -> None:
    resource(guest).chmod(0o600)
    only_bad(check_devices(guest, OWN_GROUP, cid), "0600", "udevadm trigger")
    resource(guest).chmod(0o660)
    only_bad(check_devices(guest, "another", cid), OWN_GROUP, "chgrp another")


def test_a_channel_that_is_everybodys_is_noted(guest: Path) -> None:
    resource(guest).chmod(0o666)
    noted(check_devices(guest, OWN_GROUP, cid), "0666")


def test_vsock_that_users_cannot_use_is_named(guest: Path) -> None:
    (guest / "dev/vsock").chmod(0o600)
    only_bad(check_devices(guest, OWN_GROUP, cid), "0600", "chmod 666")
    assert not bad(check_devices(guest, OWN_GROUP, lambda _: 3)), "another's vsock is not ours"
    noted(check_devices(guest, OWN_GROUP, lambda _: None), "as root")


def test_a_vsock_device_without_its_driver_is_named(guest: Path) -> None:
    (guest / "dev/vsock").unlink()
    assert not bad(check_devices(guest, OWN_GROUP, lambda _: None))
    virtio = guest / "sys/bus/virtio/devices/virtio3"
    virtio.mkdir(parents=True)
    (virtio / "device").write_text("0x0013\n")
    only_bad(check_devices(guest, OWN_GROUP, lambda _: None), "modprobe vmw_vsock_virtio")


def test_rubbish_in_sysfs_is_no_device(guest: Path) -> None:
    (guest / "sys/bus/pci/devices/0000:03:00.0/vendor").write_bytes(b"\xff\xfe")
    assert not bad(check_devices(guest, OWN_GROUP, cid))
