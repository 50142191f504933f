# SPDX-License-Identifier: Apache-2.0
"""REST handlers that list, show and end what the pool has.

Mounted by controller.api.app under /v1. They read the pool's memory and change it only through the
desk. Grants carry their generation as an ETag; `If-Match` on DELETE guards against a lost update.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse

from sluice.controller.api import schemas
from sluice.controller.api.problems import Problem, ProblemDocument, not_found
from sluice.controller.desk import GrantDesk
from sluice.controller.node_service import PoolService, own_version
from sluice.controller.pool.model import GpuKey, GrantState, NodeState, SessionState

LOG_SECONDS = 5.0

_404: dict[int | str, dict[str, Any]] = {404: {"model": ProblemDocument}}


def resource_routes(desk: GrantDesk, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()
    pool = desk.pool

    @routes.get("/pool", tags=["pool"])
    async def show_pool() -> schemas.PoolView:
        """The pool in one look."""
        usable = [g for g in pool.gpus.values() if pool.nodes[g.node].state is not NodeState.LOST]
        return schemas.PoolView(
            version=own_version(),
            nodes=len(pool.nodes),
            nodes_up=sum(1 for n in pool.nodes.values() if n.state is NodeState.UP),
            gpus=len(usable),
            memory_mib=sum(gpu.memory_mib for gpu in usable),
            granted_mib=sum(pool.usage(gpu.key).memory_mib for gpu in usable),
            grants=sum(1 for g in pool.grants.values() if g.state is GrantState.LIVE),
            sessions=sum(1 for s in pool.sessions.values() if s.state is not SessionState.ENDED),
            waiting=len(pool.queue),
        )

    @routes.get("/nodes", tags=["nodes"])
    async def list_nodes() -> schemas.NodeList:
        """Every node that ever joined."""
        return schemas.NodeList(nodes=[schemas.node_view(pool, n) for n in pool.nodes.values()])

    @routes.get("/nodes/{name}", tags=["nodes"], responses=_404)
    async def show_node(name: str) -> schemas.NodeView:
        """One node."""
        if (node := pool.nodes.get(name)) is None:
            raise not_found("node", name)
        return schemas.node_view(pool, node)

    @routes.get("/gpus", tags=["gpus"])
    async def list_gpus(node: str | None = None) -> schemas.GpuList:
        """Every GPU, or those of one node."""
        return schemas.GpuList(
            gpus=[
                schemas.gpu_view(pool, gpu)
                for gpu in pool.gpus.values()
                if node is None or gpu.node == node
            ]
        )

    @routes.get("/gpus/{gpu_id}", tags=["gpus"], responses=_404)
    async def show_gpu(gpu_id: str) -> schemas.GpuView:
        """One GPU, by node:uuid or by a UUID that only one node has."""
        node, _, uuid = gpu_id.rpartition(":")
        if gpu := pool.gpus.get(GpuKey(node, uuid)):
            return schemas.gpu_view(pool, gpu)
        same = [gpu for gpu in pool.gpus.values() if gpu.uuid == gpu_id]
        if len(same) > 1:
            ids = ", ".join(str(gpu.key) for gpu in same)
            raise Problem(409, "Ambiguous GPU", f"{gpu_id} is on several nodes; name one of {ids}")
        if not same:
            raise not_found("gpu", gpu_id)
        return schemas.gpu_view(pool, same[0])

    @routes.get("/grants", tags=["grants"])
    async def list_grants(
        state: Literal["live", "ended", "all"] = "live", node: str | None = None
    ) -> schemas.GrantList:
        """Grants; live ones unless told otherwise."""
        return schemas.GrantList(
            grants=[
                schemas.grant_view(grant, pool.sessions_of(grant.id))
                for grant in pool.grants.values()
                if state in ("all", grant.state.value) and (node is None or grant.node == node)
            ]
        )

    @routes.get("/grants/{grant_id}", tags=["grants"], responses=_404)
    async def show_grant(grant_id: str, response: Response) -> schemas.GrantView:
        """One grant, ended ones too while they are remembered."""
        if (grant := pool.grants.get(grant_id)) is None:
            raise not_found("grant", grant_id)
        response.headers["ETag"] = f'"{grant.generation}"'
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    @routes.delete(
        "/grants/{grant_id}",
        tags=["grants"],
        status_code=202,
        responses={
            **_404,
            409: {"model": ProblemDocument},
            412: {"model": ProblemDocument},
        },
    )
    async def end_grant(
        grant_id: str, if_match: Annotated[str | None, Header()] = None
    ) -> schemas.GrantView:
        """Ends a grant: its processes get a CUDA error, its vGPUs return within seconds."""
        if (grant := pool.grants.get(grant_id)) is None:
            raise not_found("grant", grant_id)
        if if_match not in (None, "*", f'"{grant.generation}"'):
            raise Problem(
                412,
                "Generation has changed",
                f"If-Match is {if_match} but grant {grant_id} is at generation "
                f'"{grant.generation}"; read it again and decide anew',
            )
        if not await desk.end_grant(grant_id, "ended by the operator"):
            raise Problem(
                409, "Grant has ended", f"grant {grant_id} has ended already: {grant.reason}"
            )
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    @routes.get("/sessions", tags=["sessions"])
    async def list_sessions(
        state: Literal["opening", "running", "ended", "live", "all"] = "live",
        node: str | None = None,
    ) -> schemas.SessionList:
        """Sessions; those that have not ended unless told otherwise."""
        return schemas.SessionList(
            sessions=[
                schemas.session_view(session)
                for session in pool.sessions.values()
                if (
                    state in ("all", session.state.value)
                    or (state == "live" and session.state is not SessionState.ENDED)
                )
                and (node is None or session.node == node)
            ]
        )

    @routes.get("/sessions/{session_id}", tags=["sessions"], responses=_404)
    async def show_session(session_id: str) -> schemas.SessionView:
        """One session, ended ones too while they are remembered."""
        if (session := pool.sessions.get(session_id)) is None:
            raise not_found("session", session_id)
        return schemas.session_view(session)

    @routes.get(
        "/sessions/{session_id}/log",
        tags=["sessions"],
        response_class=PlainTextResponse,
        responses={**_404, 503: {"model": ProblemDocument}},
    )
    async def read_session_log(
        session_id: str,
        tail_bytes: Annotated[int, Query(ge=1, le=1 << 20)] = 64 << 10,
    ) -> PlainTextResponse:
        """The end of a session's log file, fetched from its node."""
        if (session := pool.sessions.get(session_id)) is None:
            raise not_found("session", session_id)
        link = service.links.get(session.node)
        if link is None:
            raise Problem(
                503,
                "Node is not connected",
                f"node {session.node} holds the log and is not connected; start its sluice-server",
            )
        answer = await link.read_log(session_id, tail_bytes, LOG_SECONDS)
        if answer.error:
            raise Problem(503, "Log cannot be read", f"node {session.node}: {answer.error}")
        return PlainTextResponse(answer.text)

    @routes.get("/events", tags=["events"])
    async def list_events(
        subject: str | None = None, limit: Annotated[int, Query(ge=1, le=10_000)] = 100
    ) -> schemas.EventList:
        """The newest events, newest first."""
        events = await desk.store.events(limit, subject)
        return schemas.EventList(events=[schemas.event_view(event) for event in events])

    return routes
