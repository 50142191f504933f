# SPDX-License-Identifier: Apache-2.0
"""REST handlers of sessions: listed, shown, and their logs, which their nodes have.

Mounted by controller.api.app under /v1. A tenant sees the sessions of its project only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from sluice.controller.api import schemas
from sluice.controller.api.authorisation import OperatorOrTenant, ViewerOrTenant
from sluice.controller.api.node_problems import told
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, page, page_in_order
from sluice.controller.api.problems import SHOW_PROBLEMS, Problem, not_found, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.session_figures import SessionFigures, session_figures
from sluice.controller.auth.access import Caller
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import Session, SessionState
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import NotConnected, OrderRefused, ServerSilent
from sluice.resources.ends import End, EndCause
from sluice.resources.problem_types import ProblemType

LOG_SECONDS = 5.0
END_SECONDS = 10.0


def _project_of(pool: Pool, session: Session) -> str:
    grant = pool.grants.get(session.grant_id)
    return grant.project if grant else ""


def _session_of(pool: Pool, session_id: str, caller: Caller) -> Session:
    session = pool.sessions.get(session_id)
    if session is None or not caller.sees(_project_of(pool, session)):
        raise not_found("session", session_id)
    return session


def session_routes(grant_service: GrantService, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/sessions", tags=["sessions"])
    async def list_sessions(
        caller: ViewerOrTenant,
        state: Literal["opening", "running", "ended", "live", "all"] = "live",
        node: str | None = None,
        grant_id: str | None = None,
        project: str | None = None,
        channel: str | None = None,
        host: str | None = None,
        container: Annotated[
            str | None, Query(description="a container's id, or how it begins")
        ] = None,
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
                and (container is None or session.container_id.startswith(container or "-"))
                and project in (None, _project_of(pool, session))
                and caller.sees(_project_of(pool, session))
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

    @routes.get("/sessions/{session_id}", tags=["sessions"], responses=SHOW_PROBLEMS)
    async def show_session(session_id: str, caller: ViewerOrTenant) -> schemas.SessionView:
        """One session, ended ones too while they are remembered."""
        return schemas.session_view(_session_of(pool, session_id, caller))

    _add_ending(routes, grant_service.pool, service)
    _add_log(routes, grant_service.pool, service)
    _add_figures(routes, grant_service.pool, service)
    return routes


def _add_figures(routes: APIRouter, pool: Pool, service: PoolService) -> None:
    """What a session uses, from its node."""

    @routes.get(
        "/sessions/{session_id}/figures",
        tags=["sessions"],
        responses=problem_responses(404, 409, 503),
    )
    async def read_session_figures(session_id: str, caller: ViewerOrTenant) -> SessionFigures:
        """What a session that runs used in the last hour, in steps of 15 s, from its node."""
        session = _session_of(pool, session_id, caller)
        try:
            link = service.link_of(session.node)
            steps = await link.read_figures(session_id, LOG_SECONDS)
        except NotConnected as why:
            raise Problem(
                503,
                ProblemType.NODE_NOT_CONNECTED,
                f"{why}, and keeps the figures; start its sluice-server",
            ) from None
        except OrderRefused as why:
            raise Problem(409, ProblemType.NO_FIGURES, f"node {session.node}: {why}") from None
        except ServerSilent as why:
            raise Problem(503, ProblemType.OUTCOME_UNKNOWN, f"node {session.node}: {why}") from None
        return session_figures(steps)


def _add_ending(routes: APIRouter, pool: Pool, service: PoolService) -> None:
    """Ending one session. There is no generation: an id is one session's, which ends once."""

    @routes.delete(
        "/sessions/{session_id}",
        tags=["sessions"],
        status_code=202,
        responses=problem_responses(404, 409, 503),
    )
    async def end_session(session_id: str, caller: OperatorOrTenant) -> schemas.SessionView:
        """Ends one session: its process gets a CUDA error. Other sessions of its grant go on; with
        its last session a grant that is no held job's ends, too.
        """
        session = _session_of(pool, session_id, caller)
        if session.state is SessionState.ENDED:
            raise Problem(
                409,
                ProblemType.SESSION_NOT_ENDED,
                f"session {session_id} has ended already: {session.reason}",
            )
        who = "the operator" if caller.project is None else f"project {caller.project}"
        why = End(EndCause.OPERATOR, f"ended by {who}")
        away = "runs the session; start its sluice-server, or end the grant"
        with told(session.node, away, ProblemType.SESSION_NOT_ENDED):
            await service.link_of(session.node).end_session(session_id, why, END_SECONDS)
        return schemas.session_view(session)


def _add_log(routes: APIRouter, pool: Pool, service: PoolService) -> None:
    """A session's log."""

    @routes.get(
        "/sessions/{session_id}/log",
        tags=["sessions"],
        response_class=PlainTextResponse,
        responses=problem_responses(404, 503),
    )
    async def read_session_log(
        session_id: str,
        caller: ViewerOrTenant,
        tail_bytes: Annotated[int, Query(ge=1, le=1 << 20)] = 64 << 10,
    ) -> PlainTextResponse:
        """The end of a session's log file, fetched from its node."""
        session = _session_of(pool, session_id, caller)
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
