# SPDX-License-Identifier: Apache-2.0
"""Accepts connections and runs one task for each; what the Unix socket and the data port share.

Used by unix_door, tcp_door and vm_door. It owns the listening socket and the tasks. It promises
never to spin: where no more descriptors or tasks are to be had it pauses, and says so once per
pause; and that no peer (an address, where the door tells them apart) takes the others' places.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

log = logging.getLogger("sluice.server")

ACCEPTS_AT_ONCE = 32
PAUSE_SECONDS = 0.5
COMPLAIN_EVERY_SECONDS = 10.0

Serve = Callable[[socket.socket], Awaitable[None]]


class Listener:
    """A listening socket whose connections are served by `serve`, each in a task of its own.

    `most` are served at a time, of one address no more than `most_of_address`: others of it are
    closed unread. `address_of` reads it from what accept() says, where that is no IP address.
    """

    def __init__(
        self,
        listening: socket.socket,
        name: str,
        most: int,
        serve: Serve,
        *,
        most_of_address: int | None = None,
        address_of: Callable[[Any], str] | None = None,
    ) -> None:
        self._address_of = address_of or _owner_of
        listening.setblocking(False)
        self._socket = listening
        self._name = name
        self._most = most
        self._most_of_address = most_of_address
        self._served: Counter[str] = Counter()  # by address
        self._complained = -COMPLAIN_EVERY_SECONDS
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._resume()

    async def close(self) -> None:
        """Stops listening and cancels what is being served."""
        self._open = False
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._socket, self._accept)

    def _pause(self, why: str) -> None:
        log.error("%s takes no connection for %g s: %s", self._name, PAUSE_SECONDS, why)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if len(self._tasks) >= self._most:
                self._pause(f"{self._most} are being served")
                return
            try:
                connected, peer = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(str(error.strerror))
                return
            address = self._address_of(peer) if self._most_of_address else ""
            if self._most_of_address and self._served[address] >= self._most_of_address:
                connected.close()
                self._complain(address)
                continue
            connected.setblocking(False)
            self._served[address] += 1
            task = asyncio.create_task(self._run(connected))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, address))

    def _done(self, address: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._served[address] -= 1
        if not self._served[address]:
            del self._served[address]

    def _complain(self, address: str) -> None:
        if time.monotonic() - self._complained >= COMPLAIN_EVERY_SECONDS:
            self._complained = time.monotonic()
            most = self._most_of_address
            log.warning("%s: %s has %s places already, and gets no more", self._name, address, most)

    async def _run(self, connected: socket.socket) -> None:
        try:
            with connected:
                await self._serve(connected)
        except Exception:
            log.exception("%s: serving a connection failed", self._name)


def _owner_of(peer: tuple[str, Any]) -> str:
    """The address, and of IPv6 the network of 64 bits that a single machine has."""
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if address.version == 4 or address.ipv4_mapped:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
