# SPDX-License-Identifier: Apache-2.0
"""What somebody says who wants to go on with a session over another connection, by hand."""

from __future__ import annotations

import json
import os
import socket

from control_plane import ControlPlane

from sluice.protocol import frames
from sluice.protocol.frames import ControlFunction


def asked_of(session: str, epoch: int, flags: int = 0, subflow: int = 0) -> frames.ResumeSession:
    """What a client of that session says first."""
    function, size = ControlFunction.RESUME_SESSION, frames.ResumeSession.BYTES
    return frames.ResumeSession(
        header=frames.FrameHeader(size=size, function=function),
        magic=frames.OPEN_MAGIC,
        protocol_major=frames.PROTOCOL_MAJOR,
        session_id=int(session, 16),
        epoch=epoch,
        flags=flags,
        subflow=subflow,
        nonce=os.urandom(32),
    )


def answered(connected: socket.socket, asked: frames.ResumeSession) -> frames.ResumeReply:
    """What its server says to that."""
    connected.sendall(asked.pack())
    got = b""
    while part := connected.recv(frames.ResumeReply.BYTES - len(got)):
        got += part
    return frames.ResumeReply.unpack(got)


def prove(connected: socket.socket, said: bytes) -> None:
    """Says that, as a proof."""
    function, size = ControlFunction.RESUME_PROOF, frames.ResumeProof.BYTES
    header = frames.FrameHeader(size=size, function=function)
    connected.sendall(frames.ResumeProof(header=header, proof=said).pack())


def session_key(plane: ControlPlane) -> bytes:
    """The key of the one session that there is, as its worker's record has it."""
    records = (plane.folder / "run" / "workers").glob("*.json")
    (key,) = [bytes.fromhex(k) for record in records if (k := _key_in(record.read_text()))]
    return key


def _key_in(record: str) -> str:
    session = json.loads(record)["session"]
    return str(session["resume_key"]) if session else ""
