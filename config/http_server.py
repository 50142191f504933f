# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that strangers cannot block: uvicorn with limits that it does not have itself.

Used by the controller for REST and by the server for /metrics. Connections are counted where they
are accepted, in all and by address (config.places), TLS handshakes that never end among them, so
that descriptors are left for everything else. A connection has so long to shake hands, to send its
request's headers and to send its body, and one that does not read its answer is given up, also
where all such answers together take too much memory. When all places are taken, the connection that
has waited longest for its request's headers makes room: an honest one sends them at once. Who is
too slow gets 408, who finds no place 503; an address has so many TLS handshakes a second. One sweep
a second looks at the connections' deadlines; a request costs no timer. It promises that a
connection's place is free as soon as its socket is closed, whoever closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sluice.config.buckets import Buckets
from sluice.config.peer_lines import PeerLines
from sluice.config.places import Full, Places, owner_of_address

HANDSHAKE_SECONDS = 10.0
HEADER_SECONDS = 10.0
BODY_SECONDS = 30.0
#: In which a peer reads 48 KiB of its answer, or what is left of it.
READ_SECONDS = 60.0
#: Refused connections that are closed, and others that make room, in one turn of the event loop.
REFUSALS_AT_ONCE = 64
#: Of answers that are written and not read, of all connections.
MOST_UNREAD_BYTES = 256 << 20
#: Of one address: a shake costs the event loop a millisecond or two.
HANDSHAKES_PER_SECOND = 50.0
KEEP_ALIVE_SECONDS = 5
NEVER = float("inf")
TOO_SLOW = "urn:sluice:problem:request-too-slow"
TOO_MANY_CONNECTIONS = "urn:sluice:problem:too-many-connections"

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a server takes, in all and of one address."""

    connections: int
    of_address: int


class Accepted(socket.socket):
    """A connection that gives its place back when it is closed."""

    served = False  # its handshake, if there is one, is done
    opened = 0.0
    owner = ""
    places: Places | None = None

    def close(self) -> None:
        """Closes it, once."""
        super().close()
        if self.places is not None:
            self.places.give_back(self.owner)
            self.places = None

    def __del__(self) -> None:
        self.close()


class GuardedSocket(socket.socket):
    """A listening socket that hands out no more connections than there are places."""

    def guard(
        self,
        name: str,
        limits: ConnectionLimits,
        peers: PeerLines,
        now: Clock,
        make_room: Callable[[], bool],
        *,
        tls: bool,
    ) -> None:
        """Begins to count; to be called once, before anything is accepted.

        make_room() ends a connection whose request is still waited for; False: there is none.
        """
        self._make_room = make_room
        self._handshakes = Buckets(HANDSHAKES_PER_SECOND if tls else 0, now)
        self._name = name
        self._peers = peers
        self._now = now
        self._tls = tls
        self.places = Places(limits.connections, limits.of_address)
        self._accepted: dict[int, Accepted] = {}  # those that are not served yet, by descriptor

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that has a place; raises BlockingIOError where there is none."""
        for _ in range(REFUSALS_AT_ONCE):
            plain, peer = super().accept()
            owner = owner_of_address(str(peer[0]))
            if self._handshakes.take(owner):
                self._close(plain, owner, "handshakes", f"{owner} connects too often")
                continue
            full = self.places.full_for(owner)
            # its place is free a moment later
            if full and not (full is Full.ALL and (self._drop_one() or self._make_room())):
                self._refuse(plain, owner, full)
                continue
            self.places.put(owner)
            kind = (plain.family, plain.type, plain.proto)
            connected = Accepted(*kind, fileno=plain.detach())
            connected.owner, connected.places = owner, self.places
            connected.opened = self._now()
            self._accepted[connected.fileno()] = connected
            _notice_death(connected)
            return connected, peer
        raise BlockingIOError

    def served(self, descriptor: int) -> None:
        """The handshake of this connection is done, and its protocol looks after it."""
        if connected := self._accepted.pop(descriptor, None):
            connected.served = True

    def sweep(self) -> None:
        """Closes what has not shaken hands in time."""
        now = self._now()
        for descriptor, connected in list(self._accepted.items()):
            if connected.fileno() != descriptor:  # closed meanwhile
                del self._accepted[descriptor]
            elif now - connected.opened >= HANDSHAKE_SECONDS:
                del self._accepted[descriptor]
                text = "%s: %s did not shake hands within %g s"
                owner = connected.owner
                self._peers.info(
                    f"{self._name}: handshake", owner, text, self._name, owner, HANDSHAKE_SECONDS
                )
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)  # its transport sees the end

    def _drop_one(self) -> bool:
        """Ends the handshake that is waited for longest, if half of its time is over."""
        for descriptor, connected in self._accepted.items():
            if self._now() - connected.opened < HANDSHAKE_SECONDS / 2:
                return False
            del self._accepted[descriptor]
            if connected.fileno() == descriptor:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
                return True
            return False
        return False

    def _close(self, connected: socket.socket, owner: str, kind: str, why: str) -> None:
        connected.close()
        self._peers.warning(f"{self._name}: {kind}", owner, "%s: %s", self._name, why)

    def _refuse(self, connected: socket.socket, owner: str, full: Full) -> None:
        of = self.places.of(owner)
        why = (
            f"{owner} has {of} of the {self.places.most} connections of {self._name} and gets no "
            "more for now"
            if full is Full.OWNER
            else f"all {self.places.most} connections of {self._name} are taken"
        )
        with connected, contextlib.suppress(OSError):
            if not self._tls:
                connected.setblocking(False)
                connected.send(raw_problem(503, TOO_MANY_CONNECTIONS, "Too many connections", why))
        self._peers.warning(f"{self._name}: no place", owner, "%s", why)


class GuardedProtocol(H11Protocol):
    """One connection, with deadlines."""

    def __init__(self, server: GuardedServer, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._server = server
        self._phase: tuple[object, object] = (None, None)
        self._deadline = NEVER
        self._read_by = NEVER
        self._begun = False  # it has sent something of the request that is waited for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called when the handshake, if there is one, is done."""
        super().connection_made(transport)
        if (connected := transport.get_extra_info("socket")) is not None:
            self._server.listening.served(connected.fileno())
        self._server.protocols.add(self)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called once."""
        self._server.protocols.discard(self)
        self._server.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called with what has come."""
        self._begun = True
        super().data_received(data)

    def handle_events(self) -> None:
        """Called with new data and when the next request may be looked at."""
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        """Called when an answer has been written."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Called when the peer does not read."""
        super().pause_writing()
        self._read_by = self._server.now() + READ_SECONDS

    def resume_writing(self) -> None:
        """Called when it has read."""
        super().resume_writing()
        self._read_by = NEVER

    @property
    def unread_bytes(self) -> int:
        """What was written and is still here."""
        return self.transport.get_write_buffer_size()

    def end(self) -> None:
        """Ends the connection, with whatever is still to be read of it."""
        self.transport.abort()

    def sweep(self, now: float) -> None:
        """Ends what is too slow."""
        if self.transport.is_closing():
            # what was written is waited for, and no longer than this
            self._read_by = min(self._read_by, now + READ_SECONDS)
        if now >= self._read_by:
            self._give_up("does not read its answer")
            self.transport.abort()
        elif now >= self._deadline and not self.transport.is_closing():
            self._too_slow()

    def _look(self) -> None:
        """Sets the deadline anew when the request got on: not with each of its bytes."""
        theirs = self.conn.their_state
        phase = (theirs, self.cycle)
        if self.transport.is_closing():
            self._server.waiting.pop(self, None)
            return
        if phase[0] is self._phase[0] and phase[1] is self._phase[1]:
            return
        self._phase = phase
        now = self._server.now()
        if theirs is h11.IDLE:
            idle = self.timeout_keep_alive if self.cycle else 0
            self._deadline = now + idle + HEADER_SECONDS
            self._begun = False
            self._server.waiting[self] = None
            return
        self._server.waiting.pop(self, None)
        if theirs is h11.SEND_BODY:
            self._deadline = now + BODY_SECONDS
        else:
            self._deadline = NEVER  # the request is whole; its answer takes what it takes

    def _too_slow(self) -> None:
        in_body = self.conn.their_state is h11.SEND_BODY
        what = "body" if in_body else "headers"
        seconds = BODY_SECONDS if in_body else HEADER_SECONDS
        answers = self.cycle is not None and self.cycle.response_started
        if in_body or self._begun:
            self._give_up(f"did not send its request's {what} within {seconds:g} s")
        if (in_body and not answers) or (not in_body and self._begun):
            detail = f"the {what} did not come within {seconds:g} s"
            self.transport.write(raw_problem(408, TOO_SLOW, "Request too slow", detail))
        if in_body:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self._deadline = NEVER

    def _give_up(self, why: str) -> None:
        owner = owner_of_address(self.client[0]) if self.client else "nobody"
        name = self._server.name
        self._server.peers.info(f"{name}: too slow", owner, "%s: %s %s", name, owner, why)


class GuardedServer(uvicorn.Server):
    """The server of one port."""

    def __init__(
        self,
        name: str,
        app: Any,
        limits: ConnectionLimits,
        peers: PeerLines,
        now: Clock = time.monotonic,
        **options: Any,
    ) -> None:
        """`name` is what its log lines call it; `options` are uvicorn's."""
        self.name = name
        self.peers = peers
        self.now = now
        self.protocols: set[GuardedProtocol] = set()
        #: Those whose request's headers are waited for, the longest first.
        self.waiting: dict[GuardedProtocol, None] = {}
        self._limits = limits
        self._next_sweep = 0.0
        defaults = {"timeout_keep_alive": KEEP_ALIVE_SECONDS}
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(GuardedProtocol, self),  # type: ignore[arg-type]
                ws="none",
                interface="asgi3",
                log_config=None,
                access_log=False,
                lifespan="off",
                proxy_headers=False,  # nobody is believed about where it calls from
                server_header=False,
                **{**defaults, **options},
            )
        )
        self.config.load()

    def listen(self, host: str, port: int) -> int:
        """Takes the port and returns its number; raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listening = GuardedSocket(family, socket.SOCK_STREAM)
        try:
            self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # its connections have it as well: a small answer goes out in two pieces, and without
            # this the second one waits for the acknowledgement of the first, some 40 ms
            self.listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.listening.bind((host, port))
        except OSError:
            self.listening.close()
            raise
        tls = self.config.ssl is not None
        guard = self.listening.guard
        guard(self.name, self._limits, self.peers, self.now, self._make_room, tls=tls)
        self.listening.listen(128)
        found: int = self.listening.getsockname()[1]
        return found

    async def run_until_closed(self) -> None:
        """Serves until should_exit is set."""
        await self.serve(sockets=[self.listening])

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if (now := self.now()) >= self._next_sweep:
            self._next_sweep = now + 1.0
            self.sweep()
        return await super().on_tick(counter)

    def sweep(self) -> None:
        """Ends what is too slow."""
        self.listening.sweep()
        now = self.now()
        unread = 0
        for protocol in list(self.protocols):
            protocol.sweep(now)
            unread += protocol.unread_bytes
        if unread > MOST_UNREAD_BYTES:
            self._drop_unread(unread)

    def _make_room(self) -> bool:
        """Ends the connection that has sent nothing whole for longest."""
        while self.waiting:
            protocol = next(iter(self.waiting))
            del self.waiting[protocol]
            if not protocol.transport.is_closing():
                self.peers.info(f"{self.name}: made room", self.name, "%s is full", self.name)
                protocol.end()
                return True
        return False

    def _drop_unread(self, unread: int) -> None:
        """Those with the longest answers lose them."""
        for protocol in sorted(self.protocols, key=lambda each: -each.unread_bytes):
            if unread <= MOST_UNREAD_BYTES:
                return
            unread -= protocol.unread_bytes
            text = "%s: unread answers take more than %d MiB"
            name, mib = self.name, MOST_UNREAD_BYTES >> 20
            self.peers.warning(f"{name}: unread answers", name, text, name, mib)
            protocol.end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the service's own main."""
        yield


def raw_problem(status: int, kind: str, title: str, detail: str) -> bytes:
    """A whole answer, for where no application is asked."""
    body = json.dumps({"type": kind, "title": title, "status": status, "detail": detail}).encode()
    reason = {408: "Request Timeout", 503: "Service Unavailable"}[status]
    head = (
        f"HTTP/1.1 {status} {reason}\r\n"
        "Content-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Retry-After: 1\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _notice_death(connected: socket.socket) -> None:
    """A peer that vanished (no power, no cable) is noticed within three minutes."""
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 90)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
