# SPDX-License-Identifier: Apache-2.0
"""A socket of this host on which one line of JSON is a request and one the answer, then it closes.

Used by listeners.vm_socket and claims.listener. Only root reaches it, and whoever `let_in` lets in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sluice.config.peer_lines import SERVER as PEERS
from sluice.server.listeners.accepting import Listener, uid_of

MOST_BYTES = 64 << 10
MOST_CONNECTIONS = 256
REQUEST_SECONDS = 5.0

#: Answers a request that a connection brought.
Answer = Callable[[bytes, socket.socket], Awaitable[dict[str, Any]]]


class JsonLineListener:
    """One such socket."""

    def __init__(
        self,
        path: Path,
        name: str,
        answer: Answer,
        refusals: tuple[type[Exception], ...],
        let_in: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        """What `answer` raises of `refusals` is the answer, as `error`, and a line of the log that
        calls the socket `name`. `let_in` is called when the socket is there; `options` are
        Listener's.
        """
        self.path = path
        self._name = name
        self._answer = answer
        self._refusals = refusals
        self._let_in = let_in
        self._options = options
        self._listener: Listener | None = None

    def open(self) -> None:
        """Begins to listen; raises OSError."""
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listening.bind(str(self.path))
            self._let_in()
            listening.listen(64)
        except OSError:
            listening.close()
            raise
        finally:
            os.umask(before)
        self._listener = Listener(
            listening,
            str(self.path),
            MOST_CONNECTIONS,
            self._serve,
            owner_of=uid_of,
            **self._options,
        )

    async def close(self) -> None:
        """Stops listening."""
        if self._listener:
            self.path.unlink(missing_ok=True)
            await self._listener.close()
            self._listener = None

    async def _serve(self, connected: socket.socket) -> None:
        try:
            line = await asyncio.wait_for(_line(connected), REQUEST_SECONDS)
        except TimeoutError:
            return
        if line is None:
            return
        try:
            answer = await self._answer(line, connected)
        except self._refusals as error:
            text = "%s: refused: %s"
            PEERS.warning(self._name, uid_of(connected), text, self.path.name, error)
            answer = {"error": str(error)}
        with contextlib.suppress(OSError, TimeoutError):
            loop = asyncio.get_running_loop()
            said = loop.sock_sendall(connected, json.dumps(answer).encode() + b"\n")
            await asyncio.wait_for(said, REQUEST_SECONDS)


async def _line(connected: socket.socket) -> bytes | None:
    """A line, or None where none came."""
    loop = asyncio.get_running_loop()
    found = b""
    while b"\n" not in found:
        piece = await loop.sock_recv(connected, 4096)
        found += piece
        if not piece or len(found) > MOST_BYTES:
            return None
    return found.partition(b"\n")[0]
