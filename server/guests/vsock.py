# SPDX-License-Identifier: Apache-2.0
"""Guests that come by vsock: who they are, what they may have, and when that ends.

Called by guests.channels with what libvirt says. A guest connects to its host's port 9960. Where
the host's kernel has vhost-vsock, the connection carries the guest's CID, which is one domain's;
where a process of ours stands in for it (guests.vsock_backends), there is a Unix socket for each
guest, on which nobody but that process is heard. After OpenSession the connection is the worker's,
and what the guest says besides passes nobody else. It promises that a guest can neither be taken
for another nor keep others out. A guest that has a region as well connects to port 9961, for a byte
there makes the doorbell look at its region at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sluice.config.peer_lines import OFTEN
from sluice.config.peer_lines import SERVER as PEERS
from sluice.hypervisor.ports import RegionOwner, VsockPlace
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import (
    BELL_PORT,
    PORT,
    VHOST_VSOCK,
    UserSockets,
    VsockHost,
)
from sluice.protocol import frames
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import MAX_REQUEST_OPTION_BYTES, ChannelKind
from sluice.resources.ends import End, EndCause
from sluice.server.guests.bounds import bounded
from sluice.server.guests.foreign_folders import given_socket
from sluice.server.guests.vsock_backends import BackendError, VsockBackend
from sluice.server.listeners.accepting import Listener
from sluice.server.listeners.data_tls import PlainLine
from sluice.server.listeners.peer_waits import unless_gone
from sluice.server.listeners.peers import PeerGone, peer_of
from sluice.server.listeners.resumption import Resumption, is_resumption, refusal_of
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.open_session import (
    BadOpen,
    OpenSession,
    RefusalError,
    check_header,
    pack_open_reply,
    pack_view,
    parse_open_session,
    without_key,
)
from sluice.server.sessions.opening import SessionRequest
from sluice.server.sessions.records import Requester, Session
from sluice.server.workers.session_start import ConnectedSocket, ResumeTerms

log = logging.getLogger("sluice.server")

FIRST_FRAME_SECONDS = 10.0
MOST_CONNECTIONS = 4096
#: Of one guest: its programs that wait for a grant have one each.
MOST_OF_GUEST = 256
_HEADER_BYTES = frames.FrameHeader.BYTES
#: Characters of the key that a guest makes up for a session which is to outlive its connection.
LEAST_KEY = 32


@dataclass(slots=True)
class _Guest:
    """One domain's vsock device."""

    owner: RegionOwner
    place: VsockPlace
    request: DomainRequest
    listeners: list[Listener] = field(default_factory=list)
    backend: VsockBackend | None = None
    opening: set[asyncio.Task[None]] = field(default_factory=set)


class VsockGuests:
    """Every guest of this host that has a vsock device."""

    def __init__(
        self,
        lifecycle: SessionLifecycle,
        run_dir: Path,
        log_dir: Path,
        backend: str,
        *,
        add_bell: Callable[[str, socket.socket], None],
        terms: ResumeTerms | None = None,
    ) -> None:
        """`backend` is the program that stands in for vhost-vsock, a path or a name.

        `terms`: how long sessions outlive their connections; None: they do not.
        `add_bell` takes a domain and the connection of its bell, of which it makes a copy.
        """
        self._add_bell = add_bell
        self._terms = terms
        self._lifecycle = lifecycle
        self._run_dir = run_dir
        self._log_dir = log_dir
        self._backend = backend
        self._guests: dict[str, _Guest] = {}
        self._listeners: list[Listener] = []  # in the kernel

    # what the hypervisor part tells

    async def add(self, owner: RegionOwner, place: VsockPlace, request: DomainRequest) -> None:
        """Serves a domain's device; called again when something about it changed."""
        guest = self._guests.get(owner.uuid)
        if guest is not None and guest.place != place:
            await self.remove(owner.uuid, "the vsock device is another one now")
            guest = None
        if guest is not None:
            guest.owner, guest.request = owner, request
        else:
            guest = self._guests[owner.uuid] = _Guest(owner, place, request)
            log.info("vsock of domain %s joins, %s", owner.name, _where(place))
        try:
            if place.cid is not None:
                self._listen_to_kernel()
            elif not guest.listeners:
                await self._serve_device(guest)
        except (BackendError, OSError) as error:
            # the caller repeats the step at its next look
            raise RuntimeError(f"vsock of domain {owner.name} is not served: {error}") from error

    async def remove(self, uuid: str, reason: str) -> None:
        """Ends every session that came by the domain's device and serves it no more."""
        programs = len(self.programs(uuid))
        guest = self._guests.pop(uuid, None)
        if guest is None:
            return
        backend = guest.backend
        had = backend.sockets() if backend else 0
        for listener in guest.listeners:
            await listener.close()
        await self._end_all(guest, End(EndCause.CHANNEL_REMOVED, reason))
        if backend:
            await backend.until_heard(had - programs)
            backend.close()
        log.info("vsock of domain %s leaves: %s", guest.owner.name, reason)

    async def stopped(self, uuid: str, reason: str) -> None:
        """Every process of the guest is gone."""
        if guest := self._guests.get(uuid):
            await self._end_all(guest, End(EndCause.GUEST_STOPPED, reason))

    def programs(self, uuid: str) -> list[str]:
        """Who has a session by the domain's device or waits for one, a line each."""
        guest = self._guests.get(uuid)
        waiting = len(guest.opening) if guest else 0
        lines = [f"{s.requester.describe()} has a session" for s in self._sessions_of(uuid)]
        return lines + ["a program waits for a session by vsock"] * waiting

    async def close(self) -> None:
        """The server stops: it listens no more; devices and sessions go on."""
        guests = list(self._guests.values())
        for listener in self._listeners + [each for guest in guests for each in guest.listeners]:
            await listener.close()
        self._listeners.clear()
        for guest in guests:
            if guest.backend:
                guest.backend.let_go()

    # listening

    def _listen_to_kernel(self) -> None:
        if self._listeners:
            return
        if not VHOST_VSOCK.exists():
            raise OSError(errno.ENODEV, f"this host has no {VHOST_VSOCK} (modprobe vhost_vsock)")
        bound = []
        try:
            for port in (PORT, BELL_PORT):
                bound.append(socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
                bound[-1].bind((socket.VMADDR_CID_ANY, port))
                bound[-1].listen(128)
        except OSError:
            for listening in bound:
                listening.close()
            raise
        for listening, port, serve in zip(
            bound, (PORT, BELL_PORT), (self._serve_cid, self._serve_bell_of_cid), strict=True
        ):
            listener = Listener(
                listening,
                f"vsock port {port}",
                MOST_CONNECTIONS,
                serve,
                most_of_owner=MOST_OF_GUEST,
                owner_of=lambda _, peer: f"CID {peer[0]}",
            )
            self._listeners.append(listener)
        log.info("guests with vhost-vsock: port %d", PORT)

    async def _serve_device(self, guest: _Guest) -> None:
        program = VsockHost.found(self._backend).program
        if program is None:
            raise BackendError(
                f"[server] vsock_backend: {self._backend or 'none'} is not on this host"
            )
        uuid, account = guest.owner.uuid, guest.place.account
        sockets = UserSockets.of(self._run_dir, uuid)
        if guest.backend is None:
            guest.backend = VsockBackend(
                program, sockets, uuid, account, run_dir=self._run_dir, log_dir=self._log_dir
            )
        guest.backend.prepare()
        bound: list[socket.socket] = []
        try:
            for path in (sockets.session_port, sockets.bell):
                bound.append(given_socket(path, account, 128))
            await guest.backend.start()
        except BaseException:
            for listening in bound:
                listening.close()
            raise

        async def serve(connected: socket.socket) -> None:
            if self._is_of_device(guest, connected):
                await self._serve(guest, connected)

        async def serve_bell(connected: socket.socket) -> None:
            if self._is_of_device(guest, connected):
                self._add_bell(uuid, connected)

        for listening, what, how in zip(
            bound, ("socket", "bell"), (serve, serve_bell), strict=True
        ):
            name = f"the vsock {what} of domain {guest.owner.name}"
            guest.listeners.append(Listener(listening, name, MOST_OF_GUEST, how))

    def _guest_of(self, connected: socket.socket) -> _Guest | None:
        cid = connected.getpeername()[0]
        guest = next((g for g in self._guests.values() if g.place.cid == cid), None)
        if guest is None:
            text = "refused CID %s on vsock: no domain with a vGPU has it"
            PEERS.warning("vsock: no vGPU", f"CID {cid}", text, cid)
        return guest

    async def _serve_cid(self, connected: socket.socket) -> None:
        if guest := self._guest_of(connected):
            await self._serve(guest, connected)
            return
        refusal = "this VM was given no vGPU; ask for one on its host with `sluice vm attach`"
        await _refuse(connected, RefusalError(CudaStatus.NOT_PERMITTED, refusal))

    async def _serve_bell_of_cid(self, connected: socket.socket) -> None:
        if guest := self._guest_of(connected):
            self._add_bell(guest.owner.uuid, connected)

    def _is_of_device(self, guest: _Guest, connected: socket.socket) -> bool:
        """Whether the process of the guest's device has connected, and nobody else."""
        try:
            peer = peer_of(connected)
        except PeerGone:
            return False
        os.close(peer.pidfd)
        if guest.backend is not None and peer.pid == guest.backend.pid:
            return True
        PEERS.warning(
            "vsock: not its device",
            f"uid {peer.uid}",
            "refused pid %d uid %d at the vsock socket of domain %s: it is not its device",
            *(peer.pid, peer.uid, guest.owner.name),
        )
        return False

    # serving

    async def _serve(self, guest: _Guest, connected: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        guest.opening.add(task)
        try:
            await self._open(guest, connected)
        except RefusalError as refusal:
            name = guest.owner.name
            text = "refused domain %s on vsock: %s"
            PEERS.warning("vsock: refused", name, text, name, refusal.message)
            await _refuse(connected, refusal)
        except TimeoutError:
            name = guest.owner.name
            text = "domain %s connected by vsock and sent no OpenSession"
            PEERS.info("vsock: silent", name, text, name)
        except (PeerGone, OSError, EOFError) as error:
            name, text = guest.owner.name, "domain %s left its vsock connection (%s)"
            PEERS.info("vsock: gone", name, text, name, error, often=OFTEN)
        finally:
            guest.opening.discard(task)

    async def _open(self, guest: _Guest, connected: socket.socket) -> None:
        line = PlainLine(connected)
        async with asyncio.timeout(FIRST_FRAME_SECONDS):
            header = await line.read_exactly(_HEADER_BYTES)
            if is_resumption(header):
                await self._resume(guest, connected, line, header)
                return
            size = check_header(header, MAX_REQUEST_OPTION_BYTES)
            # exactly one frame: what follows it is the worker's
            asked = parse_open_session(header + await line.read_exactly(size - _HEADER_BYTES))
        if asked.channel not in (ChannelKind.AUTO, ChannelKind.VSOCK):
            raise BadOpen(
                CudaStatus.NOT_SUPPORTED,
                f"channel {asked.channel} was asked for, and this is vsock",
            )
        asked = bounded(guest.owner.name, guest.request, asked)
        requester = Requester(
            channel="vsock",
            host=guest.owner.name,
            program=asked.program,
            domain_uuid=guest.owner.uuid,
            domain_name=guest.owner.name,
            own_pid=asked.pid,
        )
        connected.setblocking(True)  # as the worker expects it; nothing here waits on it
        if asked.looks:
            showing = asyncio.create_task(self._lifecycle.view(asked, requester))
            gone = unless_gone(showing, connected.fileno(), lambda: _has_closed(connected))
            await _answer(connected, pack_view(await gone))
            return
        if asked.holds_job:
            await self._hold(connected, asked, requester)
            return

        def tell(line: str) -> None:
            _say(connected, pack_open_reply(CudaStatus.NOT_READY, 0, line))

        terms = self._terms if asked.is_resumable and len(asked.key) >= LEAST_KEY else None
        channel = ConnectedSocket(connected.fileno(), resume=terms)
        request = SessionRequest(without_key(asked), requester, channel)
        opening = asyncio.create_task(self._lifecycle.open(request, tell))
        await unless_gone(opening, connected.fileno(), lambda: _has_closed(connected))

    async def _resume(
        self, guest: _Guest, connected: socket.socket, line: PlainLine, header: bytes
    ) -> None:
        def is_of_guest(session: Session) -> bool:
            who = session.requester
            return who.channel == "vsock" and who.domain_uuid == guest.owner.uuid

        lifecycle = self._lifecycle
        resumption = Resumption(
            line, lifecycle.resumable, lifecycle.end, is_of_guest, relay=lifecycle.resume_relayed
        )
        try:
            await resumption.prove(connected, header)
        except BadOpen:
            raise
        except RefusalError as refusal:
            name, text = guest.owner.name, "refused domain %s on vsock: %s"
            PEERS.warning("vsock: no resumption", name, text, name, refusal.message)
            await _answer(connected, refusal_of(refusal))

    async def _hold(
        self, connected: socket.socket, asked: OpenSession, requester: Requester
    ) -> None:
        part = self._lifecycle.part_of(asked, requester)
        if part is None:
            return
        self._lifecycle.holds.begin(part)
        _say(connected, pack_open_reply(CudaStatus.NOT_READY, 0, "the job is held"))
        try:
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await unless_gone(never, connected.fileno(), lambda: _has_closed(connected))
        finally:
            self._lifecycle.holds.end(part)

    async def _end_all(self, guest: _Guest, why: End) -> None:
        for task in list(guest.opening):
            task.cancel()
        ending = self._sessions_of(guest.owner.uuid)
        for session in ending:
            self._lifecycle.end(session, why)
        for session in ending:
            await session.gone.wait()

    def _sessions_of(self, uuid: str) -> list[Session]:
        return [
            session
            for session in self._lifecycle.served
            if session.requester.channel == "vsock" and session.requester.domain_uuid == uuid
        ]


def _where(place: VsockPlace) -> str:
    return f"CID {place.cid}" if place.cid is not None else "by vhost-user"


def _has_closed(connected: socket.socket) -> bool | None:
    """Whether the guest has; False once it has sent something, which is for its worker."""
    try:
        return not connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return None
    except ConnectionError:
        return True


def _say(connected: socket.socket, reply: bytes) -> None:
    """A whole reply, at once; a guest that does not read is not waited for."""
    try:
        sent = connected.send(reply, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError as error:
        PEERS.info("vsock: no answer", "a guest", "a guest cannot be answered on vsock: %s", error)
        sent = 0
    if sent < len(reply):
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)


async def _refuse(connected: socket.socket, refusal: RefusalError) -> None:
    await _answer(connected, pack_open_reply(refusal.status, 0, refusal.message))


async def _answer(connected: socket.socket, reply: bytes) -> None:
    _say(connected, reply)
    # bytes that nobody read would turn the close into a reset, and the reply would be lost with it
    connected.setblocking(False)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        connected.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(1.0):
            while await loop.sock_recv(connected, 1 << 16):
                pass
