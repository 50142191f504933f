# SPDX-License-Identifier: Apache-2.0
"""REST handlers of the queue: who waits, the next first, and an operator who moves one.

Mounted by controller.api.app.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from sluice.controller.api.authorisation import Operator, Viewer
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit
from sluice.controller.api.problems import CHANGE_PROBLEMS, not_found
from sluice.controller.api.routing import REST
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.pool import Pool
from sluice.controller.pool.queue.waiting import Entry


class WaitingView(BaseModel):
    """A request that waits; position 1 is next."""

    position: int
    request_id: str
    project: str
    priority: int
    vgpu_count: int
    memory_mib: int
    compute_percent: int
    node: str
    program: str
    reservation: str
    line: str = Field(description="what its client is told")


class WaitingList(BaseModel):
    """The queue, the next first."""

    waiting: list[WaitingView]
    total: int


class Place(BaseModel):
    """Where a waiting request is to stand; beyond the last is the last."""

    model_config = ConfigDict(extra="forbid")

    position: int = Field(ge=1, le=1 << 31, description="1: it is the next")


def queue_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/queue", tags=["queue"])
    async def show_queue(
        _: Viewer, response: Response, limit: Limit = DEFAULT_LIMIT
    ) -> WaitingList:
        """Who waits, the next first. The ETag is of the order that operators gave it."""
        set_etag(response, pool.queue.generation)
        views = []
        for position, entry in enumerate(pool.queue, 1):
            if position > limit:
                break
            views.append(_view(pool, position, entry))
        return WaitingList(waiting=views, total=len(pool.queue))

    @routes.patch("/queue/{request_id}", tags=["queue"], responses=CHANGE_PROBLEMS)
    async def move_request(
        request_id: str, body: Place, caller: Operator, if_match: IfMatch = None
    ) -> WaitingList:
        """Moves a request that waits; the answer has it alone, or nobody where it waits no more.

        Who arrives later is put in by priority and age as ever. A controller that takes over, or is
        restarted, knows the order of priority and age only.
        """
        if request_id not in pool.queue:
            raise not_found("waiting request", request_id)
        check_generation(if_match, "the order of", "the queue", pool.queue.generation)
        await carried_out(
            grant_service, lambda: pool.requests.move(request_id, body.position, str(caller))
        )
        entry = pool.queue.get(request_id)
        position = pool.queue.position(request_id)
        waiting = [_view(pool, position, entry)] if entry else []
        return WaitingList(waiting=waiting, total=len(pool.queue))

    return routes


def _view(pool: Pool, position: int, entry: Entry) -> WaitingView:
    request = entry.request
    return WaitingView(
        position=position,
        request_id=request.request_id,
        project=request.project,
        priority=request.priority,
        vgpu_count=request.count,
        memory_mib=request.memory_mib,
        compute_percent=request.compute_percent,
        node=request.node,
        program=request.program,
        reservation=request.reservation,
        line=pool.requests.waiting(request).line,
    )
