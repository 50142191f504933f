# SPDX-License-Identifier: Apache-2.0
"""A card goes through vfio-pci to a VM and back, behind an IOMMU, in a guest that has both.

The host of these tests is a guest with QEMU's emulated IOMMU, its card a virtio display controller:
what is real is all that Sluice deals with. A GPU of NVIDIA's and its driver are not. SLUICE_LONG=1
boots the VM too, which takes minutes, and has it release the card while it runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rigs.kvm import images, initramfs
from tests.rigs.kvm.rig import CHECKOUT, Guest, Rig

pytestmark = [pytest.mark.vm, pytest.mark.slow]

INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
echo inner is up >/dev/console
while :; do /bin/busybox sleep 1000; done
"""


@pytest.fixture
def outer(rig: Rig) -> Iterator[Guest]:
    devices = (
        "<video><model type='vga'/></video><video><model type='virtio'/></video>"
        "<iommu model='intel'/>"
    )
    text = rig.guest_xml("vfio-outer", mem_mib=1536, vcpus=2, devices=devices)
    domain = rig.connection.defineXML(text.replace("</cmdline>", " intel_iommu=on</cmdline>"))
    guest = Guest(rig, domain, rig.root / "console-vfio-outer.log")
    guest.start()
    guest.wait_ready(120)
    yield guest
    guest.undefine()


def test_a_card_goes_to_a_vm_and_comes_back_to_its_driver(rig: Rig, outer: Guest) -> None:
    boot = ""
    if os.environ.get("SLUICE_LONG"):
        prepared = images.prepare(rig.root.parent / "images", rig.progress)
        init, built = rig.root / "inner-init", rig.root / "inner-initramfs"
        init.write_text(INIT)
        initramfs.build(built, init, prepared.modules, "", ())
        boot = f"{prepared.kernel} {built}"
    outer.check("modprobe vfio-pci; mkdir -p /run/lv")
    done = outer.spawn(
        f"cd {CHECKOUT} && PYTHONPATH=python:. .venv/bin/python -m "
        f"tests.hypervisor.inside_vfio {boot}"
    ).wait(2400 if boot else 400)
    steps: dict[str, dict[str, Any]] = {
        line["step"]: line for line in map(json.loads, done.out.splitlines())
    }
    assert done.code == 0, (steps, done.err)
    assert steps["card"]["driver"] == "virtio-pci"
    assert "is no GPU" in steps["disk"]["refused"]
    given = {"live": True, "config": True, "driver": "vfio-pci"}
    assert given.items() <= steps["attached"].items()
    assert steps["card"]["group"] in steps["given"]["groups"]
    assert "bound to vfio-pci" in steps["given"]["missing"]
    assert "in domain inner already" in steps["other"]["refused"]
    assert "in domain inner still" in steps["held"]["refused"]
    back = {"live": False, "config": False, "driver": "virtio-pci"}
    assert back.items() <= steps["detached"].items()
    assert {**back, "config": True}.items() <= steps["next start"].items()
    assert given.items() <= steps["started with it"].items()
    assert "has not released the GPU" in steps["paused"]["refused"]
    assert {"live": True, "config": False}.items() <= steps["paused"].items()
    assert back.items() <= steps["destroyed"].items()
    assert steps["left behind"]["driver"] == "vfio-pci"
    assert steps["taken back"]["driver"] == "virtio-pci"
