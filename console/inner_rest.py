# SPDX-License-Identifier: Apache-2.0
"""REST, asked by the console for its user: in this process, with the user's rights.

Used by console.acting and by pages of what REST alone has. So whatever the console does passes the
same checks of roles, generations and rates as any other caller's request, and leaves the same line
in the audit trail; there is no second way to change anything.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from sluice.controller.api.access_middleware import FROM_CONSOLE
from sluice.controller.auth.access import Caller

REPLAYED = b"idempotency-replayed"

Asgi = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What REST said."""

    status: int
    body: bytes
    replayed: bool = False  # it is the answer to an earlier request with the same key

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return self.status < 400

    def json(self) -> Any:
        """The body as JSON; {} where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    @property
    def why(self) -> str:
        """Why it was refused, in REST's own words."""
        document = self.json()
        detail = document.get("detail") if isinstance(document, dict) else ""
        return str(detail or f"the controller answered with status {self.status}")


@dataclass(frozen=True, slots=True)
class RestCall:
    """A request: method, path below /v1, query, JSON body, headers."""

    method: str
    path: tuple[str, ...]  # its steps, not escaped
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    if_match: int | None = None  # the generation that was read
    key: str = ""  # Idempotency-Key; empty: none


class InnerRest:
    """Asks the application that the console is part of."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def ask(self, caller: Caller, call: RestCall) -> Answer:
        """The answer, a refusal too."""
        body = json.dumps(call.body).encode() if call.body is not None else b""
        headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
        if call.body is not None:
            headers.append((b"content-type", b"application/json"))
        if call.if_match is not None:
            headers.append((b"if-match", f'"{call.if_match}"'.encode()))
        if call.key:
            headers.append((b"idempotency-key", call.key.encode()))
        path = "/v1/" + "/".join(call.path)
        raw_path = "/v1/" + "/".join(quote(step, safe="") for step in call.path)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": call.method,
            "scheme": "http",
            "path": path,
            "raw_path": raw_path.encode(),
            "root_path": "",
            "query_string": urlencode(call.query).encode(),
            "headers": headers,
            "client": (caller.address, 0),
            "server": ("localhost", 0),
            FROM_CONSOLE: caller,
        }
        status, parts, sent, replayed = 500, [], False, False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, replayed
            if message["type"] == "http.response.start":
                status = message["status"]
                replayed = REPLAYED in dict(message.get("headers", ()))
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return Answer(status, b"".join(parts), replayed)
