# SPDX-License-Identifier: Apache-2.0
"""REST handler of the queue: who waits, the next first.

Mounted by controller.api.app.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Viewer
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit
from sluice.controller.pool.pool import Pool


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


def queue_routes(pool: Pool) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

    @routes.get("/queue", tags=["queue"])
    async def show_queue(_: Viewer, limit: Limit = DEFAULT_LIMIT) -> WaitingList:
        """Who waits, the next first."""
        views = []
        for position, entry in enumerate(pool.queue, 1):
            if position > limit:
                break
            request = entry.request
            views.append(
                WaitingView(
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
            )
        return WaitingList(waiting=views, total=len(pool.queue))

    return routes
