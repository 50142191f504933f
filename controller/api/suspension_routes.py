# SPDX-License-Identifier: Apache-2.0
"""REST handlers of suspension: grants are suspended and resumed, and sessions with theirs.

Mounted by controller.api.app under /v1. All sessions of a grant are suspended together, so a
session is suspended by its own id only where its grant has no other. Both begin something: what
becomes of it is in the grant's `suspension`, and of what could not be done in the event log
(grant.not_suspended, grant.not_resumed).
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from sluice.controller.api import schemas
from sluice.controller.api.authorisation import Operator
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.generations import IfMatch, check_generation
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.problems import CHANGE_PROBLEMS, Problem, not_found
from sluice.controller.api.routing import REST
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.pool import Pool
from sluice.resources.problem_types import ProblemType

MOVED_BY_OPERATOR = "moved by the operator"
BY_OPERATOR = "suspended by the operator"


class GrantMove(BaseModel):
    """Where a grant is to go on."""

    model_config = ConfigDict(extra="forbid")

    gpu: str = Field(
        "",
        max_length=200,
        description="a GPU of its node, by UUID, the beginning of one, or its number among the "
        "node's GPUs in the order of `sluice gpu list`, from 0; empty: the fullest that has room",
    )


def suspension_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    async def change(grant_id: str, if_match: str | None, *, resume: bool) -> schemas.GrantView:
        if (grant := pool.grants.get(grant_id)) is None:
            raise not_found("grant", grant_id)
        check_generation(if_match, "grant", grant_id, grant.generation)
        await carried_out(
            grant_service,
            lambda: (
                pool.lifecycle.resume(grant_id)
                if resume
                else pool.lifecycle.suspend(grant_id, BY_OPERATOR)
            ),
        )
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    @routes.post(
        "/grants/{grant_id}/suspend", tags=["grants"], status_code=202, responses=CHANGE_PROBLEMS
    )
    async def suspend_grant(
        grant_id: str, _: Operator, if_match: IfMatch = None
    ) -> schemas.GrantView:
        """Suspends what runs for a grant: it stands still, its memory goes to its node's host
        memory, and its place on the GPUs is others', until it is resumed.
        """
        return await change(grant_id, if_match, resume=False)

    @routes.post(
        "/grants/{grant_id}/resume", tags=["grants"], status_code=202, responses=CHANGE_PROBLEMS
    )
    async def resume_grant(
        grant_id: str, _: Operator, if_match: IfMatch = None
    ) -> schemas.GrantView:
        """Has a suspended grant go on, as soon as there is room on its GPUs."""
        return await change(grant_id, if_match, resume=True)

    @routes.post(
        "/grants/{grant_id}/move", tags=["grants"], status_code=202, responses=CHANGE_PROBLEMS
    )
    async def move_grant(
        grant_id: str, _: Operator, move: GrantMove | None = None, if_match: IfMatch = None
    ) -> schemas.GrantView:
        """Has a grant go on on another GPU of its node: one that runs is suspended, moved and
        resumed.
        """
        if (grant := pool.grants.get(grant_id)) is None:
            raise not_found("grant", grant_id)
        check_generation(if_match, "grant", grant_id, grant.generation)
        uuid = _gpu_of_node(pool, grant.node, move.gpu) if move and move.gpu else ""
        await carried_out(
            grant_service,
            lambda: pool.lifecycle.move(grant_id, uuid, MOVED_BY_OPERATOR),
        )
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    @routes.post(
        "/sessions/{session_id}/suspend",
        tags=["sessions"],
        status_code=202,
        responses=CHANGE_PROBLEMS,
    )
    async def suspend_session(session_id: str, _: Operator) -> schemas.GrantView:
        """Suspends a session that is its grant's only one."""
        return await change(_grant_of(pool, session_id), None, resume=False)

    @routes.post(
        "/sessions/{session_id}/resume",
        tags=["sessions"],
        status_code=202,
        responses=CHANGE_PROBLEMS,
    )
    async def resume_session(session_id: str, _: Operator) -> schemas.GrantView:
        """Has a suspended session go on, as soon as there is room on its GPUs."""
        return await change(_grant_of(pool, session_id), None, resume=True)

    return routes


def _gpu_of_node(pool: Pool, node: str, gpu: str) -> str:
    """The UUID of a node's GPU by that, its beginning, or its number among the node's GPUs."""
    here = sorted((key for key in pool.gpus if key.node == node), key=lambda key: key.uuid)
    if gpu.isdecimal():
        if int(gpu) < len(here):
            return here[int(gpu)].uuid
        raise not_found("gpu", f"{node}:{gpu}")
    return gpu_key(here, gpu).uuid


def _grant_of(pool: Pool, session_id: str) -> str:
    session = pool.sessions.get(session_id)
    if session is None:
        raise not_found("session", session_id)
    if session.end:
        raise Problem(
            409,
            ProblemType.SESSION_NOT_ENDED,
            f"session {session_id} has ended already: {session.reason}",
        )
    others = [s.id for s in pool.sessions_of(session.grant_id) if not s.end and s.id != session_id]
    if others:
        raise Problem(
            409,
            ProblemType.NOT_POSSIBLE,
            f"grant {session.grant_id} has {len(others) + 1} sessions, which are suspended and "
            f"resumed together: name the grant (sluice grant suspend {session.grant_id})",
        )
    return session.grant_id
