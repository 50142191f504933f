# SPDX-License-Identifier: Apache-2.0
"""Accepts connections and runs one task for each; what the Unix socket and the data port share.

Used by listeners.unix_socket, listeners.data_port and listeners.vm_socket. It owns the listening
socket and the tasks. It promises never to spin: where no more descriptors or tasks are to be had it
pauses, and says so; and that no owner (an address, a user, a guest, where the listener tells them
apart) takes the others' places.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sluice.config.peer_lines import SERVER as PEERS
from sluice.config.places import Places, owner_of_address

ACCEPTS_AT_ONCE = 32
PAUSE_SECONDS = 0.5

Serve = Callable[[socket.socket], Awaitable[None]]
#: Whose a connection is, by it and by what accept() says of its other end; raises OSError.
OwnerOf = Callable[[socket.socket, Any], str]


class Listener:
    """A listening socket whose connections are served by `serve`, each in a task of its own.

    `most` are served at a time, of one owner no more than `most_of_owner` and than are still free:
    others of it are told by `turn_away`, which must not block, and closed unread. `privileged` may
    have the last `kept` places.
    """

    def __init__(
        self,
        listening: socket.socket,
        name: str,
        most: int,
        serve: Serve,
        *,
        most_of_owner: int | None = None,
        owner_of: OwnerOf | None = None,
        turn_away: Callable[[socket.socket, str], None] | None = None,
        privileged: str = "",
        kept: int = 0,
        places: Places | None = None,
    ) -> None:
        """`places`: those that it shares with other listeners, instead of some of its own."""
        self._places = Places(most, most_of_owner, kept=kept) if places is None else places
        self._tells_apart = places is not None or most_of_owner is not None
        self._owner_of = owner_of or _by_address
        self._turn_away = turn_away
        self._privileged = privileged
        listening.setblocking(False)
        self._socket = listening
        self._name = name
        self._most = most
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
        text = "%s takes no connection for %g s: %s"
        PEERS.error("listener: full", self._name, text, self._name, PAUSE_SECONDS, why)
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
            try:
                owner = self._owner_of(connected, peer) if self._tells_apart else ""
            except OSError:  # it has left again
                connected.close()
                continue
            connected.setblocking(False)
            if self._places.take(owner, privileged=bool(owner) and owner == self._privileged):
                self._refuse(connected, owner)
                continue
            task = asyncio.create_task(self._run(connected, owner))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, owner))

    def _done(self, owner: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.give_back(owner)

    def _refuse(self, connected: socket.socket, owner: str) -> None:
        why = (
            f"{owner} has {self._places.of(owner)} of the {self._most} places of {self._name}, "
            "and gets no more"
        )
        with connected, contextlib.suppress(OSError):
            if self._turn_away:
                self._turn_away(connected, why)
        PEERS.warning("listener: no place", owner, "%s", why)

    async def _run(self, connected: socket.socket, owner: str) -> None:
        try:
            with connected:
                await self._serve(connected)
        except Exception:
            text = "%s: serving a connection failed"
            PEERS.exception("serving a connection failed", owner or self._name, text, self._name)


def _by_address(_: socket.socket, peer: tuple[str, Any]) -> str:
    return owner_of_address(peer[0])


def uid_of(connected: socket.socket, _: Any = None) -> str:
    """Whose a connection to a Unix socket is: the user who connected, as the kernel says."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return f"uid {int.from_bytes(credentials[4:8], 'little')}"
