# SPDX-License-Identifier: Apache-2.0
"""`Idempotency-Key`: a creation that is sent twice, because no answer came, happens once.

Put behind the access middleware by app.py. A key belongs to its caller and is kept for 24 hours; a
caller that uses so many that they would be others' places loses its oldest ones, but none of the
last ten minutes. That a request with it has begun is stored before the request runs, its answer
afterwards; so even a controller that dies in between never creates twice: it then says that it does
not know. Only creations that succeeded are remembered; what was refused may be tried again with the
same key.

Secrets in an answer (a token, a session's one-time key) are repeated from memory, not from the
store: they are never written.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sluice.config.places import Full, Places
from sluice.controller.api.access_middleware import App, Receive, Scope, Send
from sluice.controller.api.problems import Problem, problem_answer
from sluice.controller.auth.access import Caller
from sluice.controller.pool.model import Document, DocumentRemoved
from sluice.controller.store.store import Store, StoreError
from sluice.resources.problem_types import ProblemType

COLLECTION = "idempotency"
KEPT_SECONDS = 24 * 3600.0
#: Nothing younger makes room for another key: whoever got no answer asks again within minutes.
LEAST_SECONDS = 600.0
MOST_KEYS = 20_000
MOST_OF_CALLER = 4_000
#: Answers that are kept, in all and of one caller.
MOST_BYTES = 256 << 20
MOST_BYTES_OF_CALLER = 32 << 20
KEY_MOST_CHARACTERS = 255
SECRET_FIELDS = ("secret", "key")
KEPT_HEADERS = ("content-type", "etag", "location")
#: Whose a key is, as a hash. It is stored among the answer's headers, as 0.1 refuses fields of an
#: answer that it does not know; that release would send it to the key's own caller.
OWNER_HEADER = "sluice-key-owner"


@dataclass
class Answer:
    """What was answered to a key; status 0 while it is under way."""

    request: str  # the hash of method, path and body
    began: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    runs: bool = False  # in this process, now
    owner: str = ""  # a hash; empty: a release wrote it that did not say


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
            (document.key, _answer(document.value))
            for document in documents
            if document.collection == COLLECTION
        ]
        self._answers: dict[str, Answer] = {}  # the oldest first
        self._names: dict[str, dict[str, None]] = {}  # by owner, the oldest first
        self._places = Places(MOST_KEYS, MOST_OF_CALLER)
        self._bytes: Counter[str] = Counter()  # by owner
        for name, answer in sorted(found, key=lambda item: item[1].began):
            self._add(name, answer)

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
                    422,
                    ProblemType.INVALID_KEY,
                    f"Idempotency-Key has 1 to {KEY_MOST_CHARACTERS} characters",
                )
            body = await _whole_body(receive)
            name = hashlib.sha256(f"{caller.id} {key}".encode()).hexdigest()
            target = f"{scope['method']} {scope['path']}?{scope['query_string']!r} ".encode()
            request = hashlib.sha256(target + body).hexdigest()
            if known := self._known(name):
                await _repeat(known, request, key)(scope, receive, send)
                return
            answer = await self._begin(name, request, caller.owner)
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

    async def _begin(self, name: str, request: str, owner: str) -> Answer:
        now = self._wall()
        answer = Answer(request, now, runs=True, owner=_owner(owner))
        gone = [each for each in list(self._outdated(now)) if self._remove(each)]
        while full := self._full_for(answer.owner):
            oldest = self._oldest(answer.owner if full is Full.OWNER else None, now)
            if oldest is None:
                await self._remove_stored(gone)
                raise _too_many(full, owner)
            self._remove(oldest)
            gone.append(oldest)
        self._remove(name)
        self._add(name, answer)
        await self._remove_stored([each for each in gone if each != name])
        try:
            await self._store.commit([_document(name, answer)])
        except StoreError as error:
            self._remove(name)
            raise Problem(503, ProblemType.STORE_UNAVAILABLE, str(error)) from None
        return answer

    def _outdated(self, now: float) -> Iterator[str]:
        for name, answer in self._answers.items():
            if answer.began > now - KEPT_SECONDS:
                return
            yield name

    def _full_for(self, owner: str) -> Full | None:
        if self._bytes[owner] >= MOST_BYTES_OF_CALLER:
            return Full.OWNER
        if self._bytes.total() >= MOST_BYTES:
            return Full.ALL
        return self._places.full_for(owner)

    def _oldest(self, owner: str | None, now: float) -> str | None:
        """What makes room: an answered key that nobody is waiting for any more."""
        names = self._answers if owner is None else self._names.get(owner, {})
        for name in names:
            answer = self._answers[name]
            if answer.began > now - LEAST_SECONDS:
                return None
            if not answer.runs:
                return name
        return None

    def _add(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer
        self._names.setdefault(answer.owner, {})[name] = None
        self._places.put(answer.owner)
        self._bytes[answer.owner] += len(answer.body)

    def _remove(self, name: str) -> bool:
        answer = self._answers.pop(name, None)
        if answer is None:
            return False
        self._names[answer.owner].pop(name, None)
        self._places.give_back(answer.owner)
        self._bytes[answer.owner] -= len(answer.body)
        if not self._names[answer.owner]:
            del self._names[answer.owner], self._bytes[answer.owner]
        return True

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
            if name in self._answers:
                self._bytes[answer.owner] += len(answer.body)
            answer.status = start["status"]
            # it has happened: an answer that cannot be stored is still the answer
            await self._store_quietly([_document(name, answer)])
        else:
            await self._forget([name])
        for message in messages:
            await send(message)

    async def _forget(self, names: list[str]) -> None:
        await self._remove_stored([name for name in names if self._remove(name)])

    async def _remove_stored(self, gone: list[str]) -> None:
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
            ProblemType.KEY_OF_ANOTHER_REQUEST,
            f"Idempotency-Key {key} came with another request within 24 hours; take a new key",
        )
    if known.runs:
        raise Problem(
            409,
            ProblemType.REQUEST_UNDER_WAY,
            f"the request with Idempotency-Key {key} has not been answered yet; ask again",
            headers={"Retry-After": "1"},
        )
    if not known.status:
        raise Problem(
            409,
            ProblemType.OUTCOME_UNKNOWN,
            f"the controller stopped while the request with Idempotency-Key {key} ran; look "
            "whether it happened, and take a new key if not",
        )
    headers = {**known.headers, "Idempotency-Replayed": "true"}
    return Response(known.body, known.status, headers)


def _too_many(full: Full, owner: str) -> Problem:
    return Problem(
        429 if full is Full.OWNER else 503,
        ProblemType.TOO_MANY_KEYS,
        f"{owner} has as many idempotency keys of the last {LEAST_SECONDS / 60:.0f} minutes as are "
        "kept for one caller"
        if full is Full.OWNER
        else "no more idempotency keys are kept for now; wait, or send the request without one",
        headers={"Retry-After": "60"},
    )


def _owner(caller: str) -> str:
    return hashlib.sha256(caller.encode()).hexdigest()[:16]


def _answer(document: str) -> Answer:
    answer = Answer(**json.loads(document))
    answer.owner = answer.headers.pop(OWNER_HEADER, "")
    return answer


def _document(name: str, answer: Answer) -> Document:
    value = {
        "request": answer.request,
        "began": answer.began,
        "status": answer.status,
        "headers": {**answer.headers, OWNER_HEADER: answer.owner},
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
            raise Problem(error.status_code, ProblemType.BODY_REFUSED, str(error.detail)) from None
        if message["type"] == "http.disconnect":
            raise Problem(499, ProblemType.CLIENT_HUNG_UP, "the client closed the connection")
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
