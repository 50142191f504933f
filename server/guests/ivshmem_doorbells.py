# SPDX-License-Identifier: Apache-2.0
"""Gives guests' QEMU their regions where the device is ivshmem-doorbell, with a bell beside it.

Called by guests.channels for domains that ask for one. QEMU connects to its domain's socket once,
when the device is made, and gets the region's file and an eventfd (QEMU, docs/specs/ivshmem-spec,
"The server"): this host is peer 0, the guest peer 1. What the guest writes to its doorbell register
comes out of that eventfd, which the doorbell process listens to. Who may connect to the socket, the
account of QEMU, may map the region as well: the socket gives away nothing more. A guest that runs
needs nothing of this again, so the server may come and go.

The guest gets no eventfd of its own, which would interrupt it: nobody would write to it, and QEMU
(7.2 and later, hw/misc/ivshmem.c) goes on watching its number when the device was unplugged. It
reads what it has freed, and dies with the VM, once another file has that number.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.region_file import open_region
from sluice.server.guests.foreign_folders import given_socket, own_folder
from sluice.server.listeners.accepting import Listener

log = logging.getLogger("sluice.server")

PROTOCOL_VERSION = 0
HOST, GUEST = 0, 1
MEMORY = -1
#: QEMU has one connection; another one may still be ending.
MOST_CONNECTIONS = 4

#: Takes a domain and a descriptor, of which it makes a copy.
AddBell = Callable[[str, int], None]


class IvshmemDoorbells:
    """Every domain of this host whose region comes with a doorbell register."""

    def __init__(self, add_bell: AddBell) -> None:
        self._add_bell = add_bell
        self._listeners: dict[str, Listener] = {}

    async def add(self, owner: RegionOwner, path: Path, device_socket: Path) -> None:
        """Listens at `device_socket` for QEMU, which gets the file at `path`; raises OSError."""
        if owner.uuid in self._listeners:
            return
        # nobody but us puts anything beside the socket: QEMU only has to reach it
        own_folder(device_socket.parent.parent, 0o755)
        own_folder(device_socket.parent, 0o711 if owner.account else 0o700)
        listening = given_socket(device_socket, owner.account, MOST_CONNECTIONS)

        async def serve(connected: socket.socket) -> None:
            await self._serve(owner, path, connected)

        name = f"the ivshmem server of domain {owner.name}"
        self._listeners[owner.uuid] = Listener(listening, name, MOST_CONNECTIONS, serve)

    async def remove(self, uuid: str, device_socket: Path) -> None:
        """Listens no more."""
        listener = self._listeners.pop(uuid, None)
        if listener is not None:
            await listener.close()
        await asyncio.to_thread(shutil.rmtree, device_socket.parent, True)

    async def close(self) -> None:
        """The server stops; guests keep what they were given."""
        for listener in self._listeners.values():
            await listener.close()
        self._listeners.clear()

    async def _serve(self, owner: RegionOwner, path: Path, connected: socket.socket) -> None:
        """Until QEMU ends: it takes a connection that ends for nothing in particular."""
        try:
            memory = open_region(path, owner.account)
        except (OSError, HypervisorError) as error:
            log.error("domain %s gets no region: %s", owner.name, error)
            return
        to_host = os.eventfd(0)
        try:
            _say(connected, PROTOCOL_VERSION)
            _say(connected, GUEST)
            _say(connected, MEMORY, memory)
            _say(connected, HOST, to_host)
            self._add_bell(owner.uuid, to_host)
        except OSError as error:
            log.warning("domain %s took no region: %s", owner.name, error.strerror)
            return
        finally:
            os.close(memory)
            os.close(to_host)
        log.info("domain %s: its device has the region and a doorbell", owner.name)
        # it has nothing to say
        while await asyncio.get_running_loop().sock_recv(connected, 64):
            await asyncio.sleep(1)


def _say(connected: socket.socket, number: int, *descriptors: int) -> None:
    socket.send_fds(connected, [struct.pack("<q", number)], descriptors)
