# SPDX-License-Identifier: Apache-2.0
"""BreakingNetwork: a way to a TCP port whose connections are cut, silenced or refused when told to.

Threads that pass bytes on, between an address of the loopback network and the port's own. After how
many bytes a connection is cut a seed decides, so a failure can be had again.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from dataclasses import dataclass

from sluice.protocol.frames import ControlFunction

PIECE = 64 << 10
#: What opens a session, in either direction: that is not cut. Under TLS with its handshake.
OPENING_BYTES = 4096
OPENING_BYTES_OF_TLS = 16384
OPEN_SESSION = ControlFunction.OPEN_SESSION.to_bytes(2, "little")


@dataclass(eq=False)
class Connection:
    """Both its sockets, and what each direction passes until it is cut; None: all there is."""

    near: socket.socket
    far: socket.socket
    left: list[int | None]
    passed: int = 0  #: bytes, in both directions
    hides_ends: bool = False  #: where one end closes it the other is not told
    directions: int = 2  #: that are passed on
    is_cut: bool = False  #: after so many bytes

    def cut(self) -> None:
        """Both ends see it closed."""
        for one in (self.near, self.far):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class BreakingNetwork:
    """Between `address` and 127.0.0.1, on one port; a context manager."""

    def __init__(self, port: int, address: str = "127.0.0.2") -> None:
        self.address, self.port = address, port
        self.source = ""  #: the address of this host that new connections come from; "": any
        self.cuts = 0
        self.refused = 0  #: connections that were cut as soon as they were made
        self.connections: list[Connection] = []  #: all that there were
        self._most: int | None = None
        self._spares = False
        self._random = random.Random(0)
        self._refuses = False
        self._passes = (threading.Event(), threading.Event())  # by direction
        self.silence(False)
        self._lock = threading.Lock()
        self._live: set[Connection] = set()
        self._listener = socket.create_server((address, port), backlog=512)

    def __enter__(self) -> BreakingNetwork:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """For good: nobody listens there any more."""
        self.silence(False)
        self._refuses = True
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut_within(self, most: int | None, seed: int = 0) -> None:
        """From now on each direction of a new connection passes at most so many bytes.

        One that opens a session passes so many more as that takes; under TLS nobody sees that
        (spare_next).
        """
        with self._lock:
            self._most, self._random = most, random.Random(seed)

    def spare_next(self) -> None:
        """The next connection is to open a session, under TLS: it passes what that takes."""
        with self._lock:
            self._spares = True

    def cut(self) -> None:
        """All connections that there are, at once."""
        with self._lock:
            live = list(self._live)
        for connection in live:
            connection.cut()

    def refuse(self, refuses: bool = True) -> None:
        """Cuts what is new as soon as it is made."""
        self._refuses = refuses

    def silence(self, silent: bool = True, only: int | None = None) -> None:
        """Passes nothing on, in both directions or in one; nobody is told."""
        for direction, passes in enumerate(self._passes):
            if only in (None, direction):
                passes.clear() if silent else passes.set()

    # within

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refuses:
                    self.refused += 1
                    raise ConnectionRefusedError
                way, source = ("127.0.0.1", self.port), (self.source, 0) if self.source else None
                far = socket.create_connection(way, timeout=5, source_address=source)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                more = OPENING_BYTES_OF_TLS if self._spares else 0
                self._spares = False
                left = [
                    self._random.randint(1, self._most) + more if self._most else None for _ in "12"
                ]
                connection = Connection(near, far, left)
                self._live.add(connection)
                self.connections.append(connection)
            for direction in (0, 1):
                threading.Thread(
                    target=self._pass, args=(connection, direction), daemon=True
                ).start()

    def _pass(self, connection: Connection, direction: int) -> None:
        ends = connection.near, connection.far
        source, sink = ends[direction], ends[1 - direction]
        left, first = connection.left, True
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while left[direction] != 0:
                got = source.recv(min(PIECE, left[direction] or PIECE))
                if not got:
                    break
                if first and direction == 0 and got[4:6] == OPEN_SESSION:
                    left[:] = [n + OPENING_BYTES if n else None for n in left]
                first = False
                self._passes[direction].wait()
                sink.sendall(got)
                with self._lock:
                    connection.passed += len(got)
                if (most := left[direction]) is not None:
                    left[direction] = most - len(got)
        if connection.hides_ends:
            return
        # Like a network: what was sent before an end is passed on, in the other direction as well.
        if is_cut := left[direction] == 0:
            connection.cut()
        else:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        with self._lock:
            self.cuts += is_cut and not connection.is_cut
            connection.is_cut |= is_cut
            connection.directions -= 1
            if connection.directions > 0:
                return
            self._live.remove(connection)
        connection.near.close()  # whoever is through last
        connection.far.close()
