# SPDX-License-Identifier: Apache-2.0
"""The small listener that Prometheus scrapes: GET /metrics and nothing else.

Started by server.service where [metrics] listen names an address. It speaks TLS where the node has
a certificate, wants a bearer token where one is configured, and promises that a scraper, however
slow or many, costs the server no more than a few connections (config.http_server).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from sluice.config.http_server import ConnectionLimits, GuardedServer
from sluice.config.peer_lines import SERVER as PEERS
from sluice.config.sections import split_address
from sluice.config.server_connections import MetricsSection, TlsSection

log = logging.getLogger("sluice.server")

LIMITS = ConnectionLimits(connections=64, of_address=16)
KEEP_ALIVE_SECONDS = 75  # longer than most scrape intervals
TEXT = "text/plain; charset=utf-8"

Scrape = Callable[[str], Awaitable[tuple[bytes, str]]]


class MetricsListener:
    """Listens until it is closed."""

    def __init__(self, section: MetricsSection, tls: TlsSection, scrape: Scrape) -> None:
        """Raises OSError for a token that cannot be read."""
        assert section.listen
        self._address = section.listen
        self._tls = tls
        self._scrape = scrape
        self._token = _read_token(section.token_file)
        self._serving: asyncio.Task[None] | None = None
        self.port = 0

    def open(self) -> None:
        """Begins to listen; raises OSError."""
        host, port = split_address(self._address)
        self._server = GuardedServer(
            "metrics",
            self._answer,
            LIMITS,
            PEERS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ssl_certfile=self._tls.cert_file,
            ssl_keyfile=self._tls.key_file,
        )
        self.port = self._server.listen(host, port)
        self._serving = asyncio.create_task(self._server.run_until_closed())
        log.info("metrics: %s:%d", host, self.port)
        if not _is_loopback(host) and not (self._token and self._tls.cert_file):
            log.warning(
                "[metrics] listen = %s: whoever reaches it reads this host's figures%s",
                self._address,
                " or the token, as there is no [tls] cert_file"
                if self._token
                else "; set [metrics] token_file and [tls], or a firewall",
            )

    async def close(self) -> None:
        """Stops listening."""
        if self._serving:
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
            self._serving = None

    async def _answer(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        extra: list[tuple[bytes, bytes]] = []
        if not self._may(headers.get("authorization", b"")):
            status, body, kind = 401, b"a bearer token is wanted: [metrics] token_file\n", TEXT
            extra = [(b"www-authenticate", b"Bearer")]
        elif scope["path"] != "/metrics":
            status, body, kind = 404, b"there is /metrics here, and nothing else\n", TEXT
        elif scope["method"] not in ("GET", "HEAD"):
            status, body, kind = 405, b"GET /metrics\n", TEXT
            extra = [(b"allow", b"GET, HEAD")]
        else:
            accept = headers.get("accept", b"").decode("latin-1")
            status, (body, kind) = 200, await self._scrape(accept)
        about = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            *extra,
        ]
        await send({"type": "http.response.start", "status": status, "headers": about})
        shown = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": shown})

    def _may(self, authorization: bytes) -> bool:
        if not self._token:
            return True
        scheme, _, secret = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(secret.strip(), self._token)


def _read_token(path: Path | None) -> bytes:
    if path is None:
        return b""
    token = path.read_bytes().strip()
    if not token:
        raise OSError(0, "there is no token in it", str(path))
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
