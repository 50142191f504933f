# SPDX-License-Identifier: Apache-2.0
"""REST handlers that list, show and end what the pool has.

Mounted by controller.api.app under /v1. They read the pool's memory and change it only through the
grant service. A tenant sees the grants and sessions of its project, and of the pool nothing else.
What can be changed carries its generation as an ETag; `If-Match` guards against a lost update.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse

from sluice.config.version import own_version
from sluice.controller.api import schemas
from sluice.controller.api.authorisation import (
    OperatorOrTenant,
    Viewer,
    ViewerOrTenant,
)
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, page, page_in_order
from sluice.controller.api.problems import Problem, ProblemDocument, not_found
from sluice.controller.auth.access import Caller
from sluice.controller.grant_service import GrantService
from sluice.controller.metrics.tallies import LOST
from sluice.controller.pool.model import Gpu, Grant, NodeState, Session, SessionState
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import NotConnected, OrderRefused, ServerSilent
from sluice.resources.ends import End, EndCause
from sluice.resources.problem_types import ProblemType

LOG_SECONDS = 5.0

_404: dict[int | str, dict[str, Any]] = {404: {"model": ProblemDocument}}
_CHANGE: dict[int | str, dict[str, Any]] = {
    **_404,
    409: {"model": ProblemDocument},
    412: {"model": ProblemDocument},
}

NodeStateName = Literal["up", "away", "lost"]


def resource_routes(grant_service: GrantService, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()
    pool = grant_service.pool

    def grant_of(grant_id: str, caller: Caller) -> Grant:
        grant = pool.grants.get(grant_id)
        # another's is as good as none: a tenant cannot learn which ids there are
        if grant is None or not caller.sees(grant.project):
            raise not_found("grant", grant_id)
        return grant

    def project_of(session: Session) -> str:
        grant = pool.grants.get(session.grant_id)
        return grant.project if grant else ""

    def session_of(session_id: str, caller: Caller) -> Session:
        session = pool.sessions.get(session_id)
        if session is None or not caller.sees(project_of(session)):
            raise not_found("session", session_id)
        return session

    @routes.get("/pool", tags=["pool"])
    async def show_pool(_: Viewer) -> schemas.PoolView:
        """The pool in one look."""
        tallies = grant_service.tallies
        return schemas.PoolView(
            version=own_version(),
            nodes=len(pool.nodes),
            nodes_up=tallies.nodes[NodeState.UP],
            gpus=sum(n for (_, health), n in tallies.gpus.items() if health != LOST),
            memory_mib=tallies.memory_mib,
            granted_mib=tallies.granted.memory_mib,
            grants=tallies.grants,
            sessions=tallies.sessions.total(),
            waiting=len(pool.queue),
            fragmentation=schemas.FragmentationView(**asdict(pool.fragmentation())),
        )

    @routes.get("/nodes", tags=["nodes"])
    async def list_nodes(
        _: Viewer,
        state: NodeStateName | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> schemas.NodeList:
        """Every node that ever joined."""
        shown, marker = page_in_order(
            lambda last: (n for n in pool.nodes_in_order.after(last) if state in (None, n.state)),
            lambda n: (n.name,),
            limit,
            marker,
        )
        nodes = [schemas.node_view(pool, node) for node in shown]
        return schemas.NodeList(nodes=nodes, next_marker=marker)

    @routes.get("/nodes/{name}", tags=["nodes"], responses=_404)
    async def show_node(name: str, _: Viewer, response: Response) -> schemas.NodeView:
        """One node."""
        if (node := pool.nodes.get(name)) is None:
            raise not_found("node", name)
        set_etag(response, node.generation)
        return schemas.node_view(pool, node)

    @routes.get("/gpus", tags=["gpus"])
    async def list_gpus(
        _: Viewer,
        node: str | None = None,
        state: NodeStateName | None = None,
        model: str | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> schemas.GpuList:
        """Every GPU, or those of one node, state or model."""

        def is_wanted(gpu: Gpu) -> bool:
            return state in (None, pool.nodes[gpu.node].state) and model in (None, gpu.model)

        def place(gpu: Gpu) -> tuple[str, str]:
            return gpu.node, gpu.uuid

        if node is not None:
            few = filter(is_wanted, pool.gpus_of(node))
            shown, marker = page(few, place, limit, marker)
        else:
            shown, marker = page_in_order(
                lambda last: filter(is_wanted, pool.gpus_in_order.after(last)), place, limit, marker
            )
        gpus = [schemas.gpu_view(pool, gpu) for gpu in shown]
        return schemas.GpuList(gpus=gpus, next_marker=marker)

    @routes.get(
        "/gpus/{gpu_id}", tags=["gpus"], responses={**_404, 409: {"model": ProblemDocument}}
    )
    async def show_gpu(gpu_id: str, _: Viewer) -> schemas.GpuView:
        """One GPU, by node:uuid, by a UUID that only one node has, or by its beginning."""
        return schemas.gpu_view(pool, pool.gpus[gpu_key(pool.gpus, gpu_id)])

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
                and node in (None, grant.node)
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

    @routes.get("/grants/{grant_id}", tags=["grants"], responses=_404)
    async def show_grant(
        grant_id: str, caller: ViewerOrTenant, response: Response
    ) -> schemas.GrantView:
        """One grant, ended ones too while they are remembered."""
        grant = grant_of(grant_id, caller)
        set_etag(response, grant.generation)
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    @routes.delete("/grants/{grant_id}", tags=["grants"], status_code=202, responses=_CHANGE)
    async def end_grant(
        grant_id: str, caller: OperatorOrTenant, if_match: IfMatch = None
    ) -> schemas.GrantView:
        """Ends a grant: its processes get a CUDA error, its vGPUs return within seconds."""
        grant = grant_of(grant_id, caller)
        check_generation(if_match, "grant", grant_id, grant.generation)
        who = "the operator" if caller.project is None else f"project {caller.project}"
        if not await grant_service.end_grant(grant_id, End(EndCause.OPERATOR, f"ended by {who}")):
            raise Problem(
                409, ProblemType.GRANT_ENDED, f"grant {grant_id} has ended already: {grant.reason}"
            )
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    @routes.get("/sessions", tags=["sessions"])
    async def list_sessions(
        caller: ViewerOrTenant,
        state: Literal["opening", "running", "ended", "live", "all"] = "live",
        node: str | None = None,
        grant_id: str | None = None,
        project: str | None = None,
        channel: str | None = None,
        host: str | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> schemas.SessionList:
        """Sessions; those that have not ended unless told otherwise."""

        def is_wanted(session: Session) -> bool:
            return (
                (
                    state in ("all", session.state)
                    or (state == "live" and session.state is not SessionState.ENDED)
                )
                and node in (None, session.node)
                and grant_id in (None, session.grant_id)
                and channel in (None, session.channel)
                and host in (None, session.host)
                and project in (None, project_of(session))
                and caller.sees(project_of(session))
            )

        def age(session: Session) -> tuple[float, str]:
            return session.started, session.id

        few = None
        if grant_id is not None:
            few = pool.sessions_of(grant_id)
        elif node is not None and state not in ("ended", "all"):
            few = [s for grant in pool.grants_live_on(node) for s in pool.sessions_of(grant.id)]
        if few is not None:
            shown, marker = page(filter(is_wanted, few), age, limit, marker)
        else:
            shown, marker = page_in_order(
                lambda last: filter(is_wanted, pool.sessions_in_order.after(last)),
                age,
                limit,
                marker,
            )
        sessions = [schemas.session_view(session) for session in shown]
        return schemas.SessionList(sessions=sessions, next_marker=marker)

    @routes.get("/sessions/{session_id}", tags=["sessions"], responses=_404)
    async def show_session(session_id: str, caller: ViewerOrTenant) -> schemas.SessionView:
        """One session, ended ones too while they are remembered."""
        return schemas.session_view(session_of(session_id, caller))

    @routes.get(
        "/sessions/{session_id}/log",
        tags=["sessions"],
        response_class=PlainTextResponse,
        responses={**_404, 503: {"model": ProblemDocument}},
    )
    async def read_session_log(
        session_id: str,
        caller: ViewerOrTenant,
        tail_bytes: Annotated[int, Query(ge=1, le=1 << 20)] = 64 << 10,
    ) -> PlainTextResponse:
        """The end of a session's log file, fetched from its node."""
        session = session_of(session_id, caller)
        try:
            link = service.link_of(session.node)
            return PlainTextResponse(await link.read_log(session_id, tail_bytes, LOG_SECONDS))
        except NotConnected as why:
            raise Problem(
                503,
                ProblemType.NODE_NOT_CONNECTED,
                f"{why}, and holds the log; start its sluice-server",
            ) from None
        except (OrderRefused, ServerSilent) as why:
            raise Problem(503, ProblemType.LOG_UNREADABLE, f"node {session.node}: {why}") from None

    return routes
