# SPDX-License-Identifier: Apache-2.0
"""The data port: clients elsewhere, let in by a one-time key that the controller issued.

Started by server.service. The controller tells this server of each session and its key before it
tells the client; a key is good once and for a minute. After OpenSession the connected socket goes
to the worker, and nothing of the session's data passes here. Where the port has TLS
(listeners.data_tls), the key comes inside it, and what the worker needs to go on goes with the
socket.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.config.log_ids import bound
from sluice.config.peer_lines import SERVER as PEERS
from sluice.protocol import frames
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.container import Container
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, GrantedVgpu, LocalGrant, OtherNode
from sluice.server.listeners.accepting import Listener
from sluice.server.listeners.data_tls import DataTls, DataTlsError, NotTls, PlainLine, TlsLine
from sluice.server.listeners.resumption import Resumption, is_resumption, key_of, refusal_of
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.open_session import (
    FRAME_BYTES,
    BadOpen,
    OpenSession,
    RefusalError,
    check_header,
    pack_open_reply,
    parse_open_session,
    without_key,
)
from sluice.server.sessions.opening import SessionGrant, SessionRequest
from sluice.server.sessions.records import JobPart, Requester, Session
from sluice.server.workers.session_start import ConnectedSocket, ResumeTerms

log = logging.getLogger("sluice.server")

FIRST_FRAME_SECONDS = 10.0
MOST_CONNECTIONS = 256
#: Of one address, which may be a gateway's with many clients behind it; each is served for as long
#: as it takes to read its first frame and to hand it over.
MOST_OF_ADDRESS = 64
TOO_LATE = End(EndCause.CLIENT_NEVER_CAME, "no client came with the key in time")
NO_TLS = RefusalError(
    CudaStatus.NOT_PERMITTED,
    "this node's data port wants TLS ([tls] data_plane in server.conf), and this client did not "
    "begin with it: install the client library of this release, and name the CA in SLUICE_CA",
)


@dataclass(slots=True)
class Expected:
    """A session whose client has not connected yet."""

    assignment: rpc.Assignment
    deadline: float
    ended: End | None = None  # why it is to end as soon as it has begun

    @property
    def grant(self) -> SessionGrant:
        """What was granted."""
        a = self.assignment
        vgpus = tuple(map(GrantedVgpu.of, a.vgpus))
        granted = LocalGrant(
            a.grant_id,
            a.session_id,
            request_id="",
            vgpus=vgpus,
            all_vgpus=a.all_vgpus,
            first_vgpu=a.first_vgpu,
            others=tuple(map(OtherNode.of, a.others)),
            grant_vgpus=a.grant_vgpus,
            grant_places=tuple(a.grant_places),
        )
        return SessionGrant(granted, self.part, a.project)

    @property
    def part(self) -> JobPart | None:
        """In a job, as the controller judged it."""
        a = self.assignment
        if not a.job:
            return None
        return JobPart(a.job, a.job_domain, a.job_processes, tuple(a.chosen))

    def report(self) -> rpc.SessionReport:
        """As the controller is told when it asks what there is."""
        assignment = self.assignment
        return rpc.SessionReport(
            session_id=assignment.session_id,
            grant_id=assignment.grant_id,
            vgpus=assignment.vgpus,
            channel="relay" if assignment.relay else "tcp",
            host=assignment.host,
            program=assignment.program,
            client_pid=assignment.client_pid,
            client_uid=assignment.client_uid,
            domain_uuid=assignment.domain_uuid,
            domain_name=assignment.domain_name,
            container=assignment.container,
            relay=assignment.relay,
            started=time.time(),
            priority=assignment.priority,
            opening=True,
            project=assignment.project,
            grant_vgpus=assignment.grant_vgpus,
            grant_places=assignment.grant_places,
            **(self.part.report() if self.part else {}),
        )


class DataPort:
    """Listens on the data port."""

    def __init__(
        self,
        address: str,
        port: int,
        lifecycle: SessionLifecycle,
        controller: ControllerLink,
        tls: DataTls | None = None,
        terms: ResumeTerms | None = None,
        subflows: int = 0,
        *,
        rdma: bool = False,
    ) -> None:
        """`terms`: how long sessions outlive their connections; None: they do not. `subflows`: how
        many connections for bulk a session may have besides. `rdma`: workers can take clients'
        sessions over RDMA.
        """
        self._subflows = subflows
        self._rdma = rdma
        self._tls = tls
        self._terms = terms
        self._address = address
        self._port = port
        self._lifecycle = lifecycle
        self._controller = controller
        self._expected: dict[str, Expected] = {}  # by session id; keys are compared, not looked up
        self._attaching: dict[str, Expected] = {}
        self._listener: Listener | None = None
        self.port = port

    def open(self) -> None:
        """Begins to listen; raises OSError."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._address, self._port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._listener = Listener(
            listener,
            "the data port",
            MOST_CONNECTIONS,
            self._serve,
            most_of_owner=MOST_OF_ADDRESS,
        )
        tls = " with TLS" if self._tls else ""
        log.info("data port: %s:%d%s", self._address, self.port, tls)

    async def close(self) -> None:
        """Stops listening."""
        if self._listener:
            await self._listener.close()
            self._listener = None
        if self._tls:
            self._tls.close()

    def expect(self, assignment: rpc.Assignment) -> None:
        """A client will come with this key."""
        deadline = time.monotonic() + assignment.key_seconds
        expected = Expected(rpc.Assignment(), deadline)
        expected.assignment.CopyFrom(assignment)
        self._expected[assignment.session_id] = expected
        asyncio.get_running_loop().call_later(
            assignment.key_seconds, self._key_expired, assignment.session_id
        )

    def expected_reports(self) -> list[rpc.SessionReport]:
        """Sessions that have a key and no client yet, for the inventory."""
        waiting = {**self._expected, **self._attaching}
        return [
            expected.report()
            for session_id, expected in waiting.items()
            if session_id not in self._lifecycle.sessions
        ]

    def forget_grant(self, grant_id: str, why: End) -> bool:
        """Withdraws the key of a grant; False if there is none."""
        found = False
        for attaching in self._attaching.values():
            if attaching.assignment.grant_id == grant_id:
                attaching.ended = why
                found = True
        for session_id, expected in list(self._expected.items()):
            if expected.assignment.grant_id == grant_id:
                del self._expected[session_id]
                self._report_ended(expected.assignment, why)
                found = True
        return found

    def forget_session(self, session_id: str, why: End) -> bool:
        """Withdraws one session's key; False if there is none."""
        if attaching := self._attaching.get(session_id):
            attaching.ended = why
            return True
        if (expected := self._expected.pop(session_id, None)) is None:
            return False
        log.info("session %s: its key is withdrawn: %s", session_id, why)
        self._report_ended(expected.assignment, why)
        return True

    def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> bool:
        """Sessions that have a key and no client yet will have these limits; False: there is none.

        Where a client is coming in just now its worker has the old ones already.
        """
        expected = [e for e in self._expected.values() if e.assignment.grant_id == grant_id]
        for each in expected:
            del each.assignment.vgpus[:]
            each.assignment.vgpus.extend(vgpus)
        return bool(expected)

    def _key_expired(self, session_id: str) -> None:
        if expected := self._expected.pop(session_id, None):
            log.info("session %s: no client came with its key in time", session_id)
            self._report_ended(expected.assignment, TOO_LATE)

    async def _serve(self, connected: socket.socket) -> None:
        host = "a client"
        line: PlainLine | TlsLine = PlainLine(connected)
        try:
            host = str(connected.getpeername()[0])
            async with asyncio.timeout(FIRST_FRAME_SECONDS):
                if self._tls:
                    line = await self._tls.welcome(connected)
                header = await line.read_exactly(frames.FrameHeader.BYTES)
                if is_resumption(header):
                    await self._resume(connected, line, header, host)
                    return
                asked = await _read_open(line, header)
                rest = line.rest()
        except TimeoutError:
            text = "%s connected to the data port and sent no OpenSession"
            PEERS.info("data port: silent", host, text, host)
            return
        except DataTlsError as error:
            text = "no client is let in on the data port: %s"
            PEERS.error("data port: certificate", host, text, error)
            return
        except NotTls:
            PEERS.warning("data port: no TLS", host, "refused %s on the data port: no TLS", host)
            await _refuse(connected, line, NO_TLS)
            return
        except ssl.SSLError as error:
            text = "no TLS with %s on the data port: %s"
            PEERS.warning("data port: handshake", host, text, host, error)
            return
        except (OSError, EOFError) as error:
            text = "%s connected to the data port and left (%s)"
            PEERS.info("data port: gone", host, text, host, error)
            return
        except BadOpen as refusal:
            text = "refused %s on the data port: %s"
            PEERS.warning("data port: rubbish", host, text, host, refusal.message)
            await _refuse(connected, line, refusal)
            return
        expected = self._use_key(asked.key)
        if expected is None:
            text = "refused %s on the data port: unknown, used or expired key"
            PEERS.warning("data port: no key", host, text, host)
            await _refuse(
                connected,
                line,
                RefusalError(
                    CudaStatus.NOT_PERMITTED,
                    "the key is unknown, was used before or has expired; ask the controller "
                    "for a new one (POST /v1/sessions)",
                ),
            )
            return
        assignment = expected.assignment
        session_id = assignment.session_id
        self._attaching[session_id] = expected
        try:
            with bound(
                request_id=assignment.request_id,
                grant_id=assignment.grant_id,
                session_id=session_id,
            ):
                await self._attach(connected, line, host, (asked, rest), expected)
        finally:
            del self._attaching[session_id]
            session = self._lifecycle.sessions.get(session_id)
            if session and expected.ended:
                self._lifecycle.end(session, expected.ended)

    async def _resume(
        self, connected: socket.socket, line: PlainLine | TlsLine, header: bytes, host: str
    ) -> None:
        lifecycle = self._lifecycle
        resumption = Resumption(
            line, lifecycle.sessions, lifecycle.end, _is_of_network, self._subflows
        )
        try:
            await resumption.prove(connected, header)
        except RefusalError as refusal:
            text = "refused %s on the data port: %s"
            PEERS.warning("data port: no resumption", host, text, host, refusal.message)
            await _answer(connected, line.seal(refusal_of(refusal)))

    async def _attach(
        self,
        connected: socket.socket,
        line: PlainLine | TlsLine,
        host: str,
        opened: tuple[OpenSession, Mapping[str, str]],
        expected: Expected,
    ) -> None:
        asked, rest = opened
        assignment = expected.assignment
        requester = Requester(
            channel="rdma" if self._rdma and asked.takes_rdma else "tcp",
            host=host,
            program=asked.program or assignment.program,
        )
        if assignment.relay:  # who it is, the server beside it knows, and the controller has it
            requester.host, requester.relay = assignment.host, assignment.relay
            requester.pid, requester.uid = assignment.client_pid, assignment.client_uid
            requester.domain_uuid = assignment.domain_uuid
            requester.domain_name = assignment.domain_name
            c = assignment.container
            requester.container = Container(c.id, c.engine, c.pod, c.owner_uid, c.device)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(True)  # the flag travels with the descriptor; a worker expects it so
        keyless = without_key(asked)
        terms = self._terms if asked.is_resumable else None
        channel = ConnectedSocket(connected.fileno(), rest, terms)
        grant = expected.grant
        if terms and terms.grace_seconds:
            key = key_of(assignment.key, assignment.session_id)
            grant = replace(grant, resume_key=key.hex())
        try:
            await self._lifecycle.open_granted(SessionRequest(keyless, requester, channel), grant)
        except RefusalError as refusal:
            connected.setblocking(False)
            self._report_ended(assignment, End(EndCause.NOT_TAKEN, refusal.message))
            await _refuse(connected, line, refusal)
        except asyncio.CancelledError:
            self._report_ended(assignment, End(EndCause.NOT_TAKEN, "the server stopped"))
            raise

    def _use_key(self, key: str) -> Expected | None:
        # every key is compared, in constant time each
        found = None
        for session_id, expected in self._expected.items():
            if hmac.compare_digest(expected.assignment.key.encode(), key.encode()):
                found = session_id
        if found is None or not key:
            return None
        expected = self._expected.pop(found)
        if time.monotonic() < expected.deadline:
            return expected
        self._report_ended(expected.assignment, TOO_LATE)
        return None

    def _report_ended(self, assignment: rpc.Assignment, why: End) -> None:
        self._controller.report_end(assignment.session_id, assignment.grant_id, why)


def _is_of_network(session: Session) -> bool:
    return session.requester.by_network  # RDMA goes on over TCP


async def _read_open(line: PlainLine | TlsLine, header: bytes) -> OpenSession:
    # exactly one frame: what follows it belongs to the worker
    check_header(header)
    return parse_open_session(header + await line.read_exactly(FRAME_BYTES - len(header)))


async def _refuse(
    connected: socket.socket, line: PlainLine | TlsLine, refusal: RefusalError
) -> None:
    await _answer(connected, line.seal(pack_open_reply(refusal.status, 0, refusal.message)))


async def _answer(connected: socket.socket, reply: bytes) -> None:
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait_for(loop.sock_sendall(connected, reply), 1.0)
        # bytes of the client that nobody read would turn the close into a reset, and the reply
        # would be lost with it
        connected.shutdown(socket.SHUT_WR)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            if not await asyncio.wait_for(loop.sock_recv(connected, 1 << 16), 1.0):
                return
    except (OSError, TimeoutError) as error:
        log.debug("a refused client did not read its reply: %s", os.strerror(error.errno or 0))
