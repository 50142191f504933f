# SPDX-License-Identifier: Apache-2.0
"""The way in for every REST request: how often, who, how large; and what is written down of it.

Put before the application by app.py, as plain ASGI, so that nothing of a request is parsed before
its caller is known. A browser's requests of the console are known by their session; what the
console then asks of this API for its user comes with the caller that was found (FROM_CONSOLE). What
changes something is stored in the audit trail before its answer goes out.
Refusals of callers without a valid token are logged and not stored, those of one that has one only
so often: otherwise they could push the trail's older lines out of the store. A caller has so many
requests under way at a time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from sluice.config.buckets import Buckets
from sluice.config.log_ids import request_id
from sluice.config.peer_lines import CONTROLLER as PEERS
from sluice.config.places import Places, owner_of_address
from sluice.controller.api.problems import Problem, no_place, problem_answer
from sluice.controller.auth.access import Access, Caller, Denied
from sluice.controller.auth.audit import DENIED
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.auth.keystone import KeystoneBusy, KeystoneTokens
from sluice.resources.problem_types import ProblemType

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PUBLIC = {"/v1/openapi.json"}  # description.PATH: what stands here is cheap to answer
FOR_NOVA = "/v1/vendordata"  # the one path where Keystone's tokens count
READS = {"GET", "HEAD", "OPTIONS"}
BODY_MOST_BYTES = 1 << 20
TOO_LARGE = f"a body has at most {BODY_MOST_BYTES} bytes"
UNANSWERED = 499
IDEMPOTENCY_KEY = b"idempotency-key"
#: The caller of what the console asks: in the scope, where nothing that a peer sends gets to.
FROM_CONSOLE = "sluice.console_caller"
#: Requests under way, those that wait for a grant and event streams among them.
MOST_UNDER_WAY = 4096
MOST_OF_CALLER = 1024
KEPT_FOR_OPERATORS = 64


class AccessMiddleware:
    """The middleware."""

    def __init__(
        self,
        app: App,
        access: Access,
        buckets: Buckets,
        keystone: KeystoneTokens | None = None,
        browsers: BrowserSessions | None = None,
    ) -> None:
        self._app = app
        self._browsers = browsers
        self._keystone = keystone
        self._access = access
        self._buckets = buckets
        self.under_way = Places(MOST_UNDER_WAY, MOST_OF_CALLER, kept=KEPT_FOR_OPERATORS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        address = scope["client"][0] if scope.get("client") else ""
        try:
            self._slow_down(f"address {owner_of_address(address)}")
            caller = await self._authenticate(scope, headers, address)
            if caller and caller.id not in ("local", "anyone"):
                self._slow_down(f"token {caller.id}")
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > BODY_MOST_BYTES:
                raise _too_large()
            owner = caller.owner if caller else f"address {owner_of_address(address)}"
            privileged = caller is not None and caller.is_operator
            if full := self.under_way.take(owner, privileged=privileged):
                what = f"{self.under_way.of(owner)} requests under way"
                raise no_place(
                    full, ProblemType.TOO_MANY_REQUESTS_UNDER_WAY, owner, what, "wait for some"
                )
        except Problem as problem:
            await problem_answer(scope["path"], problem)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        receive = _bounded(receive)
        with self.under_way.held(owner):
            if caller is None or self._is_browsers(scope):
                # the console writes down what it does itself; the rest comes back here, and so do
                # its keys of idempotency: one of a browser's would answer before its form is judged
                scope["headers"] = [h for h in scope["headers"] if h[0] != IDEMPOTENCY_KEY]
                await self._app(scope, receive, send)
            else:
                await self._recorded(caller, scope, receive, send)

    def _slow_down(self, name: str) -> None:
        if wait := self._buckets.take(name):
            raise Problem(
                429,
                ProblemType.TOO_MANY_REQUESTS,
                f"{name} asks too often; wait {wait:.2g} s ([auth] requests_per_second)",
                # a connection that goes on asking costs more than its answers
                headers={"Retry-After": str(math.ceil(wait)), "Connection": "close"},
            )

    async def _authenticate(self, scope: Scope, headers: Headers, address: str) -> Caller | None:
        asker: Caller | None = scope.get(FROM_CONSOLE)
        if asker is not None:
            return asker
        if self._browsers is not None and self._is_browsers(scope):
            secret = self._browsers.secret_in(headers, tls=scope.get("scheme") == "https")
            return self._browsers.caller(secret, address)
        given = headers.get("authorization")
        try:
            if self._keystone and scope["path"] == FOR_NOVA and "x-auth-token" in headers:
                return await self._keystone.caller(headers["x-auth-token"], address)
            if given is None:
                return self._access.without_token(address, headers)
            scheme, _, secret = given.partition(" ")
            if scheme.lower() != "bearer" or not secret.strip():
                raise Denied("Authorization is not `Bearer TOKEN`")
            return self._access.by_token(secret.strip(), address)
        except KeystoneBusy as busy:
            PEERS.warning("REST: Keystone is busy", address, "refused %s: %s", address, busy)
            raise Problem(
                429 if busy.of_address else 503,
                ProblemType.KEYSTONE_BUSY,
                str(busy),
                headers={"Retry-After": "2"},
            ) from None
        except Denied as denied:
            if given is None and scope["path"] in PUBLIC:
                return None
            what = f"{scope['method']} {_path(scope)} from {address}: {denied}{_request()}"
            if denied.subject:
                await self._access.audit.refused(DENIED, denied.subject, what)
            else:
                PEERS.warning("REST: no token", address, "refused %s", what)
            error = ' error="invalid_token"' if given is not None else ""
            raise Problem(
                401,
                ProblemType.NOT_AUTHENTICATED,
                str(denied),
                headers={"WWW-Authenticate": f'Bearer realm="sluice"{error}'},
            ) from None

    def _is_browsers(self, scope: Scope) -> bool:
        return self._browsers is not None and self._browsers.is_for(scope["path"])

    async def _recorded(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        method, status = scope["method"], 0

        async def note(code: int) -> None:
            nonlocal status
            status = code
            if method not in READS or code == 403:
                kind = DENIED if code == 403 else f"audit.{method.lower()}"
                by = ", by the console" if FROM_CONSOLE in scope else ""
                what = f"{method} {_path(scope)}: {code}, {caller}{by}{_request()}"
                audit = self._access.audit
                await (audit.refused if code >= 400 else audit.changed)(kind, caller.id, what)

        async def send_recorded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                await note(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_recorded)
        finally:
            if not status:  # the caller is gone, or the handler failed; what it did is not undone
                await note(UNANSWERED)


def _bounded(receive: Receive) -> Receive:
    """Ends a request whose body grows beyond the limit without having said so."""
    seen = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_MOST_BYTES:
            # the framework passes this one on, and makes 400 of any other
            raise HTTPException(413, TOO_LARGE)
        return message

    return counted


def _request() -> str:
    name = request_id()
    return f", request {name}" if name else ""


def _path(scope: Scope) -> str:
    """The path as it was sent: escaped, so that it is one line of the log."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("ascii", "backslashreplace")
    return raw.decode("ascii", "backslashreplace")[:300]


def _too_large() -> Problem:
    return Problem(413, ProblemType.BODY_TOO_LARGE, TOO_LARGE)
