# SPDX-License-Identifier: Apache-2.0
"""The pages: which parts each has. They show the pool; what changes it is in acting.py.

Mounted by console.app. A page is a template and the names of its parts; what a part shows, and to
whom, is its kind's (console.kinds).
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from sluice.console import lists, visit
from sluice.console.actions import ACTIONS
from sluice.console.frame import Frame
from sluice.console.inner_rest import InnerRest, RestCall
from sluice.console.parts import Hidden, Name
from sluice.console.rendering import link, printable
from sluice.console.visit import Refused
from sluice.controller.pool.model import DEFAULT_PROJECT, Gpu, GrantState, SessionState
from sluice.controller.pool.pool import Pool

LOG_BYTES = 32 << 10
AUDIT_ROWS = 50
PEOPLE_ROWS = 50
PROJECT_ROWS = 50

Text = Annotated[str, Query(max_length=500)]
Marker = Annotated[str | None, Query(max_length=500)]
State = Annotated[str, Query(pattern="^(live|all)$")]


def _cards(gpus: list[Gpu]) -> list[Name]:
    return [Name.of("gpu-card", id=str(gpu.key)) for gpu in gpus]


def _done(name: str) -> str:
    action = ACTIONS.get(name)
    return action.done if action else ""


def page_routes(pool: Pool, rest: InnerRest, frame: Frame) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()
    _add_pool(routes, pool, frame)
    _add_things(routes, pool, frame)
    _add_lists(routes, pool, frame)
    _add_from_rest(routes, pool, rest, frame)
    return routes


def _add_pool(routes: APIRouter, pool: Pool, frame: Frame) -> None:
    """The pool as a whole."""

    @routes.get("/")
    async def show_pool(request: Request, marker: Marker = None) -> Response:
        """Nodes and GPUs in one look; a tenant begins at its project."""
        rights = visit.rights(request)
        if not rights.sees_pool:
            return RedirectResponse(link("project", name=rights.project), 303)
        shown, following = lists.gpus(pool, rights, None, marker)
        parts: dict[str, Name | list[Name]] = {
            "summary": Name.of("summary"),
            "cards": _cards(shown),
            "queue": Name.of("queue"),
        }
        values = {"next": following, "marker": marker, "gpus": len(pool.gpus)}
        return await frame.live_page(request, "pool.html", parts, values)

    @routes.get("/node")
    async def show_node(
        request: Request, name: Text, marker: Marker = None, done: Text = ""
    ) -> Response:
        """A node and its GPUs."""
        shown, following = lists.gpus(pool, visit.rights(request), name, marker)
        parts: dict[str, Name | list[Name]] = {
            "node": Name.of("node", name=name),
            "cards": _cards(shown),
            "grants": Name.of("grants", node=name),
            "events": Name.of("events", subject=name),
        }
        values = {"name": name, "next": following, "marker": marker, "done": _done(done)}
        return await frame.live_page(request, "node.html", parts, values)


def _add_things(routes: APIRouter, pool: Pool, frame: Frame) -> None:
    """A GPU, a grant, a session, a project, a reservation."""

    async def thing(request: Request, kind: str, heading: str, subject: str, done: str) -> Response:
        parts: dict[str, Name | list[Name]] = {
            "thing": Name.of(kind, id=subject),
            "events": Name.of("events", subject=subject),
        }
        values = {
            "heading": heading,
            "subject": subject,
            "done": _done(done),
            "lives": subject in pool.grants and pool.grants[subject].state is GrantState.LIVE,
        }
        return await frame.live_page(request, "thing.html", parts, values)

    @routes.get("/gpu")
    async def show_gpu(request: Request, id: Text, done: Text = "") -> Response:  # noqa: A002
        """A GPU and its slices."""
        return await thing(request, "gpu", "GPU", id, done)

    @routes.get("/grant")
    async def show_grant(request: Request, id: Text, done: Text = "") -> Response:  # noqa: A002
        """A grant, its vGPUs and sessions."""
        return await thing(request, "grant", "Grant", id, done)

    @routes.get("/reservation")
    async def show_reservation(
        request: Request,
        id: Text,  # noqa: A002
        done: Text = "",
    ) -> Response:
        """A reservation, and what draws on it."""
        return await thing(request, "reservation", "Reservation", id, done)

    @routes.get("/session")
    async def show_session(request: Request, id: Text, done: Text = "") -> Response:  # noqa: A002
        """A session, with its log."""
        session = pool.sessions.get(id)
        parts: dict[str, Name | list[Name]] = {
            "session": Name.of("session", id=id),
            "events": Name.of("events", subject=id),
        }
        lives = session is not None and session.state is not SessionState.ENDED
        return await frame.live_page(
            request, "session.html", parts, {"id": id, "lives": lives, "done": _done(done)}
        )

    @routes.get("/project")
    async def show_project(request: Request, name: Text, done: Text = "") -> Response:
        """A project: what it may hold, holds and runs."""
        if not visit.rights(request).sees_project(name):
            raise Hidden
        parts: dict[str, Name | list[Name]] = {
            "project": Name.of("project", name=name),
            "grants": Name.of("grants", project=name),
            "sessions": Name.of("sessions", project=name),
            "events": Name.of("project-events", name=name),
        }
        values = {"name": name, "done": _done(done)}
        return await frame.live_page(request, "project.html", parts, values)


def _add_lists(routes: APIRouter, pool: Pool, frame: Frame) -> None:
    """Everything of one kind, in pages."""

    async def listed(request: Request, heading: str, name: Name, **values: Any) -> Response:
        shown: dict[str, Any] = {
            "heading": heading, "states": "", "filters": {}, "done": "", "reserve": False
        }  # fmt: skip
        return await frame.live_page(request, "list.html", {"list": name}, shown | values)

    @routes.get("/nodes")
    async def show_nodes(request: Request, marker: Marker = None) -> Response:
        """Nodes."""
        return await listed(request, "Nodes", Name.of("nodes", marker=marker))

    @routes.get("/grants")
    async def show_grants(
        request: Request,
        state: State = "live",
        project: Text = "",
        node: Text = "",
        marker: Marker = None,
    ) -> Response:
        """Grants."""
        name = Name.of("grants", state=state, project=project, node=node, marker=marker)
        filters = {"project": project, "node": node}
        return await listed(request, "Grants", name, states=state, filters=filters)

    @routes.get("/sessions")
    async def show_sessions(
        request: Request, state: State = "live", project: Text = "", marker: Marker = None
    ) -> Response:
        """Sessions."""
        name = Name.of("sessions", state=state, project=project, marker=marker)
        filters = {"project": project}
        return await listed(request, "Sessions", name, states=state, filters=filters)

    @routes.get("/reservations")
    async def show_reservations(
        request: Request, state: State = "live", marker: Marker = None, done: Text = ""
    ) -> Response:
        """Reservations."""
        name = Name.of("reservations", state=state, marker=marker)
        may = visit.rights(request).operates
        return await listed(
            request, "Reservations", name, states=state, done=_done(done), reserve=may
        )

    @routes.get("/vms")
    async def show_vms(request: Request, marker: Marker = None, done: Text = "") -> Response:
        """VMs that ask for vGPUs or have a GPU whole."""
        name = Name.of("vms", marker=marker)
        return await listed(request, "VMs", name, done=_done(done))

    @routes.get("/queue")
    async def show_queue(
        request: Request,
        first: Annotated[str, Query(alias="from", max_length=9)] = "",
        done: Text = "",
    ) -> Response:
        """Who waits, and why."""
        name = Name("queue", (("from", first),) if first else ())
        return await listed(request, "Queue", name, done=_done(done))

    @routes.get("/projects")
    async def show_projects(request: Request, after: Text = "") -> Response:
        """Every project that has a quota or holds something."""
        if not visit.rights(request).sees_pool:
            raise Hidden
        names = sorted({each or DEFAULT_PROJECT for each in pool.quotas.projects()})
        rest = [name for name in names if name > after]
        shown = rest[:PROJECT_ROWS]
        values = {
            "projects": [(name, *_held(pool, name)) for name in shown],
            "next": shown[-1] if len(rest) > PROJECT_ROWS else None,
        }
        return frame.page(request, "projects.html", values)


def _held(pool: Pool, project: str) -> tuple[int, int, int]:
    held = pool.quotas.held(project)
    return held.vgpus, held.memory_mib, held.compute_percent


def _add_from_rest(routes: APIRouter, pool: Pool, rest: InnerRest, frame: Frame) -> None:
    """What REST alone has: logs, which nodes keep, people and the audit trail."""

    @routes.get("/session/log")
    async def show_log(request: Request, id: Text) -> Response:  # noqa: A002
        """The end of a session's log, for its page."""
        if not visit.rights(request).sees_session(pool, pool.sessions.get(id)):
            raise Hidden
        call = RestCall("GET", ("sessions", id, "log"), (("tail_bytes", str(LOG_BYTES)),))
        answer = await rest.ask(visit.user(request), call)
        text = printable(answer.body.decode("utf-8", "replace")) if answer.ok else ""
        values = {"text": text, "error": "" if answer.ok else answer.why}
        return frame.page(request, "log.html", values)

    @routes.get("/people")
    async def show_people(
        request: Request, name: Text = "", marker: Marker = None, done: Text = ""
    ) -> Response:
        """Who signs in by OpenID Connect; for admins."""
        if not visit.rights(request).audits:
            raise Refused(403, "people are shown to admins")
        given = {"name": name[:100], "marker": marker or ""}
        query = tuple((key, value) for key, value in given.items() if value)
        call = RestCall("GET", ("people",), (("limit", str(PEOPLE_ROWS)), *query))
        answer = await rest.ask(visit.user(request), call)
        if not answer.ok:
            raise Refused(answer.status, answer.why)
        found = answer.json()
        values = {"people": found["people"], "next": found["next_marker"], "name": name}
        return frame.page(request, "people.html", {**values, "done": _done(done)})

    @routes.get("/audit")
    async def show_audit(request: Request, marker: Marker = None) -> Response:
        """Who changed what; for admins."""
        if not visit.rights(request).audits:
            raise Refused(403, "the audit trail is for admins")
        query = (("limit", str(AUDIT_ROWS)), *((("marker", marker),) if marker else ()))
        answer = await rest.ask(visit.user(request), RestCall("GET", ("audit",), query))
        if not answer.ok:
            raise Refused(answer.status, answer.why)
        found = answer.json()
        values = {"lines": found["events"], "next": found["next_marker"]}
        return frame.page(request, "audit.html", values)
