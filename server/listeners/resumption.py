# SPDX-License-Identifier: Apache-2.0
"""Sessions that go on over another connection, after the one that they had broke.

Used by listeners.data_port and guests.vsock. A client names its session and proves that it knows
its key, which was derived from the one-time key that opened it and is never sent; this server
proves the same. The socket then goes to the session's worker, which has kept what the client had
not received (native/channel/resumable_stream.h). Nothing happens to the session's present
connection before the proof has been given. The worker of another node that has vGPUs of the same
client is let in the same way, by the key that the two nodes have (sessions.node_links). The same
proof ends a session whose client has ended, where only the server beside it can know that
(sessions.farewell). docs/protocol.md, "When a connection breaks", "Between nodes".
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Protocol

from sluice.config.peer_lines import SERVER as PEERS
from sluice.protocol import frames
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import ControlFunction, ResumeFlags
from sluice.resources.ends import End
from sluice.server.sessions.open_session import BadOpen, RefusalError
from sluice.server.sessions.records import CLIENT_ENDED, Session
from sluice.server.workers.packets import Message

log = logging.getLogger("sluice.server")

ASKED_BYTES = frames.ResumeSession.BYTES
PROOF_BYTES = frames.ResumeProof.BYTES
_HEADER_BYTES = frames.FrameHeader.BYTES


class Line(Protocol):
    """A connection up to the frame after which it is the worker's (listeners.data_tls)."""

    async def read_exactly(self, count: int) -> bytes:
        """The next bytes; raises EOFError."""

    def seal(self, data: bytes) -> bytes:
        """What has to be sent for the client to read this."""

    def rest(self) -> Mapping[str, str]:
        """What the worker has to know to go on; raises EOFError."""


def key_of(one_time_key: str, session_id: str) -> bytes:
    """The key of a session, 32 bytes, from the one with which it is opened."""
    number = int(session_id, 16).to_bytes(8, "little")
    return hmac.digest(one_time_key.encode(), b"sluice session " + number, "sha256")


def proof(who: bytes, key: bytes, asked: frames.ResumeSession, nonce: bytes) -> bytes:
    """What shows that `who`, client or server, knows the session's key; 32 bytes."""
    what = struct.pack("<QII", asked.session_id, asked.epoch, asked.flags)
    if asked.flags & (ResumeFlags.SUBFLOW | ResumeFlags.NODE_LINK):
        what += struct.pack("<I", asked.subflow)
    return hmac.digest(key, who + what + asked.nonce + nonce, "sha256")


def is_resumption(header: bytes) -> bool:
    """Whether a connection's first 16 bytes begin a ResumeSession."""
    function = frames.FrameHeader.unpack(header).function
    return function == ControlFunction.RESUME_SESSION.value


def refusal_of(refusal: RefusalError) -> bytes:
    """The ResumeReply that says it."""
    return _reply(refusal.status, frames.ResumeSession(), message=refusal.message)


class Resumption:
    """One connection that wants to go on with a session."""

    def __init__(
        self,
        line: Line,
        sessions: Mapping[str, Session],
        end: Callable[[Session, End], None],
        allowed: Callable[[Session], bool],
        subflows: int = 0,
        relay: Callable[[Session, int, int], None] | None = None,
    ) -> None:
        """`end` ends a session; `allowed`: whether it may go on by the way that the line is of;
        `subflows`: how many connections for bulk one may have; `relay` takes the descriptor and the
        epoch for one whose worker is on another node.
        """
        self._line = line
        self._sessions = sessions
        self._end = end
        self._allowed = allowed
        self._subflows = subflows
        self._relay = relay

    async def prove(self, connected: socket.socket, header: bytes) -> None:
        """Has the session's worker take the connection, or the session end, as it is asked.

        Raises RefusalError where the session is over or cannot, BadOpen for what is no such frame
        or no proof, OSError and EOFError where the client leaves.
        """

        async def send(data: bytes) -> None:
            await asyncio.get_running_loop().sock_sendall(connected, self._line.seal(data))

        asked = _parse(header + await self._line.read_exactly(ASKED_BYTES - _HEADER_BYTES))
        session = self._sessions.get(f"{asked.session_id:016x}")
        secret = _key(session, asked) if session and self._allowed(session) else ""
        if session is None or not secret:
            over = RefusalError(
                CudaStatus.SYSTEM_NOT_READY,
                f"session {asked.session_id:016x} is over, or was never here",
            )
            if asked.flags & ResumeFlags.ENDS:  # as it is to be
                await send(refusal_of(over))
                return
            raise over
        is_subflow = bool(asked.flags & ResumeFlags.SUBFLOW)
        if is_subflow and asked.subflow >= self._subflows:
            raise RefusalError(
                CudaStatus.NOT_SUPPORTED,
                f"subflow {asked.subflow}: [server] bulk_connections here is {self._subflows}",
            )
        by_rdma = bool(asked.flags & ResumeFlags.OVER_RDMA)
        if by_rdma and not (session.requester.by_network and session.worker.record.rdma):
            raise RefusalError(
                CudaStatus.NOT_SUPPORTED,
                f"session {session.id} has no RDMA here: its worker was started without",
            )
        key, nonce = bytes.fromhex(secret), secrets.token_bytes(32)
        ours = proof(b"server", key, asked, nonce)
        await send(_reply(0, asked, nonce=nonce, proof=ours))
        said = frames.ResumeProof.unpack(await self._line.read_exactly(PROOF_BYTES))
        known = hmac.compare_digest(said.proof, proof(b"client", key, asked, nonce))
        if said.header.function != ControlFunction.RESUME_PROOF.value or not known:
            raise BadOpen(
                CudaStatus.NOT_PERMITTED, f"it does not know the key of session {session.id}"
            )
        if asked.flags & ResumeFlags.ENDS:
            self._end(session, CLIENT_ENDED)
            return
        fields = {"epoch": str(asked.epoch), "descriptors": "socket", **self._line.rest()}
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(True)  # the flag travels with the descriptor; a worker expects it so
        if session.relayed_to:
            if self._relay:
                self._relay(session, connected.fileno(), asked.epoch)
            return
        if asked.flags & ResumeFlags.NODE_LINK:
            fields["peer"] = str(asked.subflow)
            session.worker.tell(Message("link", fields), [connected.fileno()])
            return
        if is_subflow:
            fields["subflow"] = str(asked.subflow)
            session.worker.tell(Message("subflow", fields), [connected.fileno()])
            return
        if by_rdma:
            fields["rdma"] = "1"  # whether it comes to that the worker says, by its log and status
        session.worker.tell(Message("resume", fields), [connected.fileno()])
        text = (
            "session %s: its client asks for RDMA, epoch %d"
            if by_rdma
            else "session %s: its client has another connection, epoch %d"
        )
        who = session.requester.owner
        PEERS.info("resumed", who, text, session.id, asked.epoch)


def _key(session: Session, asked: frames.ResumeSession) -> str:
    """What whoever asks has to know, hexadecimal; "": nobody can have that."""
    if not asked.flags & ResumeFlags.NODE_LINK:
        return session.resume_key
    keys = (other.key for other in session.others if other.first_vgpu == asked.subflow)
    return next(keys, "")


def _parse(frame: bytes) -> frames.ResumeSession:
    asked = frames.ResumeSession.unpack(frame)
    if asked.header.size != ASKED_BYTES or asked.magic != frames.OPEN_MAGIC:
        raise BadOpen(CudaStatus.INVALID_VALUE, "its ResumeSession is none")
    if asked.protocol_major != frames.PROTOCOL_MAJOR:
        raise BadOpen(
            CudaStatus.SYSTEM_DRIVER_MISMATCH,
            f"the client speaks protocol {asked.protocol_major}, this server "
            f"{frames.PROTOCOL_MAJOR}",
        )
    # One thing at a time: what proves the right to one is none to another.
    if asked.flags not in (0, *ResumeFlags):
        raise BadOpen(CudaStatus.INVALID_VALUE, f"flags: {asked.flags:#x} is not one of them")
    if asked.epoch == 0 and not asked.flags & ResumeFlags.SUBFLOW:
        raise BadOpen(CudaStatus.INVALID_VALUE, "epoch: it begins with 1")
    return asked


def _reply(
    status: int,
    asked: frames.ResumeSession,
    *,
    nonce: bytes = b"",
    proof: bytes = b"",
    message: str = "",
) -> bytes:
    most = frames.ResumeReply.SIZES["message"] - 1
    header = frames.FrameHeader(
        size=frames.ResumeReply.BYTES, function=ControlFunction.RESUME_REPLY
    )
    return frames.ResumeReply(
        header=header,
        status=int(status),
        epoch=asked.epoch,
        nonce=nonce,
        proof=proof,
        message=message.encode()[:most].decode(errors="ignore").encode(),
    ).pack()
