# SPDX-License-Identifier: Apache-2.0
"""The REST application over a real store, and callers of several projects."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from sluice.config.controller import AuthSection
from sluice.controller.api.app import build_app
from sluice.controller.auth.access import Access
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.tokens import Role, TokenBook
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.model import Change, Document, Gpu, Node
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.service import SystemClock
from sluice.controller.store.sqlite import SqliteStore
from sluice.controller.store.store import EventQuery, NumberedEvent

Scope = dict[str, Any]


class CountingStore(SqliteStore):
    """Counts what is asked of it, by how many events are asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: Counter[int] = Counter()

    async def find_events(self, query: EventQuery) -> list[NumberedEvent]:
        self.asked[query.limit] += 1
        return await super().find_events(query)


class FakeStore:
    """Keeps documents."""

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}

    def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        for change in changes:
            if isinstance(change, Document):
                self.documents[change.key] = change.value
            else:
                self.documents.pop(change.key, None)  # type: ignore[union-attr]
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Place:
    """The application over a real store, and its callers' tokens."""

    def __init__(self, folder: Path) -> None:
        self.store = CountingStore(folder / "store.db")
        self.tokens = TokenBook(self.store)
        numbers = itertools.count()
        self.pool = Pool(SystemClock(), lambda: f"{next(numbers):016x}")
        gpus = [Gpu("node-a", f"GPU-{name * 8}", "Model", 8000) for name in "ab"]
        self.pool.membership.register(Node("node-a", "10.0.0.1", 9960, "1", 4), gpus, [])
        self.secrets: dict[str, str] = {}

    async def open(self) -> None:
        await self.store.load()
        for name, role, project in (
            ("one", Role.TENANT, "p1"),
            ("also one", Role.TENANT, "p1"),
            ("two", Role.TENANT, "p2"),
            ("three", Role.TENANT, "p3"),
            ("operator", Role.OPERATOR, ""),
        ):
            _, secret = await self.tokens.create(role, by="test", name=name, project=project)
            self.secrets[name] = secret
        book = EnrolmentBook(self.store, self.tokens)
        self.access = Access(AuthSection(), self.tokens, book, loopback_only=False)
        self.grant_service = GrantService(self.pool, self.store)
        self.app: Any = build_app(
            self.grant_service, PoolService(self.grant_service, 5), 60, self.access
        )

    def grant(self, project: str) -> Granted:
        wanted = GrantRequest(f"r {project}", project=project, compute_percent=100)
        answer = self.pool.requests.submit(wanted).answers[f"r {project}"]
        assert isinstance(answer, Granted)
        return answer

    async def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=("10.0.0.9", 1))
        head = {"Authorization": f"Bearer {self.secrets[who]}", **more.pop("headers", {})}
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, f"/v1{path}", headers=head, **more)


class Waiting:
    """A request that stays open: an event stream, a held job."""

    def __init__(self, place: Place, who: str, method: str, path: str, body: Any = None) -> None:
        self.status = asyncio.get_running_loop().create_future()
        self.said = b""
        self._gone = asyncio.Event()
        self._body = json.dumps(body).encode() if body is not None else b""
        self._sent = False
        path, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": method,
            "path": f"/v1{path}",
            "query_string": query.encode(),
            "headers": [
                (b"authorization", f"Bearer {place.secrets[who]}".encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(self._body)).encode()),
            ],
            "client": ("10.0.0.9", 1),
        }
        self.task = asyncio.create_task(place.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])
        self.said += message.get("body", b"")

    async def close(self) -> None:
        self._gone.set()
        await self.task


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)
