# SPDX-License-Identifier: Apache-2.0
"""REST handlers of quotas: the most that a project may hold, and what it holds.

Mounted by controller.api.app. They decide nothing: every change is one step of the pool.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Operator, Viewer
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.problems import CHANGE_PROBLEMS
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Name, Size
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import Quota
from sluice.controller.pool.pool import Pool
from sluice.resources.vgpu_request import I32

Count = Annotated[int, Field(ge=0, le=100_000)]


class QuotaRequest(BaseModel):
    """The most that a project may hold at a time; 0 is no limit."""

    vgpus: Count = 0
    memory_mib: Size = 0
    compute_percent: Size = 0
    may_preempt: bool = False
    max_priority: int | None = Field(
        None,
        ge=I32.low,
        le=I32.high,
        description="the highest that its requests may have; null: any, and 0 for tenants' tokens",
    )


class QuotaView(QuotaRequest):
    """A project's quota, and what it holds now."""

    project: str
    held_vgpus: int
    held_mib: int
    held_percent: int
    generation: int = Field(description="0: it has no quota")


class QuotaList(BaseModel):
    """Every project that has a quota or holds something."""

    quotas: list[QuotaView]


def _quota_view(pool: Pool, project: str) -> QuotaView:
    limit = pool.quotas.limits.get(project) or Quota(project, generation=0)
    held = pool.quotas.held(project)
    return QuotaView(
        project=project,
        vgpus=limit.vgpus,
        memory_mib=limit.memory_mib,
        compute_percent=limit.compute_percent,
        may_preempt=limit.may_preempt,
        max_priority=limit.max_priority,
        held_vgpus=held.vgpus,
        held_mib=held.memory_mib,
        held_percent=held.compute_percent,
        generation=limit.generation,
    )


def quota_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/quotas", tags=["quotas"])
    async def list_quotas(_: Viewer) -> QuotaList:
        """Every project that has a quota or holds something."""
        return QuotaList(quotas=[_quota_view(pool, project) for project in pool.quotas.projects()])

    @routes.get("/quotas/{project}", tags=["quotas"])
    async def show_quota(project: Name, _: Viewer, response: Response) -> QuotaView:
        """One project's quota, and what it holds."""
        shown = _quota_view(pool, project)
        set_etag(response, shown.generation)
        return shown

    @routes.put("/quotas/{project}", tags=["quotas"], responses=CHANGE_PROBLEMS)
    async def set_quota(
        project: Name, body: QuotaRequest, _: Operator, if_match: IfMatch = None
    ) -> QuotaView:
        """Sets what a project may hold from now on; what it holds already stays."""
        check_generation(if_match, "quota", project, _quota_view(pool, project).generation)
        quota = Quota(
            project,
            body.vgpus,
            body.memory_mib,
            body.compute_percent,
            body.may_preempt,
            max_priority=body.max_priority,
        )
        await carried_out(grant_service, lambda: pool.limits.set_quota(quota))
        return _quota_view(pool, project)

    @routes.delete("/quotas/{project}", tags=["quotas"], responses=CHANGE_PROBLEMS)
    async def remove_quota(project: Name, _: Operator, if_match: IfMatch = None) -> QuotaView:
        """The project may hold whatever there is."""
        check_generation(if_match, "quota", project, _quota_view(pool, project).generation)
        await carried_out(grant_service, lambda: pool.limits.remove_quota(project))
        return _quota_view(pool, project)

    return routes
