# SPDX-License-Identifier: Apache-2.0
"""An OpenID Connect provider that does what a test says, right or wrong, over a real socket.

It serves what real providers never send: tokens of other issuers and keys, nonsense, answers
without end. tests/console/provider.py has a real one.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT, SECRET = "sluice", "s3cret + &"
Answer = tuple[int, dict[str, str], bytes]


def rsa(name: str) -> RSAKey:
    """A new key of that name."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


@functools.cache
def own_key() -> RSAKey:
    """Every provider's first: making one takes a while."""
    return rsa("one")


class ScriptedProvider:
    """Right unless told otherwise: `claims`, `key`, `answers` by path, and `token_answer`."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        """With a certificate and its key it speaks TLS."""
        self.key: Any = own_key()
        self.keys: list[Any] = [self.key]
        self.algorithm = "RS256"
        self.header: dict[str, Any] = {}
        self.claims: dict[str, Any] = {"sub": "1", "preferred_username": "alice"}
        self.metadata: dict[str, Any] = {}
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], Answer | None]] = {}
        self.asked: list[str] = []
        self.forms: list[dict[str, list[str]]] = []
        self.nonce = ""
        self.challenge = ""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.serve(self)

            do_POST = do_GET  # noqa: N815 - as the standard library calls it

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if certificate else "http"
        self.issuer = f"{scheme}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def went(self, address: str) -> dict[str, str]:
        """Takes in where a browser was sent; returns its query."""
        query = {name: value[0] for name, value in parse_qs(urlsplit(address).query).items()}
        self.nonce, self.challenge = query["nonce"], query["code_challenge"]
        return query

    def id_token(self, **more: Any) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": self.nonce,
            **self.claims, **more,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.algorithm, "kid": "one", **self.header}
        header = {name: value for name, value in header.items() if value is not None}
        if self.algorithm == "none" or isinstance(self.key, bytes):  # no library makes these
            parts = [json.dumps(each).encode() for each in (header, claims)]
            text = ".".join(_packed(each) for each in parts)
            if self.algorithm == "none":
                return text + "."
            return f"{text}.{_packed(hmac.digest(self.key, text.encode(), 'sha256'))}"
        return jwt.encode(header, claims, self.key, algorithms=[self.algorithm])

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        self.asked.append(path)
        length = int(handler.headers.get("content-length", 0))
        form = parse_qs(handler.rfile.read(length).decode())
        self.forms.append(form)
        given = self.answers[path](handler) if path in self.answers else self._right(path, form)
        if given is None:
            return
        status, headers, body = given
        handler.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _right(self, path: str, form: dict[str, list[str]]) -> Answer:
        if path == "/.well-known/openid-configuration":
            return as_json({
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "userinfo_endpoint": f"{self.issuer}/userinfo",
                **self.metadata,
            })  # fmt: skip
        if path == "/keys":
            return as_json({"keys": [key.as_dict(private=False) for key in self.keys]})
        if path == "/token":
            verifier = form.get("code_verifier", [""])[0]
            proven = _packed(hashlib.sha256(verifier.encode()).digest())
            if proven != self.challenge or form.get("code") != ["right"]:
                return as_json({"error": "invalid_grant"}, 400)
            return as_json(
                {"access_token": "access", "token_type": "Bearer", "id_token": self.id_token()}
            )
        if path == "/userinfo":
            return as_json({"sub": self.claims.get("sub"), "groups": ["gpu-ops"]})
        return as_json({}, 404)


def as_json(value: Any, status: int = 200) -> Answer:
    return status, {"content-type": "application/json"}, json.dumps(value).encode()


def shared_key(secret: str) -> OctKey:
    """A symmetric one."""
    return OctKey.import_key(secret, {"kid": "one"})


def for_any_algorithm() -> RSAKey:
    """The first key, which does not say what it is for."""
    found = own_key().as_dict(private=True)
    return RSAKey.import_key({name: value for name, value in found.items() if name != "alg"})


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
