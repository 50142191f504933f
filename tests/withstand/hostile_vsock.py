# SPDX-License-Identifier: Apache-2.0
"""A guest's program that speaks vsock by itself: opens and proves sessions, says what it likes.

Used by test_vsock_relays.py, beside programs with the client library.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sluice.protocol import frames
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import ControlFunction, OpenFlags
from sluice.server.listeners.resumption import key_of, proof

KEY = "0123456789abcdef0123456789abcdef"
SECONDS = 30


class HostileGuest:
    """One session that it opened, and the connections for it."""

    def __init__(self, device: Path) -> None:
        self._device = str(device)
        self.session_id = 0

    async def open(self) -> asyncio.StreamWriter:
        """Asks for a session as a client does."""
        header = frames.FrameHeader(
            size=frames.OpenSession.BYTES, function=ControlFunction.OPEN_SESSION
        )
        asked = frames.OpenSession(
            header=header,
            magic=frames.OPEN_MAGIC,
            protocol_major=frames.PROTOCOL_MAJOR,
            protocol_minor=frames.PROTOCOL_MINOR,
            flags=OpenFlags.RESUMABLE,
            wait_seconds=20,
            cuda_version=13000,
            key=KEY.encode(),
            program=b"hostile",
        )
        reader, writer = await asyncio.open_unix_connection(self._device)
        writer.write(asked.pack())
        async with asyncio.timeout(SECONDS):
            reply = frames.OpenReply(status=CudaStatus.NOT_READY)
            while reply.status == CudaStatus.NOT_READY:  # a line for whoever waits
                reply = frames.OpenReply.unpack(await reader.readexactly(frames.OpenReply.BYTES))
        assert reply.status == 0, reply.message
        self.session_id = reply.session_id
        return writer

    async def prove(self, epoch: int) -> asyncio.StreamWriter:
        """Another connection, with the right proof."""
        key = key_of(KEY, f"{self.session_id:016x}")
        asked = frames.ResumeSession(
            header=frames.FrameHeader(
                size=frames.ResumeSession.BYTES, function=ControlFunction.RESUME_SESSION
            ),
            magic=frames.OPEN_MAGIC,
            protocol_major=frames.PROTOCOL_MAJOR,
            session_id=self.session_id,
            epoch=epoch,
            nonce=os.urandom(32),
        )
        reader, writer = await asyncio.open_unix_connection(self._device)
        writer.write(asked.pack())
        async with asyncio.timeout(SECONDS):
            reply = frames.ResumeReply.unpack(await reader.readexactly(frames.ResumeReply.BYTES))
        assert reply.status == 0, reply.message
        header = frames.FrameHeader(
            size=frames.ResumeProof.BYTES, function=ControlFunction.RESUME_PROOF
        )
        said = proof(b"client", key, asked, reply.nonce)
        writer.write(frames.ResumeProof(header=header, proof=said).pack())
        await writer.drain()
        return writer
