# SPDX-License-Identifier: Apache-2.0
"""`Idempotency-Key`: a creation that is sent twice, because no answer came, happens once.

Put behind the doorway by app.py. A key belongs to its caller and is kept for 24 hours. That a
request with it has begun is stored before the request runs, its answer afterwards; so even a
controller that dies in between never creates twice: it then says that it does not know. Only
creations that succeeded are remembered; what was refused may be tried again with the same key.

Secrets in an answer (a token, a session's one-time key) are repeated from memory, not from the
store: they are never written.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sluice.controller.api.doorway import App, Receive, Scope, Send
from sluice.controller.api.problems import Problem, problem_answer
from sluice.controller.auth.access import Caller
from sluice.controller.pool.model import Document, DocumentRemoved
from sluice.controller.store.store import Store, StoreError

COLLECTION = "idempotency"
KEPT_SECONDS = 24 * 3600.0
MOST_KEYS = 20_000
KEY_MOST_CHARACTERS = 255
SECRET_FIELDS = ("secret", "key")
KEPT_HEADERS = ("content-type", "etag", "location")


@dataclass
class Answer:
    """What was answered to a key; status 0 while it is under way."""

    request: str  # the hash of method, path and body
    began: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    runs: bool = False  # in this process, now


class Idempotency:
    """The middleware."""

    def __init__(
        self,
        app: App,
        store: Store,
        documents: Iterable[Document],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._store = store
        self._wall = wall
        found = [
            (document.key, Answer(**json.loads(document.value)))
            for document in documents
            if document.collection == COLLECTION
        ]
        self._answers = dict(sorted(found, key=lambda item: item[1].began))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs a creation once."""
        key = Headers(scope=scope).get("idempotency-key") if scope["type"] == "http" else None
        caller: Caller | None = scope.get("state", {}).get("caller")
        if key is None or caller is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            if not 0 < len(key) <= KEY_MOST_CHARACTERS:
                raise Problem(
                    422, "Not a key", f"Idempotency-Key has 1 to {KEY_MOST_CHARACTERS} characters"
                )
            body = await _whole_body(receive)
            name = hashlib.sha256(f"{caller.id} {key}".encode()).hexdigest()
            target = f"{scope['method']} {scope['path']}?{scope['query_string']!r} ".encode()
            request = hashlib.sha256(target + body).hexdigest()
            if known := self._known(name):
                await _repeat(known, request, key)(scope, receive, send)
                return
            answer = await self._begin(name, request)
        except Problem as problem:
            await problem_answer(scope["path"], problem)(scope, receive, send)
            return
        try:
            await self._run(name, answer, scope, _again(body, receive), send)
        finally:
            answer.runs = False
            if not answer.status:
                await self._forget([name])

    def _known(self, name: str) -> Answer | None:
        answer = self._answers.get(name)
        return answer if answer and answer.began > self._wall() - KEPT_SECONDS else None

    async def _begin(self, name: str, request: str) -> Answer:
        now = self._wall()
        old = [n for n, answer in self._answers.items() if answer.began <= now - KEPT_SECONDS]
        if len(self._answers) - len(old) >= MOST_KEYS:
            raise Problem(
                429,
                "Too many keys",
                f"{MOST_KEYS} idempotency keys of the last 24 hours are kept, and no more; "
                "send the request without one",
                headers={"Retry-After": "3600"},
            )
        answer = self._answers[name] = Answer(request, now, runs=True)
        await self._forget(old)
        try:
            await self._store.commit([_document(name, answer)])
        except StoreError as error:
            self._answers.pop(name, None)
            raise Problem(503, "The store does not work", str(error)) from None
        return answer

    async def _run(
        self, name: str, answer: Answer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        messages: list[MutableMapping[str, Any]] = []

        async def keep(message: MutableMapping[str, Any]) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        start = messages[0]
        if 200 <= start["status"] < 300:
            headers = Headers(raw=start["headers"])
            answer.headers = {n: headers[n] for n in KEPT_HEADERS if n in headers}
            answer.body = b"".join(m.get("body", b"") for m in messages[1:]).decode()
            answer.status = start["status"]
            # it has happened: an answer that cannot be stored is still the answer
            await self._store_quietly([_document(name, answer)])
        else:
            await self._forget([name])
        for message in messages:
            await send(message)

    async def _forget(self, names: list[str]) -> None:
        gone = [name for name in names if self._answers.pop(name, None)]
        if gone:
            await self._store_quietly([DocumentRemoved(COLLECTION, name) for name in gone])

    async def _store_quietly(self, changes: list[Document] | list[DocumentRemoved]) -> None:
        try:
            await self._store.commit(changes)
        except StoreError:
            return  # the next start then does not know the answer, and says so


def _repeat(known: Answer, request: str, key: str) -> Response:
    if known.request != request:
        raise Problem(
            422,
            "Key is another request's",
            f"Idempotency-Key {key} came with another request within 24 hours; take a new key",
        )
    if known.runs:
        raise Problem(
            409,
            "Request is under way",
            f"the request with Idempotency-Key {key} has not been answered yet; ask again",
            headers={"Retry-After": "1"},
        )
    if not known.status:
        raise Problem(
            409,
            "Outcome is not known",
            f"the controller stopped while the request with Idempotency-Key {key} ran; look "
            "whether it happened, and take a new key if not",
        )
    headers = {**known.headers, "Idempotency-Replayed": "true"}
    return Response(known.body, known.status, headers)


def _document(name: str, answer: Answer) -> Document:
    value = {
        "request": answer.request,
        "began": answer.began,
        "status": answer.status,
        "headers": answer.headers,
        "body": _without_secrets(answer.body),
    }
    return Document(COLLECTION, name, json.dumps(value))


def _without_secrets(body: str) -> str:
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    return json.dumps(_blanked(value))


def _blanked(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "" if k in SECRET_FIELDS else _blanked(v) for k, v in value.items()}
    return [_blanked(each) for each in value] if isinstance(value, list) else value


async def _whole_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            message = await receive()
        except HTTPException as error:
            raise Problem(error.status_code, "Body refused", str(error.detail)) from None
        if message["type"] == "http.disconnect":
            raise Problem(499, "Client hung up", "the client closed the connection")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
