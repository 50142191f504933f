# SPDX-License-Identifier: Apache-2.0
"""Says whether a guest's channel devices are there and whom they let in: ivshmem, vsock.

Used by doctor.py. `sluice check` asks whether the one who runs it may use a channel; this says also
whether others may, what sets their files up, and which module is missing. `root` is where /sys,
/dev and /etc are looked for.
"""

from __future__ import annotations

import grp
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Optional

from .channels import SLUICE_CIDS, local_cid
from .findings import Finding, bad, note, ok
from .machine_check import GROUP

RULE = "70-sluice.rules"
RULE_FOLDERS = ("etc/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d", "run/udev/rules.d")
_IVSHMEM = ("0x1af4", "0x1110")
_VIRTIO_VSOCK = "0x0013"  # linux/virtio_ids.h
_ROOT = Path("/")


def ivshmem_devices(root: Path = _ROOT) -> list[Path]:
    """The ivshmem devices that the kernel shows."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            ids = tuple((device / name).read_text().strip() for name in ("vendor", "device"))
        except (OSError, UnicodeDecodeError):
            continue
        if ids == _IVSHMEM:
            found.append(device)
    return found


def check_devices(
    root: Path = _ROOT,
    group: str = GROUP,
    cid_of: Callable[[Path], Optional[int]] = local_cid,  # noqa: UP045 - Python 3.9
) -> list[Finding]:
    """Every channel device of this machine; `cid_of` asks /dev/vsock."""
    found = []
    devices = ivshmem_devices(root)
    if devices:
        found.append(_rule(root))
    for device in devices:
        found.append(_region(device, group))
    found += _vsock(root, cid_of(root / "dev/vsock"))
    return found or [ok("channel devices", "none: this machine is no guest with a channel")]


def _rule(root: Path) -> Finding:
    for folder in RULE_FOLDERS:
        path = root / folder / RULE
        if path.exists():
            return ok("udev rule", str(path))
    return bad(
        "udev rule",
        f"no {RULE}: a channel that is plugged in belongs to root alone",
        "install the guest bundle again (install.sh), or the package sluice-guest",
    )


def _region(device: Path, group: str) -> Finding:
    resource = device / "resource2"
    try:
        about = resource.stat()
    except OSError:
        return bad(
            "ivshmem",
            f"{device.name} has no memory: the PCI window had no room for it",
            f"as root: /opt/sluice/libexec/sluice-pci-setup {device}, or restart the guest",
        )
    try:
        owner = grp.getgrgid(about.st_gid).gr_name
    except KeyError:
        owner = str(about.st_gid)
    mode = stat.S_IMODE(about.st_mode)
    for_group = owner == group and mode & 0o060 == 0o060
    if mode & 0o006 == 0o006:
        return note(
            "ivshmem",
            f"{resource} is open to everybody ({mode:04o})",
            f"chgrp {group} and chmod 660, which the bundle's udev rule does",
        )
    if not for_group:
        return bad(
            "ivshmem",
            f"{resource} is {owner}'s with mode {mode:04o}: programs of users cannot open it",
            f"udevadm trigger --subsystem-match=pci, or as root: chgrp {group} and chmod 660",
        )
    return ok("ivshmem", f"{device.name}: {about.st_size >> 20} MiB, open to the group {group}")


def _vsock(root: Path, cid: Optional[int]) -> list[Finding]:  # noqa: UP045
    device = root / "dev/vsock"
    has_virtio = any(
        _word(each) == _VIRTIO_VSOCK for each in (root / "sys/bus/virtio/devices").glob("*/device")
    )
    if device.exists():
        mode = stat.S_IMODE(device.stat().st_mode)
        if cid is None:
            return [
                note(
                    "vsock",
                    f"{device} does not tell you this machine's CID: its mode is {mode:04o}",
                    "run this as root to know whether the device is Sluice's",
                )
            ]
        if cid not in SLUICE_CIDS:
            return [ok("vsock", f"CID {cid}, which is none of Sluice's")]
        if mode & 0o004 == 0:
            return [
                bad(
                    "vsock",
                    f"{device} has mode {mode:04o}: users' programs cannot ask for this machine's "
                    "CID",
                    f"chmod 666 {device}, which udev's own rules do",
                )
            ]
        return [ok("vsock", f"CID {cid}")]
    if has_virtio:
        return [
            bad(
                "vsock",
                "the machine has a vsock device and the kernel no driver for it",
                "modprobe vmw_vsock_virtio_transport, and name it in /etc/modules-load.d",
            )
        ]
    return []


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
