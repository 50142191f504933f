# SPDX-License-Identifier: Apache-2.0
"""What a relay says of its connection is heard, however soon after its start it says it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from sluice.protocol.control import RELAY_SENT
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerFiles, WorkerRecord
from sluice.server.workers.worker import Worker


@pytest.mark.parametrize("followed", ["before", "afterwards"])
async def test_a_connection_that_is_lost_at_once_is_no_secret(
    short_path: Path, followed: str
) -> None:
    """Both messages lie in the socket before the server comes to read the first."""
    files = WorkerFiles(short_path, "relays", RELAY_SENT)
    record = WorkerRecord("0123456789ab", os.getpid(), 0, "", [], "")
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(files.socket_path(record.id)))
        listener.listen()
        relay = Worker(record, os.pidfd_open(os.getpid()), files)
        relay.connect()
        control, _ = listener.accept()
        with control:
            if followed == "before":
                relay.follow_break(lambda: heard.append(relay.broken_by))
            control.send(Message("started", {"id": "1"}).encode())
            control.send(Message("broken", {"id": "1", "by": "node"}).encode())
            async with asyncio.timeout(30):
                while not relay.is_broken:
                    await asyncio.sleep(0.01)
            if followed == "afterwards":
                relay.follow_break(lambda: heard.append(relay.broken_by))
            assert heard == ["node"]
            relay.follow_break(None)
        relay.let_go()
