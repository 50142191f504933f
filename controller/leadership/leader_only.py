# SPDX-License-Identifier: Apache-2.0
"""What a controller answers: it serves while it leads, and else says who does.

Set up by controller.service. A call that comes while the pool is being loaded waits for it, so that
servers need not try again. Where there are several controllers, REST answers 307 with the leader's
address, gRPC ends with UNAVAILABLE and the leader's address in its trailing metadata; without a
leader both say that there is none yet. GET /v1/controller is always answered here: it says which
part this controller has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response

from sluice.config.log_ids import request_id
from sluice.config.metric_families import exposition
from sluice.config.version import own_version
from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.auth.access import Access
from sluice.controller.grant_service import GrantService
from sluice.controller.history.keeper import HistoryKeeper
from sluice.controller.leadership.election import LeaderAddress
from sluice.controller.metrics.meters import Standing
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.store.store import DeposedError, StoreError
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

LEADER_KEY = "sluice-leader"

Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeaderState:
    """What a controller has while it leads."""

    grant_service: GrantService
    service: PoolService
    app: FastAPI
    access: Access
    is_current: Callable[[], bool]
    history: HistoryKeeper | None = None
    alerts: AlertWatch | None = None

    def begin_watching(self) -> list[asyncio.Task[None]]:
        """What runs while it leads, beside serving: whoever leads cancels it at the end."""
        return [asyncio.create_task(each.run()) for each in (self.history, self.alerts) if each]


class Leadership:
    """Whether this controller leads, and who does: what REST and gRPC look at."""

    def __init__(self) -> None:
        self.leader_state: LeaderState | None = None
        self.leader: Callable[[], LeaderAddress | None] = lambda: None
        self.trouble: Callable[[], StoreError | None] = lambda: None
        self._settled = asyncio.Event()
        self._settled.set()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """The block in which this controller takes the lead over, or fails to."""
        self._settled.clear()
        try:
            yield
        finally:
            self._settled.set()

    async def settled(self) -> None:
        """Returns when the lead is not just being taken over."""
        await self._settled.wait()

    @property
    def serving(self) -> LeaderState | None:
        """What it leads with, if this controller certainly leads."""
        leader_state = self.leader_state
        return leader_state if leader_state and leader_state.is_current() else None

    def no_leader(self) -> str:
        """Why nobody can be named, and what to do."""
        if trouble := self.trouble():
            return f"there is no leader: {trouble}"
        return "there is no leader yet; one is elected within seconds, try again"


class LeaderOnlyRest:
    """REST: the ASGI application around the one that serves."""

    def __init__(self, leadership: Leadership, standing: Standing) -> None:
        self._leadership = leadership
        self._standing = standing

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serves, or refers to the leader."""
        if scope["type"] != "http":
            return
        leader_state = self._leadership.serving
        self._standing.leads.set(1 if leader_state else 0)
        if scope["path"] == "/v1/controller":
            await self._own_part(leader_state)(scope, receive, send)
        elif scope["path"] == "/metrics" and leader_state is None:
            # a scraper that was referred to the leader would count it several times
            await self._own_metrics(scope)(scope, receive, send)
        elif leader_state:
            await leader_state.app(scope, receive, send)
        else:
            await self._refer(scope)(scope, receive, send)

    def _own_part(self, leader_state: LeaderState | None) -> Response:
        leader = self._leadership.leader()
        trouble = leader_state.grant_service.trouble if leader_state else self._leadership.trouble()
        return JSONResponse(
            {
                "version": own_version(),
                "leads": leader_state is not None,
                "leader": leader.rest if leader else None,
                "store_trouble": str(trouble) if trouble else None,
            }
        )

    def _own_metrics(self, scope: Scope) -> Response:
        accept = Headers(scope=scope).get("accept", "")
        body, content_type = exposition(self._standing.registry, accept)
        return Response(body, headers={"Content-Type": content_type})

    def _refer(self, scope: Mapping[str, Any]) -> Response:
        if leader := self._leadership.leader():
            query = scope["query_string"].decode("latin-1")
            path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
            return RedirectResponse(
                f"{scope['scheme']}://{leader.rest}{path}{'?' if query else ''}{query}", 307
            )
        return Response(
            json.dumps(
                {
                    "type": "about:blank",
                    "title": "No leader",
                    "status": 503,
                    "detail": self._leadership.no_leader(),
                    "instance": scope["path"],
                    "request_id": request_id(),
                }
            ),
            503,
            {"Retry-After": "1"},
            "application/problem+json",
        )


class LeaderOnlyGrpc(pool_pb2_grpc.PoolServicer):
    """gRPC: the service around the one that serves."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def Register(  # noqa: N802
        self,
        request_iterator: AsyncIterator[rpc.NodeReport],
        context: grpc.aio.ServicerContext[rpc.NodeReport, rpc.Order],
    ) -> AsyncIterator[rpc.Order]:
        """Serves one server's stream while this controller leads."""
        leader_state = self._leadership.serving
        if leader_state:
            async for order in leader_state.service.Register(request_iterator, context):
                yield order
            if not leader_state.grant_service.stepped_down.is_set():
                return
        await self._refer(context)

    async def RequestGrant(  # noqa: N802
        self,
        request: rpc.GrantRequest,
        context: grpc.aio.ServicerContext[rpc.GrantRequest, rpc.GrantAnswer],
    ) -> AsyncIterator[rpc.GrantAnswer]:
        """Answers a client's request; the leader that takes over is asked again by the server."""
        if leader_state := self._leadership.serving:
            try:
                async for answer in leader_state.service.RequestGrant(request, context):
                    yield answer
                return
            except DeposedError:
                pass
        await self._refer(context)

    async def ReleaseGrant(  # noqa: N802
        self,
        request: rpc.GrantRelease,
        context: grpc.aio.ServicerContext[rpc.GrantRelease, rpc.GrantReleased],
    ) -> rpc.GrantReleased:
        """Gives a grant back."""
        if leader_state := self._leadership.serving:
            try:
                return await leader_state.service.ReleaseGrant(request, context)
            except DeposedError:
                pass
        return await self._refer(context)

    async def View(  # noqa: N802
        self,
        request: rpc.ViewRequest,
        context: grpc.aio.ServicerContext[rpc.ViewRequest, rpc.ViewAnswer],
    ) -> rpc.ViewAnswer:
        """What a client that only looks is shown."""
        if leader_state := self._leadership.serving:
            return await leader_state.service.View(request, context)
        return await self._refer(context)

    async def _refer(self, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        leader = self._leadership.leader()
        await context.abort(
            grpc.StatusCode.UNAVAILABLE,
            f"the leader is {leader.grpc}" if leader else self._leadership.no_leader(),
            ((LEADER_KEY, leader.grpc),) if leader else (),
        )
        raise AssertionError("abort() raises")
