# SPDX-License-Identifier: Apache-2.0
"""The socket for processes of this host: SOCK_SEQPACKET, with credentials from the kernel.

Started by server.service. One task serves one connection: it reads OpenSession, has the session
opened, and passes the memfd and the worker's pidfd to the client. Anything wrong is answered with
an OpenReply. The client's death is learned from its pidfd, also while it still waits for a grant.
A session keeps its connection's place, and a user has only some of them. Containers come by sockets
of their own, one for each CDI device (containers.sockets), or by the host's if somebody mounts it;
which container it is, the kernel says in either case (containers.identity).
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from sluice.config.peer_lines import OFTEN
from sluice.config.peer_lines import SERVER as PEERS
from sluice.config.places import Places
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import ChannelKind
from sluice.resources.container import Container
from sluice.resources.ends import End, EndCause
from sluice.server.containers.admission import Admission
from sluice.server.listeners.accepting import Listener, uid_of
from sluice.server.listeners.peer_waits import unless_gone
from sluice.server.listeners.peers import (
    Peer,
    PeerGone,
    ask_for_senders,
    peer_of,
    receive_from,
    user_domain,
)
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.open_session import (
    BadOpen,
    OpenSession,
    RefusalError,
    pack_open_reply,
    pack_view,
    parse_open_session,
)
from sluice.server.sessions.opening import SessionRequest
from sluice.server.sessions.records import Requester, Session
from sluice.server.workers.session_start import SharedRegion

log = logging.getLogger("sluice.server")

FIRST_FRAME_SECONDS = 5.0
MOST_CONNECTIONS = 4096
#: Of one user: sessions, and what waits for one.
MOST_OF_USER = 1024
#: That nobody but root gets.
KEPT_FOR_ROOT = 64
#: The header page and a slot's control words, lanes, marks and largest ring (channel/slot.h).
SLOT_OVERHEAD_MIB = 8
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def local_places() -> Places:
    """Those of the host's processes and containers."""
    return Places(MOST_CONNECTIONS, MOST_OF_USER, kept=KEPT_FOR_ROOT)


class UnixListener:
    """Listens on one Unix socket."""

    def __init__(
        self,
        path: Path,
        lifecycle: SessionLifecycle,
        arena_mib: int,
        host: str,
        admission: Admission | None = None,
        places: Places | None = None,
    ) -> None:
        """`admission`: whom it serves, the host's processes if there is none.

        `places` are shared by the sockets that have the same.
        """
        self._path = path
        self._admission = admission or Admission()
        self._places = local_places() if places is None else places
        self._lifecycle = lifecycle
        self._region_bytes = (arena_mib + SLOT_OVERHEAD_MIB) << 20
        self._host = host
        self._listener: Listener | None = None

    def open(self) -> None:
        """Begins to listen; raises OSError. Any user of the host may connect."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o666)
            ask_for_senders(listener)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        self._listener = Listener(
            listener,
            str(self._path),
            MOST_CONNECTIONS,
            self._serve,
            places=self._places,
            owner_of=self._admission.owner_of,
            turn_away=_turn_away,
            privileged="uid 0",
        )
        log.info("local clients: %s", self._path)

    async def close(self) -> None:
        """Stops listening; clients that wait for a grant are sent away, sessions go on."""
        if self._listener:
            self._path.unlink(missing_ok=True)
            await self._listener.close()
            self._listener = None

    async def _serve(self, connected: socket.socket) -> None:
        try:
            peer = peer_of(connected)
        except PeerGone as error:
            text = "a local client was not served: %s"
            PEERS.info("Unix socket: gone", uid_of(connected), text, error)
            return
        try:
            await self._serve_peer(connected, peer)
        except PeerGone:
            text = "pid %d ended before it was served"
            PEERS.info("Unix socket: gone", f"uid {peer.uid}", text, peer.pid)
        finally:
            os.close(peer.pidfd)

    async def _serve_peer(self, connected: socket.socket, peer: Peer) -> None:
        try:
            frame = await asyncio.wait_for(_receive(connected, peer.pid), FIRST_FRAME_SECONDS)
            if not frame:
                return
            # read first: what closes with something unread takes its answer back
            container = self._admission.container_of(peer)
            asked = self._admission.within(parse_open_session(frame), peer, container)
            if asked.channel not in (ChannelKind.AUTO, ChannelKind.SHM):
                raise BadOpen(
                    CudaStatus.NOT_SUPPORTED,
                    f"channel {asked.channel} was asked for on the Unix socket, which carries shm",
                )
        except TimeoutError:
            text = "pid %d connected and sent nothing"
            PEERS.info("Unix socket: silent", f"uid {peer.uid}", text, peer.pid)
            return
        except RefusalError as refusal:
            PEERS.warning(
                "Unix socket: rubbish",
                f"uid {peer.uid}",
                "refused pid %d uid %d: %s",
                *(peer.pid, peer.uid, refusal.message),
            )
            _reply(connected, refusal.status, 0, refusal.message)
            return
        requester = self._requester(peer, asked, container)
        if asked.looks:
            await self._show(connected, requester, asked)
            return
        if asked.holds_job:
            await self._hold(connected, requester, asked)
            return
        for older in self._lifecycle.of_process(peer.pid, peer.start_time):
            if older.replaced:
                why = End(EndCause.CLIENT_ENDED, "its process started another program")
                self._lifecycle.end(older, why)
        session = await self._open(connected, requester, asked)
        if session is None:
            return
        # nothing more is said on this connection, and its closing is no end: a process that opens
        # another session after it has closed it is one that exec made a new program
        await _until_closed(connected)
        session.replaced = True

    def _requester(self, peer: Peer, asked: OpenSession, container: Container) -> Requester:
        return Requester(
            channel="shm",
            host=self._host,
            program=asked.program,
            pid=peer.pid,
            uid=peer.uid,
            start_time=peer.start_time,
            pidfd=peer.pidfd,
            user_domain=user_domain(peer),
            groups=(peer.gid, *peer.groups),
            container=container,
            own_pid=asked.pid,
        )

    async def _show(
        self, connected: socket.socket, requester: Requester, asked: OpenSession
    ) -> None:
        showing = asyncio.create_task(self._lifecycle.view(asked, requester))
        try:
            text = await unless_gone(showing, requester.pidfd)
        except RefusalError as refusal:
            _reply(connected, refusal.status, 0, refusal.message)
            return
        with contextlib.suppress(OSError):  # a client that does not read is not waited for
            connected.send(pack_view(text), socket.MSG_NOSIGNAL)

    async def _hold(
        self, connected: socket.socket, requester: Requester, asked: OpenSession
    ) -> None:
        part = self._lifecycle.part_of(asked, requester)
        if part is None:
            return
        self._lifecycle.holds.begin(part)
        _reply(connected, CudaStatus.NOT_READY, 0, "the job is held")
        with contextlib.suppress(PeerGone):
            await unless_gone(asyncio.create_task(_until_closed(connected)), requester.pidfd)
        # a server that stops does not get here, and does not say that the launcher has ended
        self._lifecycle.holds.end(part)

    async def _open(
        self, connected: socket.socket, requester: Requester, asked: OpenSession
    ) -> Session | None:
        memory = os.memfd_create(f"sluice-{requester.pid}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, self._region_bytes)
            # the client gets it too, and must not shorten it under the worker
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)

            def tell(line: str) -> None:
                _reply(connected, CudaStatus.NOT_READY, 0, line)

            channel = SharedRegion(memory, self._region_bytes)
            request = SessionRequest(asked, requester, channel)
            opening = asyncio.create_task(self._lifecycle.open(request, tell))
            try:
                session = await unless_gone(opening, requester.pidfd)
            except PeerGone:
                text = "pid %d ended before its session was open"
                PEERS.info("Unix socket: gone", requester.owner, text, requester.pid, often=OFTEN)
                return None
            except RefusalError as refusal:
                _reply(connected, refusal.status, 0, refusal.message)
                return None
            # the pidfd shows the client its worker's end, also where nobody could mark the slot
            descriptors = [memory] if session.worker.exited else [memory, session.worker.pidfd]
            if not _reply(connected, 0, int(session.id, 16), "", descriptors):
                why = End(EndCause.CLIENT_ENDED, "the client cannot be answered")
                self._lifecycle.end(session, why)
            return session
        finally:
            os.close(memory)


def _turn_away(connected: socket.socket, why: str) -> None:
    _reply(connected, CudaStatus.SYSTEM_NOT_READY, 0, f"{why}; end some of its programs")


async def _until_closed(connected: socket.socket) -> None:
    while await _receive(connected):
        pass


async def _receive(connected: socket.socket, connector: int = 0) -> bytes:
    """One packet, b"" at the end; descriptors that a client sends are closed unseen.

    Raises RefusalError where another process than `connector` has sent it: the connection was
    passed on, and whoever has it now is not who it was made for.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            packet, descriptors, sender = receive_from(connected)
        except BlockingIOError:
            readable = loop.create_future()
            loop.add_reader(connected, _wake, readable)
            try:
                await readable
            finally:
                loop.remove_reader(connected)
            continue
        except OSError:
            return b""
        for descriptor in descriptors:
            os.close(descriptor)
        if connector and packet and sender != connector:
            raise RefusalError(
                CudaStatus.NOT_PERMITTED,
                "the connection to sluice-server was made by another process than the one that "
                "uses it: connect in the process itself",
            )
        return packet


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _reply(
    connected: socket.socket,
    status: int,
    session_id: int,
    message: str,
    descriptors: Sequence[int] = (),
) -> bool:
    ancillary = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if descriptors
        else []
    )
    try:
        connected.sendmsg(
            [pack_open_reply(status, session_id, message)], ancillary, socket.MSG_NOSIGNAL
        )
    except OSError as error:
        # a full socket buffer included: this client does not read
        text = "a local client cannot be answered: %s"
        PEERS.info("Unix socket: no answer", uid_of(connected), text, error)
        return False
    return True
