# SPDX-License-Identifier: Apache-2.0
"""libvirtd runs the hook: the server hears of every start and end, and without it none is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from sluice.hypervisor import channel_devices
from sluice.hypervisor.hook_commands import FILE
from sluice.hypervisor.region_file import RegionFiles
from sluice.server.listeners.vm_socket import VmListener, make_regions, render
from tests.rigs.kvm.rig import Guest, Rig

from .conftest import VmCommand
from .region_service import REQUEST, FakeRegions, do, serving, until

pytestmark = pytest.mark.vm


@pytest.fixture
def hooked(rig: Rig, vm: VmCommand) -> Iterator[Path]:
    """libvirtd with our hook, beside one of somebody else."""
    folder = rig.root / "etc" / "hooks"
    other = folder / "qemu.d" / "90-other"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text(f"#!/bin/sh\ncat >/dev/null\necho $2 $3 >>{rig.root}/other-hook\n")
    other.chmod(0o755)
    done = vm("hook", "install", "--folder", str(folder))
    assert done.code == 0, done.err
    rig.restart_daemon()
    yield rig.root / "other-hook"
    assert vm("hook", "remove", "--folder", str(folder)).code == 0
    assert not (folder / FILE).exists()
    other.unlink()
    rig.restart_daemon()


@pytest.fixture
async def looked(rig: Rig, vm: VmCommand) -> AsyncIterator[list[str]]:
    """The server's door; what it was told to look at."""
    found: list[str] = []
    vm.files.run_folder.mkdir(parents=True, exist_ok=True)
    door = VmListener(
        vm.files.run_folder,
        group="no-such-group",
        region_mib=64,
        slots=2,
        prepare=make_regions(rig.uri, vm.files),
        render=render,
        sessions=lambda _: [],
        look=found.append,
        unplug=lambda uuid, seconds: True,
        plug=lambda uuid: [],
        ready=lambda uuid: None,
    )
    door.open()
    yield found
    await door.close()


def filled(files: RegionFiles, guest: Guest) -> Path:
    """Its region, with something in it."""
    path = files.path(guest.uuid)
    with path.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"secret" * 100)
    return path


async def test_the_server_hears_of_every_start_and_end(
    vm: VmCommand,
    make_guest: Callable[..., Guest],
    hooked: Path,
    looked: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "sluice.server")
    guest, stranger = make_guest(), make_guest("-stranger")
    await do(channel_devices.attach, guest.domain, REQUEST, vm.files)
    for each in (guest, stranger):
        await do(each.start)
        await do(each.destroy)
    for words in ("prepare begin", "start begin", "started begin", "stopped end", "release end"):
        await until(lambda words=words: f"({guest.uuid}): {words}" in caplog.text)  # type: ignore[misc]
    assert set(looked) == {guest.uuid}
    assert "release end" in await do(hooked.read_text), "the other hook runs as before"


async def test_without_a_server_the_region_is_cleaned_and_the_next_one_knows(
    rig: Rig, vm: VmCommand, make_guest: Callable[..., Guest], hooked: Path
) -> None:
    guest = make_guest()
    regions = FakeRegions()
    await do(channel_devices.attach, guest.domain, REQUEST, vm.files)
    await do(guest.start)
    async with serving(rig, regions, vm.files):
        await regions.told("add", guest.uuid)
    region = filled(vm.files, guest)
    await do(guest.destroy)
    assert region.stat().st_blocks == 0, "nothing of the guest is left in this host's memory"
    await do(guest.start)
    async with serving(rig, regions, vm.files):
        await regions.told("add", guest.uuid)
        assert "no server ran" in (await regions.told("stopped", guest.uuid))[2]


async def test_a_hook_that_breaks_fails_no_start(
    rig: Rig, vm: VmCommand, make_guest: Callable[..., Guest], hooked: Path
) -> None:
    guest = make_guest()
    await do(channel_devices.attach, guest.domain, REQUEST, vm.files)
    vm.files.run_folder.joinpath("ended").write_text("a file where the hook wants a folder")
    await do(guest.start)
    await do(guest.destroy)
    assert not guest.active
