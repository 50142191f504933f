# SPDX-License-Identifier: Apache-2.0
"""Everything that may happen to a VM, on a real libvirt: what the server is told of each."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import libvirt
import pytest

from sluice.hypervisor import channel_devices
from sluice.hypervisor.libvirt_host import live_document, persistent_document
from sluice.hypervisor.region_file import RegionFiles
from tests.rigs.kvm.rig import Guest, Rig

from .region_service import REQUEST, FakeRegions, do, serving, until

pytestmark = pytest.mark.vm

PANIC = "<panic model='isa'/>"


def boot(guest: Guest) -> None:
    guest.start()
    guest.wait_ready(120)


async def test_a_reset_is_the_end_of_every_program(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    async with serving(rig, regions, files):
        await do(channel_devices.attach, running.domain, REQUEST, files)
        await regions.told("add", running.uuid)
        await do(running.domain.reset)
        assert (await regions.told("stopped", running.uuid))[2] == "the VM rebooted"
        assert live_document(running.domain).region is not None  # type: ignore[union-attr]


async def test_a_killed_emulator_is_said_and_the_next_start_has_its_channel(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    async with serving(rig, regions, files):
        await do(channel_devices.attach, running.domain, REQUEST, files)
        await regions.told("add", running.uuid)
        os.kill(running.qemu_pid, signal.SIGKILL)
        assert (await regions.told("stopped", running.uuid))[2] in (
            "the VM crashed",
            "the VM's emulator failed",
        )
        assert files.path(running.uuid).exists()
        await do(running.start)
        await until(lambda: live_document(running.domain) is not None)
        assert live_document(running.domain).region is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("on_crash", ["preserve", "destroy", "restart"])
async def test_a_crashed_kernel_ends_every_program_whatever_becomes_of_its_vm(
    rig: Rig,
    regions: FakeRegions,
    files: RegionFiles,
    make_guest: Callable[..., Guest],
    on_crash: str,
) -> None:
    guest = make_guest(devices=PANIC, on_crash=on_crash)
    await do(boot, guest)
    async with serving(rig, regions, files):
        await do(channel_devices.attach, guest.domain, REQUEST, files)
        await regions.told("add", guest.uuid)
        # without this, the rig's guests reboot from a panic by themselves
        await do(guest.check, "echo 0 >/proc/sys/kernel/panic; modprobe pvpanic-mmio || true")
        await do(guest.check, "insmod $(find /lib/modules -name 'pvpanic.ko*') 2>/dev/null; true")
        with contextlib.suppress(libvirt.libvirtError):  # the agent may not live to answer
            await do(guest.spawn, "sleep 0.2; echo c >/proc/sysrq-trigger")
        stopped = await regions.told("stopped", guest.uuid)
        assert stopped[2] in ("the guest's kernel crashed", "the VM crashed"), stopped
        if on_crash == "preserve":
            assert guest.active
        assert files.path(guest.uuid).exists()


async def test_a_renamed_domain_keeps_its_channel_under_its_new_name(
    rig: Rig, regions: FakeRegions, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    async with serving(rig, regions, files):
        await do(channel_devices.attach, guest.domain, REQUEST, files)
        await regions.told("add", guest.uuid, guest.name)
        inode = files.path(guest.uuid).stat().st_ino
        await do(guest.domain.rename, f"{guest.name}-new", 0)
        await regions.told("add", guest.uuid, f"{guest.name}-new")
        assert all(call[0] != "remove" for call in regions.calls)
        assert files.path(guest.uuid).stat().st_ino == inode
        assert persistent_document(guest.domain).request is not None


async def test_a_long_pause_with_a_jumping_clock_is_no_end(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    """A suspended host as its guest sees it; what its sessions do is in tests/withstand."""
    async with serving(rig, regions, files, reconcile_seconds=0.2):
        await do(channel_devices.attach, running.domain, REQUEST, files)
        await regions.told("add", running.uuid)
        await do(running.pause)
        await regions.told("paused", running.uuid)
        await do(running.resume)
        await do(running.check, "date -s '+8 hours'")
        await regions.told("resumed", running.uuid)
        await do(running.check, "date -s '-2 days'")
        assert regions.calls == []


async def test_a_guest_that_ended_while_no_server_ran_has_no_session_left(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    async with serving(rig, regions, files):
        await do(channel_devices.attach, running.domain, REQUEST, files)
        await regions.told("add", running.uuid)
    await do(running.destroy)
    await do(running.start)
    regions.calls.clear()
    async with serving(rig, regions, files):
        await regions.told("add", running.uuid)
        assert "no server ran" in (await regions.told("stopped", running.uuid))[2]
    regions.calls.clear()
    async with serving(rig, regions, files):
        await regions.told("add", running.uuid)
        assert regions.calls == [], "the same run: its sessions go on"
