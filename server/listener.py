# SPDX-License-Identifier: Apache-2.0
"""Accepts connections and runs one task for each; what the Unix socket and the data port share.

Used by unix_door and tcp_door. It owns the listening socket and the tasks. It promises never to
spin: where no more descriptors or tasks are to be had it pauses, and says so once per pause.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

log = logging.getLogger("sluice.server")

ACCEPTS_AT_ONCE = 32
PAUSE_SECONDS = 0.5

Serve = Callable[[socket.socket], Awaitable[None]]


class Listener:
    """A listening socket whose connections are served by `serve`, each in a task of its own."""

    def __init__(self, listening: socket.socket, name: str, most: int, serve: Serve) -> None:
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
        log.error("%s takes no connection for %g s: %s", self._name, PAUSE_SECONDS, why)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if len(self._tasks) >= self._most:
                self._pause(f"{self._most} are being served")
                return
            try:
                connected, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(str(error.strerror))
                return
            connected.setblocking(False)
            task = asyncio.create_task(self._run(connected))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, connected: socket.socket) -> None:
        try:
            with connected:
                await self._serve(connected)
        except Exception:
            log.exception("%s: serving a connection failed", self._name)
