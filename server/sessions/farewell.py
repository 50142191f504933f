# SPDX-License-Identifier: Apache-2.0
"""Tells a GPU node that the client of a relayed session has ended, as only this host can know it.

Used by sessions.relays, and by sessions.relayed_streams to ask whether it has. The node's worker
would wait for another connection of a client that was killed; it is told by a connection of its own
to the node's data port, which proves the session's key as a resumption does. Where the node does
not hear it, it waits as long as it would have.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import ssl
from collections.abc import Coroutine
from pathlib import Path

from sluice.protocol import frames
from sluice.protocol.frames import ControlFunction, ResumeFlags
from sluice.server.listeners.resumption import PROOF_BYTES, proof
from sluice.server.sessions.records import RelayedWay, StreamWay

SECONDS = 5.0


class NotHeardError(Exception):
    """The node was not reached, or did not prove that it knows the session."""


async def say_ended(
    session_id: str, node: str, way: RelayedWay | StreamWay, key: bytes, ca_file: Path | None
) -> None:
    """Has the session end on its node; raises NotHeardError."""
    await _within_seconds(node, way, _ask(session_id, node, way, key, ca_file))


async def is_over(session_id: str, node: str, way: StreamWay, ca_file: Path | None) -> bool:
    """Whether its node knows the session no more, without a proof; raises NotHeardError."""
    return await _within_seconds(node, way, _ask(session_id, node, way, b"", ca_file))


async def _within_seconds(
    node: str, way: RelayedWay | StreamWay, asking: Coroutine[None, None, bool]
) -> bool:
    try:
        async with asyncio.timeout(SECONDS):
            return await asking
    except (OSError, EOFError, TimeoutError) as error:
        raise NotHeardError(f"node {node} at {way.address}:{way.port}: {error}") from error


async def _ask(
    session_id: str, node: str, way: RelayedWay | StreamWay, key: bytes, ca_file: Path | None
) -> bool:
    """Whether it is over there; with a key it is from then on."""
    tls, name = _tls(ca_file) if way.tls else None, node if way.tls else None
    reader, writer = await asyncio.open_connection(
        way.address, way.port, ssl=tls, server_hostname=name
    )
    try:
        asked = frames.ResumeSession(
            header=frames.FrameHeader(
                size=frames.ResumeSession.BYTES, function=ControlFunction.RESUME_SESSION
            ),
            magic=frames.OPEN_MAGIC,
            protocol_major=frames.PROTOCOL_MAJOR,
            protocol_minor=frames.PROTOCOL_MINOR,
            session_id=int(session_id, 16),
            epoch=1,
            flags=ResumeFlags.ENDS,
            nonce=secrets.token_bytes(32),
        )
        writer.write(asked.pack())
        answer = frames.ResumeReply.unpack(await reader.readexactly(frames.ResumeReply.BYTES))
        if answer.status or not key:
            return answer.status != 0
        if not hmac.compare_digest(answer.proof, proof(b"server", key, asked, answer.nonce)):
            raise NotHeardError(f"who answers for node {node} does not know session {session_id}")
        header = frames.FrameHeader(size=PROOF_BYTES, function=ControlFunction.RESUME_PROOF)
        ours = proof(b"client", key, asked, answer.nonce)
        writer.write(frames.ResumeProof(header=header, proof=ours).pack())
        await writer.drain()
        await reader.read()  # the node closes the connection
        return True
    finally:
        writer.close()


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
