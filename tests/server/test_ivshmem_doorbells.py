# SPDX-License-Identifier: Apache-2.0
"""What QEMU's ivshmem-doorbell device is given, as QEMU would ask for it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.region_file import RegionFiles
from sluice.server.guests.ivshmem_doorbells import IvshmemDoorbells

UUID = "11111111-2222-3333-4444-555555555555"
OWNER = RegionOwner(UUID, "guest")


@dataclass
class Host:
    """The doorbells of a host, its only region, and the bells that were told of."""

    folder: Path
    bells: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.doorbells = IvshmemDoorbells(self.add_bell)
        self.device_socket = RegionFiles("here", self.folder, self.folder / "run").server_socket(
            UUID
        )
        self.region = self.folder / "region"
        self.region.write_bytes(b"the region" + bytes(4086))

    def add_bell(self, uuid: str, descriptor: int) -> None:
        self.bells.append((uuid, os.dup(descriptor)))

    async def add(self) -> None:
        await self.doorbells.add(OWNER, self.region, self.device_socket)


@pytest.fixture
async def host(short_path: Path) -> AsyncIterator[Host]:
    made = Host(short_path)
    await made.add()
    yield made
    await made.doorbells.remove(UUID, made.device_socket)
    assert not made.device_socket.parent.exists()
    for _, bell in made.bells:
        os.close(bell)


class Device:
    """QEMU's side, as hw/misc/ivshmem.c reads it."""

    def __init__(self, device_socket: Path) -> None:
        self.connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connected.settimeout(10)
        self.connected.connect(str(device_socket))

    def hear(self) -> tuple[int, list[int]]:
        said, descriptors, _, _ = socket.recv_fds(self.connected, 8, 4)
        return (struct.unpack("<q", said)[0] if said else -99), list(descriptors)

    def set_up(self) -> tuple[int, int]:
        """The memory and the host's eventfd."""
        assert self.hear() == (0, [])  # the protocol's version
        own, none = self.hear()
        assert own == 1
        assert none == []
        found = []
        for number in (-1, 0):
            said, descriptors = self.hear()
            assert said == number
            found += descriptors
        memory, to_host = found
        return memory, to_host


async def device_of(host: Host) -> tuple[Device, tuple[int, int]]:
    device = await asyncio.to_thread(Device, host.device_socket)
    return device, await asyncio.to_thread(device.set_up)


async def test_a_device_gets_the_region_and_rings_its_host(host: Host) -> None:
    device, (memory, to_host) = await device_of(host)
    assert os.pread(memory, 10, 0) == b"the region"
    assert os.fstat(memory).st_ino == host.region.stat().st_ino
    [(uuid, bell)] = host.bells
    assert uuid == UUID
    os.eventfd_write(to_host, 1)
    assert os.eventfd_read(bell) == 1
    device.connected.settimeout(0.2)
    with pytest.raises(TimeoutError):  # an eventfd for interrupts would outlive the device in QEMU
        await asyncio.to_thread(device.hear)
    os.close(memory)
    os.close(to_host)
    device.connected.close()


async def test_only_its_account_comes_in(host: Host) -> None:
    assert stat.S_IMODE(host.device_socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(host.device_socket.stat().st_mode) == 0o600


async def test_each_start_of_the_guest_has_a_bell_of_its_own(host: Host) -> None:
    for starts in (1, 2, 3):
        device, descriptors = await device_of(host)
        assert len(host.bells) == starts
        os.eventfd_write(descriptors[1], starts)
        assert os.eventfd_read(host.bells[-1][1]) == starts
        for descriptor in descriptors:
            os.close(descriptor)
        device.connected.close()


async def test_whoever_says_something_is_not_answered(host: Host) -> None:
    device, descriptors = await device_of(host)
    device.connected.sendall(bytes(4096))
    again, more = await device_of(host)
    for descriptor in (*descriptors, *more):
        os.close(descriptor)
    device.connected.close()
    again.connected.close()


async def test_without_a_region_there_is_nothing_to_give(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.region.unlink()
    device = await asyncio.to_thread(Device, host.device_socket)
    assert await asyncio.to_thread(device.hear) == (-99, [])
    device.connected.close()
    assert "domain guest gets no region" in caplog.text
    assert not host.bells


async def test_a_server_that_comes_back_takes_the_place_of_the_old_one(host: Host) -> None:
    device, descriptors = await device_of(host)
    await host.doorbells.close()
    assert host.device_socket.exists()  # as after a crash
    await host.add()
    await host.add()  # once is enough
    again, more = await device_of(host)
    os.eventfd_write(descriptors[1], 1)  # who has his bell needs no server
    assert os.eventfd_read(host.bells[0][1]) == 1
    for descriptor in (*descriptors, *more):
        os.close(descriptor)
    device.connected.close()
    again.connected.close()
