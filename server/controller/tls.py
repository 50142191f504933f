# SPDX-License-Identifier: Apache-2.0
"""How this server's connection to the controller is protected, and what it shows there.

Used by controller.link. With a CA it is TLS and the controller's certificate is checked; the
node shows its own certificate, or its token. The token is read again for each stream, so a new one
in the file is used without a restart.
"""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from sluice.config.server_connections import TlsSection

log = logging.getLogger("sluice.server")

OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # a network that swallows everything tells nobody, and the kernel sends again ever more seldom
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
)


class ControllerCredentials:
    """Certificates and token; raises OSError for a file that cannot be read."""

    def __init__(self, tls: TlsSection | None = None, token_file: Path | None = None) -> None:
        self._token_file = token_file
        self._credentials: grpc.ChannelCredentials | None = None
        self.metadata: tuple[tuple[str, str], ...] = ()
        if tls and tls.ca_file:
            self._credentials = grpc.ssl_channel_credentials(
                tls.ca_file.read_bytes(),
                tls.key_file.read_bytes() if tls.key_file else None,
                tls.cert_file.read_bytes() if tls.cert_file else None,
            )
        if token_file:
            self._read_token(token_file)
            if not self._credentials:
                log.warning("[tls] ca_file is not set: the node's token travels in the clear")

    def renew(self) -> None:
        """Takes a token that was changed meanwhile; keeps the old one if it cannot be read."""
        if self._token_file:
            try:
                self._read_token(self._token_file)
            except OSError as error:
                log.warning("%s: cannot be read (%s)", self._token_file, error.strerror)

    def channel(self, target: str) -> grpc.aio.Channel:
        """A connection to a controller."""
        if self._credentials:
            return grpc.aio.secure_channel(target, self._credentials, options=OPTIONS)
        return grpc.aio.insecure_channel(target, options=OPTIONS)

    def _read_token(self, path: Path) -> None:
        self.metadata = (("authorization", f"Bearer {path.read_text().strip()}"),)
