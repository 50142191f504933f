# SPDX-License-Identifier: Apache-2.0
"""Certificates of a pool's own CA, good ones and bad ones, and servers that only shake hands.

Used by tests/server. They are made by the code behind `sluice ca`.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from sluice.cli import certificates


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path

    def setting(self) -> dict[str, Path]:
        """As [tls] takes them."""
        return {"cert_file": self.cert, "key_file": self.key}


class PoolCa:
    """A CA in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file, _ = certificates.make_ca(folder)

    def issue(
        self, name: str, *addresses: str, kind: certificates.Kind = "node", days: int = 30
    ) -> Pair:
        """A certificate for a name and addresses."""
        return Pair(*certificates.issue(self.folder, self.folder, name, kind, addresses, days))

    def issue_expired(self, name: str, *addresses: str) -> Pair:
        """One that was good until yesterday."""
        with mock.patch.object(certificates, "BACKDATED", datetime.timedelta(days=3)):
            return self.issue(name, *addresses, days=-1)


@dataclass
class Handshaker:
    """What a server that speaks TLS and nothing else was sent beyond its handshake."""

    port: int = 0
    heard: list[bytes] = field(default_factory=list)


@contextlib.contextmanager
def handshaker(pair: Pair) -> Iterator[Handshaker]:
    """A server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    seen = Handshaker()

    def serve(connected: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connected, True) as secure:
            secure.settimeout(5)
            seen.heard.append(secure.recv(4096))

    with listening(serve) as seen.port:
        yield seen


@contextlib.contextmanager
def listening(serve: object) -> Iterator[int]:
    """A port whose connections go to `serve`, one after the other."""
    assert callable(serve)
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            with connected, contextlib.suppress(OSError):
                connected.settimeout(10)
                serve(connected)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(15)
