# SPDX-License-Identifier: Apache-2.0
"""How REST and the console send what is small."""

from __future__ import annotations

import logging
import socket
from typing import Any

from sluice.config.http_server import ConnectionLimits, GuardedServer
from sluice.config.peer_lines import PeerLines


async def test_small_answers_do_not_wait_for_acknowledgements() -> None:
    """Its connections send without Nagle's algorithm, which holds the second piece back."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    server = GuardedServer(
        "the server", app, ConnectionLimits(8, 4), PeerLines(logging.getLogger("test"))
    )
    port = server.listen("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)):
        server.listening.setblocking(True)
        connected, _ = server.listening.accept()
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connected.close()
    server.listening.close()
