# SPDX-License-Identifier: Apache-2.0
"""Runs rest_cases.yaml against the application, with a real store and a FakeServerLink as node."""

from __future__ import annotations

import asyncio
import itertools
import math
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
import yaml
from fastapi import APIRouter, Depends, FastAPI

from sluice.config.controller import AuthSection
from sluice.controller.api.app import build_app
from sluice.controller.api.authorisation import Viewer, undeclared
from sluice.controller.auth.access import Access
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.tokens import TokenBook
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import Event, Gpu, Node
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import OrderRefused, ServerLink
from sluice.controller.service import SystemClock
from sluice.controller.store.sqlite import SqliteStore
from sluice.rpc import pool_pb2 as rpc


def operator_access(store: SqliteStore) -> Access:
    """Callers of this host need no token and are operators."""
    tokens = TokenBook(store)
    return Access(
        AuthSection(local="operator"), tokens, EnrolmentBook(store, tokens), loopback_only=True
    )


REFUSALS = {None: 0.0, "refuses": math.inf, "refuses once": 1.0}
VERBS = ("get", "post", "put", "patch", "delete")
CASES = yaml.safe_load((Path(__file__).parent / "rest_cases.yaml").read_text())


class FakeServerLink(ServerLink):
    """A connected server that takes (or refuses) assignments and ends what it is told to end."""

    def __init__(self, grant_service: GrantService, refuses: float) -> None:
        super().__init__()
        self._grant_service = grant_service
        self._refuses = refuses  # so many assignments
        self._tasks: list[asyncio.Task[None]] = []

    async def assign(self, assignment: rpc.Assignment, timeout: float) -> None:
        assert len(assignment.key) == 32
        if self._refuses > 0:
            self._refuses -= 1
            raise OrderRefused("it was told to refuse")

    def end_grant(self, order: Any) -> None:
        release = self._grant_service.step(
            lambda: self._grant_service.pool.lifecycle.release(order.grant_id, order.why)
        )
        self._tasks.append(asyncio.ensure_future(release))

    async def read_log(self, session_id: str, tail_bytes: int, timeout: float) -> str:
        return f"log of {session_id}"


def filled(value: Any, kept: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in kept.items():
            value = value.replace(f"${name}", text)
        return value
    if isinstance(value, dict):
        return {key: filled(inner, kept) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, kept) for inner in value]
    return value


def assert_contains(found: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        for key, inner in expected.items():
            assert key in found, f"{where}.{key} is missing"
            assert_contains(found[key], inner, f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), where
        assert len(found) == len(expected), f"{where} is {found}"
        for index, inner in enumerate(expected):
            assert_contains(found[index], inner, f"{where}[{index}]")
    else:
        assert found == expected, where


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
async def test_rest(case: dict[str, Any], tmp_path: Path) -> None:
    numbers = itertools.count(1)
    pool = Pool(SystemClock(), lambda: f"{next(numbers):016x}")
    gpus = [
        Gpu("node-a", f"gpu-{index}", "Model", mib, context_overhead_mib=100)
        for index, mib in enumerate((8000, 4000))
    ]
    pool.membership.register(Node("node-a", "10.0.0.1", 9960, "1", 4), gpus, [])
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    grant_service = GrantService(pool, store)
    service = PoolService(grant_service, 5)
    link = FakeServerLink(grant_service, REFUSALS[case.get("link")])
    service.links["node-a"] = grant_service.links["node-a"] = link
    ticking = asyncio.create_task(grant_service.tick())
    transport = httpx.ASGITransport(build_app(grant_service, service, 60, operator_access(store)))
    kept: dict[str, str] = {}
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for step in case["steps"]:
                method = next(
                    verb for verb in ("get", "post", "put", "patch", "delete") if verb in step
                )
                answer = await client.request(
                    method.upper(),
                    filled(step[method], kept),
                    json=step.get("body"),
                    headers=step.get("headers_sent"),
                )
                where = f"{method} {step[method]}"
                assert answer.status_code == step.get("status", 200), f"{where}: {answer.text}"
                if answer.status_code >= 400:
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json()["status"] == answer.status_code
                    assert answer.json()["detail"]
                if "json" in step:
                    assert_contains(answer.json(), filled(step["json"], kept), where)
                if "text" in step:
                    assert answer.text == filled(step["text"], kept)
                for name, value in step.get("headers", {}).items():
                    assert answer.headers[name] == value
                for name, key in step.get("keep", {}).items():
                    kept[name] = answer.json()[key]
                await asyncio.sleep(0.02)  # what the fake server was told takes effect
    finally:
        ticking.cancel()
        await store.close()


async def test_a_stream_has_begun_when_its_headers_come(tmp_path: Path) -> None:
    """Who follows the log connects, lists what there is, and misses nothing in between."""
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    grant_service = GrantService(Pool(SystemClock(), lambda: "0"), store)
    app = build_app(grant_service, PoolService(grant_service, 5), 60, operator_access(store))
    seen = bytearray()
    found = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await found.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            await store.commit([Event(1.0, "adapter.test.told", "it", "after the headers")])
        seen.extend(message.get("body", b""))
        if b"after the headers" in seen:
            found.set()

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/v1/events/stream",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    try:
        await asyncio.wait_for(app(scope, receive, send), 20)
    finally:
        await store.close()
    assert found.is_set()


async def looks_up(_: Viewer) -> str:
    return "what a viewer may see"


def test_a_route_without_a_role_is_found() -> None:
    routes = APIRouter()

    @routes.get("/open")
    async def show_open() -> None: ...

    @routes.delete("/open/{name}")
    async def delete_open(name: str) -> None: ...

    @routes.get("/guarded")
    async def show_guarded(_: Viewer) -> None: ...

    @routes.get("/guarded-within")
    async def show_guarded_within(_: Annotated[str, Depends(looks_up)]) -> None: ...

    assert undeclared([routes]) == ["GET /open", "DELETE /open/{name}"]
    within = APIRouter()
    within.mount("/whatever", FastAPI())
    assert len(undeclared([within])) == 1, "what cannot be seen is not let in"
