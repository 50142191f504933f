# SPDX-License-Identifier: Apache-2.0
"""Guests that libvirt can save and migrate, with the bundle: nothing in them is the host's.

Used by test_moves.py. They have no udev and no Python, so what the rule and `sluice run` do is done
by their scripts from here.
"""

from __future__ import annotations

import io
import struct
import subprocess
import tarfile
from pathlib import Path

from .guests import BUNDLE, Fleet, Guest
from .prompted import PROMPTED

#: `sluice run CMD` for a guest without Python.
_RUN = b'#!/bin/sh\nshift\nexec /root/sluice-guest/bin/sluice-run "$@"\n'
_TAKE = """
for try in $(seq 600); do
  for device in /sys/bus/pci/devices/*; do
    [ "$(cat $device/device)" = 0x1110 ] || continue
    sh /root/sluice-guest/libexec/sluice-pci-setup $device 2>/dev/null
    [ "$(stat -c %a $device/resource2)" = 660 ] && exit 0
  done
  sleep 0.1
done
exit 1
"""
_GENERATION_OFFSET = 32  # of a region's header (native/channel/slot.h)


def boot_alone(fleet: Fleet, name: str, folder: Path) -> Guest:
    """A running guest with the bundle and the program, and a disk, which brings them in."""
    guest = fleet.rig.define_guest(
        name,
        mem_mib=256,
        vcpus=1,
        alone=True,
        devices=f"<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none'/>"
        f"<source file='{_disk(folder / name)}'/><target dev='vda' bus='virtio'/></disk>",
    )
    fleet.adopt(guest)
    guest.start()
    guest.wait_ready(120)
    guest.check("cd / && tar xf /dev/vda", timeout=120)
    return guest


def _disk(base: Path) -> Path:
    """A qcow2 image (libvirt takes snapshots of no other) with an archive for the guest's root."""
    raw, disk = base.with_suffix(".tar"), base.with_suffix(".qcow2")
    with tarfile.open(BUNDLE) as bundle, tarfile.open(raw, "w") as archive:
        for member in bundle.getmembers():
            content = bundle.extractfile(member) if member.isfile() else None
            member.name = f"root/{member.name}"
            archive.addfile(member, content)
        archive.add(PROMPTED, "root/prompted")
        run = tarfile.TarInfo("usr/local/bin/sluice")
        run.mode, run.size = 0o755, len(_RUN)
        archive.addfile(run, io.BytesIO(_RUN))
    command = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(disk)]
    subprocess.run(command, check=True)
    raw.unlink()
    return disk


def take_channel(guest: Guest) -> None:
    """Until the guest has its channel."""
    guest.check(_TAKE, timeout=120)


def generation(region: Path) -> int:
    """How often the region has been begun anew."""
    with region.open("rb") as file:
        file.seek(_GENERATION_OFFSET)
        (found,) = struct.unpack("<I", file.read(4))
        return int(found)
