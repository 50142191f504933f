# SPDX-License-Identifier: Apache-2.0
"""Connects a session's worker to the workers of the client's other nodes.

Used by sessions.registry, where workers' wishes come. A worker may open no socket: it names one of
the nodes that the controller told this server of, and this server dials that node's data port,
proves the key that the controller gave to the two nodes for these two sessions alone (as a
resumption does, listeners.resumption), and hands the connected socket over. So a worker that was
taken over has its server connect to its own client's nodes and to nothing else, once at a time for
each. docs/protocol.md, "Between nodes".
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
from pathlib import Path

from sluice.config.peer_lines import SERVER as PEERS
from sluice.protocol import frames
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import ControlFunction, ResumeFlags
from sluice.server.controller.link import OtherNode
from sluice.server.listeners.data_tls import PlainLine, TlsLine, greet
from sluice.server.listeners.resumption import PROOF_BYTES, proof
from sluice.server.sessions.records import Session
from sluice.server.workers.packets import Message

log = logging.getLogger("sluice.server")

SECONDS = 8.0


class NoLink(Exception):
    """The node was not reached, or did not prove itself; `over`: nor will it be."""

    def __init__(self, why: str, *, over: bool = False) -> None:
        super().__init__(why)
        self.over = over


class NodeLinks:
    """What is being dialled for the sessions of this host."""

    def __init__(self) -> None:
        #: Whose certificates other nodes' data ports show; None: the system's CAs.
        self.ca_file: Path | None = None
        self._under_way: dict[tuple[str, int], asyncio.Task[None]] = {}

    def dial(self, session: Session, message: Message) -> None:
        """Its worker wants a connection: it is told of that or of why there is none."""
        first = message.number("peer", -1)
        if (session.id, first) in self._under_way:
            return  # it is answered by that
        task = asyncio.get_running_loop().create_task(
            self._dial(session, first, message.number("epoch"))
        )
        self._under_way[session.id, first] = task
        task.add_done_callback(lambda _: self._under_way.pop((session.id, first), None))

    def leave(self, session_id: str) -> None:
        """A session has ended."""
        for (whose, _), task in list(self._under_way.items()):
            if whose == session_id:
                task.cancel()

    def close(self) -> None:
        """The server stops; workers ask the next one."""
        for task in list(self._under_way.values()):
            task.cancel()

    async def _dial(self, session: Session, first: int, epoch: int) -> None:
        fields = {"peer": str(first)}
        try:
            others = {other.first_vgpu: other for other in session.others}
            if first not in others:
                raise NoLink("the controller has told of no such node of its client", over=True)
            connected, rest = await self._reach(session, others[first], epoch)
        except NoLink as why:
            name, text = f"{session.id} {first}", "session %s: no link to its vGPU %d: %s"
            PEERS.info("no link", name, text, session.id, first, why)
            fields |= {"over": "1" if why.over else "0", "message": str(why)}
            session.worker.tell(Message("no_link", fields))
            return
        with connected:
            fields |= {"epoch": str(epoch), "descriptors": "socket", **rest}
            session.worker.tell(Message("link", fields), [connected.fileno()])

    async def _reach(
        self, session: Session, other: OtherNode, epoch: int
    ) -> tuple[socket.socket, dict[str, str]]:
        """A connection on which both have proved themselves; raises NoLink."""
        where = f"{other.address}:{other.port}"
        connected: socket.socket | None = None
        try:
            async with asyncio.timeout(SECONDS):
                connected = await _connect(other)
                line: PlainLine | TlsLine = PlainLine(connected)
                if other.tls_name:
                    line = await greet(connected, other.tls_name, self.ca_file)
                await _prove(connected, line, session, other, epoch)
                rest = dict(line.rest())
        except (OSError, EOFError, TimeoutError, NoLink) as error:  # ssl's errors are OSErrors
            if connected:
                connected.close()
            if isinstance(error, NoLink):
                raise
            over = isinstance(error, ssl.SSLCertVerificationError)
            raise NoLink(f"{where}: {error or 'it does not answer'}", over=over) from None
        except asyncio.CancelledError:
            if connected:
                connected.close()
            raise
        connected.setblocking(True)  # the flag travels with the descriptor
        return connected, rest


async def _connect(other: OtherNode) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(other.address, other.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    connected = socket.socket(family, kind, protocol)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(connected, address)
    except BaseException:
        connected.close()
        raise
    return connected


async def _prove(
    connected: socket.socket,
    line: PlainLine | TlsLine,
    session: Session,
    other: OtherNode,
    epoch: int,
) -> None:
    """Both show that they have the two sessions' key; raises NoLink, OSError, EOFError."""
    loop = asyncio.get_running_loop()
    size, function = frames.ResumeSession.BYTES, ControlFunction.RESUME_SESSION
    asked = frames.ResumeSession(
        header=frames.FrameHeader(size=size, function=function),
        magic=frames.OPEN_MAGIC,
        protocol_major=frames.PROTOCOL_MAJOR,
        protocol_minor=frames.PROTOCOL_MINOR,
        session_id=int(other.session_id, 16),
        epoch=epoch,
        flags=ResumeFlags.NODE_LINK,
        subflow=session.first_vgpu,
        nonce=secrets.token_bytes(32),
    )
    await loop.sock_sendall(connected, line.seal(asked.pack()))
    answer = frames.ResumeReply.unpack(await line.read_exactly(frames.ResumeReply.BYTES))
    if answer.status:
        # its session may not have begun: the client goes from node to node
        over = answer.status != CudaStatus.NOT_READY
        why = answer.message.rstrip(b"\0").decode(errors="replace")
        raise NoLink(f"{other.address}:{other.port}: {why}", over=over)
    key = bytes.fromhex(other.key)
    if not hmac.compare_digest(answer.proof, proof(b"server", key, asked, answer.nonce)):
        raise NoLink(f"who answers at {other.address}:{other.port} does not know the key")
    header = frames.FrameHeader(size=PROOF_BYTES, function=ControlFunction.RESUME_PROOF)
    ours = frames.ResumeProof(header=header, proof=proof(b"client", key, asked, answer.nonce))
    await loop.sock_sendall(connected, line.seal(ours.pack()))
