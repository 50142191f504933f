# SPDX-License-Identifier: Apache-2.0
"""The certificates of the controller's listeners, read and checked before one opens.

Used by controller.service. With `node_ca_file` the gRPC listener takes servers with a certificate
of that CA only; the certificate's common name is then the node's name (auth/node_guard.py).
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from sluice.config.controller import TlsSection


class TlsError(Exception):
    """A certificate or key cannot be used; the message names it and the way out."""


def rest_options(section: TlsSection) -> dict[str, Any]:
    """What uvicorn is told; raises TlsError."""
    if not section.cert_file or not section.key_file:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(section.cert_file, section.key_file)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(
            f"[tls] cert_file = {section.cert_file}, key_file = {section.key_file}: cannot be used "
            f"({error}); make them with `sluice ca issue`, readable for the controller"
        ) from None
    return {"ssl_certfile": str(section.cert_file), "ssl_keyfile": str(section.key_file)}


def grpc_credentials(section: TlsSection) -> grpc.ServerCredentials | None:
    """The gRPC listener's credentials, None for plain text; raises TlsError."""
    if not section.cert_file or not section.key_file:
        return None
    pair = (_read(section.key_file), _read(section.cert_file))
    ca = _read(section.node_ca_file) if section.node_ca_file else None
    return grpc.ssl_server_credentials(
        [pair], root_certificates=ca, require_client_auth=ca is not None
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"[tls] {path}: cannot be read ({error.strerror})") from None
