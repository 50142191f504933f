# SPDX-License-Identifier: Apache-2.0
"""REST handlers of grants: listed, shown, resized, ended.

Mounted by controller.api.app under /v1. They read the pool's memory and change it only through the
grant service. A tenant sees the grants of its project only. `If-Match` guards against a lost
update.
"""

from __future__ import annotations

from typing import Annotated, Literal, NoReturn

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from sluice.controller.api import schemas
from sluice.controller.api.authorisation import Operator, OperatorOrTenant, ViewerOrTenant
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, page, page_in_order
from sluice.controller.api.problems import (
    CHANGE_PROBLEMS,
    SHOW_PROBLEMS,
    Problem,
    not_found,
    problem_responses,
)
from sluice.controller.api.routing import REST
from sluice.controller.auth.access import Caller
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions, ResizeOrder
from sluice.controller.pool.model import Grant
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import OrderRefused, ServerSilent
from sluice.resources.ends import End, EndCause
from sluice.resources.problem_types import ProblemType
from sluice.resources.vgpu_request import COMPUTE_PERCENT

RESIZE_SECONDS = 10.0


class GrantSize(BaseModel):
    """The limits of each vGPU that are to change; zeros leave one as it is."""

    memory_mib: schemas.Size = 0
    compute_percent: int = Field(0, ge=0, le=COMPUTE_PERCENT.high)


def _grant_of(pool: Pool, grant_id: str, caller: Caller) -> Grant:
    grant = pool.grants.get(grant_id)
    # another's is as good as none: a tenant cannot learn which ids there are
    if grant is None or not caller.sees(grant.project):
        raise not_found("grant", grant_id)
    return grant


async def _not_known(
    grant_service: GrantService, service: PoolService, grant: Grant, why: str
) -> NoReturn:
    await carried_out(
        grant_service,
        lambda: grant_service.pool.lifecycle.finish_resize(grant.id, why, known=False),
    )
    if link := service.links.get(grant.node):
        link.close()  # it connects anew and reports what it runs
    raise Problem(
        503,
        ProblemType.RESIZE_UNKNOWN,
        f"grant {grant.id}: {why}; its node reports what it runs, look at it in some seconds",
    )


def grant_routes(grant_service: GrantService, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/grants", tags=["grants"])
    async def list_grants(
        caller: ViewerOrTenant,
        state: Literal["live", "ended", "all"] = "live",
        node: str | None = None,
        project: str | None = None,
        job: Annotated[str | None, Query(description="a shared job's name")] = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> schemas.GrantList:
        """Grants; live ones unless told otherwise."""

        def is_wanted(grant: Grant) -> bool:
            return (
                state in ("all", grant.state)
                and (node is None or node in grant.nodes)
                and project in (None, grant.project)
                and job in (None, grant.job)
                and caller.sees(grant.project)
            )

        def age(grant: Grant) -> tuple[float, str]:
            return grant.created, grant.id

        if state == "ended":
            shown, marker = page(filter(is_wanted, pool.ended_grants()), age, limit, marker)
        elif state == "live" and node is not None:
            shown, marker = page(filter(is_wanted, pool.grants_live_on(node)), age, limit, marker)
        else:
            shown, marker = page_in_order(
                lambda last: filter(is_wanted, pool.grants_in_order.after(last)), age, limit, marker
            )
        grants = [schemas.grant_view(grant, pool.sessions_of(grant.id)) for grant in shown]
        return schemas.GrantList(grants=grants, next_marker=marker)

    @routes.get("/grants/{grant_id}", tags=["grants"], responses=SHOW_PROBLEMS)
    async def show_grant(
        grant_id: str, caller: ViewerOrTenant, response: Response
    ) -> schemas.GrantView:
        """One grant, ended ones too while they are remembered."""
        grant = _grant_of(pool, grant_id, caller)
        set_etag(response, grant.generation)
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    _add_ending(routes, grant_service)
    _add_resizing(routes, grant_service, service)
    return routes


def _add_ending(routes: APIRouter, grant_service: GrantService) -> None:
    """Ending a grant."""
    pool = grant_service.pool

    @routes.delete(
        "/grants/{grant_id}", tags=["grants"], status_code=202, responses=CHANGE_PROBLEMS
    )
    async def end_grant(
        grant_id: str, caller: OperatorOrTenant, if_match: IfMatch = None
    ) -> schemas.GrantView:
        """Ends a grant: its processes get a CUDA error, its vGPUs return within seconds."""
        grant = _grant_of(pool, grant_id, caller)
        check_generation(if_match, "grant", grant_id, grant.generation)
        who = "the operator" if caller.project is None else f"project {caller.project}"
        if not await grant_service.end_grant(grant_id, End(EndCause.OPERATOR, f"ended by {who}")):
            raise Problem(
                409, ProblemType.GRANT_ENDED, f"grant {grant_id} has ended already: {grant.reason}"
            )
        return schemas.grant_view(grant, pool.sessions_of(grant_id))


def _add_resizing(routes: APIRouter, grant_service: GrantService, service: PoolService) -> None:
    """Resizing a grant, which its server does while it is in use."""
    pool = grant_service.pool

    @routes.patch(
        "/grants/{grant_id}",
        tags=["grants"],
        responses=problem_responses(404, 409, 412, 503),
    )
    async def resize_grant(
        grant_id: str, body: GrantSize, _: Operator, if_match: IfMatch = None
    ) -> schemas.GrantView:
        """Changes the limits of a grant while it is in use, or says why that cannot be."""
        if (grant := pool.grants.get(grant_id)) is None:
            raise not_found("grant", grant_id)
        check_generation(if_match, "grant", grant_id, grant.generation)
        order: ResizeOrder | None = None

        def begin() -> Decisions:
            nonlocal order
            order = pool.lifecycle.begin_resize(grant_id, body.memory_mib, body.compute_percent)
            return Decisions()

        await carried_out(grant_service, begin)
        if order is not None:
            why = ""
            try:
                await service.link_of(grant.node).resize(order, RESIZE_SECONDS)
            except ServerSilent as silent:
                await _not_known(grant_service, service, grant, str(silent))
            except OrderRefused as refused:
                why = str(refused)
            await carried_out(grant_service, lambda: pool.lifecycle.finish_resize(grant_id, why))
            if why:
                raise Problem(
                    409, ProblemType.NOT_RESIZED, f"grant {grant_id} stays as it was: {why}"
                )
        return schemas.grant_view(grant, pool.sessions_of(grant_id))
