# SPDX-License-Identifier: Apache-2.0
"""The doors of a controller: they serve while it leads, and else say who does.

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
from sluice.controller.auth.access import Access
from sluice.controller.grant_service import GrantDesk
from sluice.controller.leadership.election import LeaderAddress
from sluice.controller.metrics.meters import Standing
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.store.store import DeposedError, StoreError
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

LEADER_KEY = "sluice-leader"

Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class Office:
    """What a controller has while it leads."""

    desk: GrantDesk
    service: PoolService
    app: FastAPI
    access: Access
    is_current: Callable[[], bool]


class Front:
    """What both doors look at."""

    def __init__(self) -> None:
        self.office: Office | None = None
        self.leader: Callable[[], LeaderAddress | None] = lambda: None
        self.trouble: Callable[[], StoreError | None] = lambda: None
        self._settled = asyncio.Event()
        self._settled.set()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """The block in which this controller's office is being made, or cannot be."""
        self._settled.clear()
        try:
            yield
        finally:
            self._settled.set()

    async def settled(self) -> None:
        """Returns when no office is being made."""
        await self._settled.wait()

    @property
    def serving(self) -> Office | None:
        """The office, if this controller certainly leads."""
        office = self.office
        return office if office and office.is_current() else None

    def no_leader(self) -> str:
        """Why nobody can be named, and what to do."""
        if trouble := self.trouble():
            return f"there is no leader: {trouble}"
        return "there is no leader yet; one is elected within seconds, try again"


class RestFront:
    """The ASGI application of the REST door."""

    def __init__(self, front: Front, standing: Standing) -> None:
        self._front = front
        self._standing = standing

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serves, or refers to the leader."""
        if scope["type"] != "http":
            return
        office = self._front.serving
        self._standing.leads.set(1 if office else 0)
        if scope["path"] == "/v1/controller":
            await self._own_part(office)(scope, receive, send)
        elif scope["path"] == "/metrics" and office is None:
            # a scraper that was referred to the leader would count it several times
            await self._own_metrics(scope)(scope, receive, send)
        elif office:
            await office.app(scope, receive, send)
        else:
            await self._refer(scope)(scope, receive, send)

    def _own_part(self, office: Office | None) -> Response:
        leader = self._front.leader()
        trouble = office.desk.trouble if office else self._front.trouble()
        return JSONResponse(
            {
                "version": own_version(),
                "leads": office is not None,
                "leader": leader.rest if leader else None,
                "store_trouble": str(trouble) if trouble else None,
            }
        )

    def _own_metrics(self, scope: Scope) -> Response:
        accept = Headers(scope=scope).get("accept", "")
        body, content_type = exposition(self._standing.registry, accept)
        return Response(body, headers={"Content-Type": content_type})

    def _refer(self, scope: Mapping[str, Any]) -> Response:
        if leader := self._front.leader():
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
                    "detail": self._front.no_leader(),
                    "instance": scope["path"],
                    "request_id": request_id(),
                }
            ),
            503,
            {"Retry-After": "1"},
            "application/problem+json",
        )


class PoolFront(pool_pb2_grpc.PoolServicer):
    """The gRPC door."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def Register(  # noqa: N802
        self,
        request_iterator: AsyncIterator[rpc.NodeReport],
        context: grpc.aio.ServicerContext[rpc.NodeReport, rpc.Order],
    ) -> AsyncIterator[rpc.Order]:
        """Serves one server's stream while this controller leads."""
        office = self._front.serving
        if office:
            async for order in office.service.Register(request_iterator, context):
                yield order
            if not office.desk.stepped_down.is_set():
                return
        await self._refer(context)

    async def RequestGrant(  # noqa: N802
        self,
        request: rpc.GrantRequest,
        context: grpc.aio.ServicerContext[rpc.GrantRequest, rpc.GrantAnswer],
    ) -> AsyncIterator[rpc.GrantAnswer]:
        """Answers a client's request; the leader that takes over is asked again by the server."""
        if office := self._front.serving:
            try:
                async for answer in office.service.RequestGrant(request, context):
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
        if office := self._front.serving:
            try:
                return await office.service.ReleaseGrant(request, context)
            except DeposedError:
                pass
        return await self._refer(context)

    async def _refer(self, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        leader = self._front.leader()
        await context.abort(
            grpc.StatusCode.UNAVAILABLE,
            f"the leader is {leader.grpc}" if leader else self._front.no_leader(),
            ((LEADER_KEY, leader.grpc),) if leader else (),
        )
        raise AssertionError("abort() raises")
