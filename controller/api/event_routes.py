# SPDX-License-Identifier: Apache-2.0
"""REST handlers for the event log: listed, followed as server-sent events, and the audit trail.

Mounted by controller.api.app. An event's number is its place in the log and the id of its
server-sent event, so a client that lost its connection goes on where it was (Last-Event-ID). The
stream reads the store, never the pool's memory: what it sends is stored. It is forty lines of our
own rather than a library, as all that a library would add is the framing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from sluice.config.places import Places
from sluice.controller.api.authorisation import Admin, Operator, ViewerOrTenant
from sluice.controller.api.pages import Limit, Marker, Page, make_marker, read_marker
from sluice.controller.api.problems import Problem, no_place, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Line, Time, time_of
from sluice.controller.auth.access import Caller
from sluice.controller.auth.tokens import TokenBook
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import Event
from sluice.controller.store.store import EventQuery, NumberedEvent
from sluice.resources.problem_types import ProblemType

AUDIT = "audit."
POLL_SECONDS = 0.2
KEEP_ALIVE_SECONDS = 15.0
RECONNECT_MILLISECONDS = 1000
READ_AT_ONCE = 500
MOST_STREAMS = 200
MOST_OF_CALLER = 20
KEPT_FOR_OPERATORS = 20
DEFAULT_EVENTS = 100
#: Of the log that are looked at for one page: most may be others' and not shown.
MOST_LOOKED_AT = 20_000
NUMBER_MOST = 2**63 - 1

Number = Annotated[int, Query(ge=0, le=NUMBER_MOST)]
Visible = Callable[[Event], bool]


class EventView(BaseModel):
    """A line of the event log."""

    number: int = Field(description="grows with time; the id of its server-sent event")
    time: Time
    kind: str
    subject: str
    text: str


class EventRequest(BaseModel):
    """What an adapter of a platform has to say of a thing of that platform."""

    kind: Annotated[str, Field(max_length=60, pattern=r"^adapter\.[a-z0-9_.]+$")]
    subject: Annotated[Line, Field(min_length=1)] = Field(description="such as a VM's UUID")
    text: Line


class _Stream(StreamingResponse):
    """Gives its place back when it ends, be it before its first line."""

    def __init__(self, lines: AsyncIterator[str], places: Places, owner: str) -> None:
        headers = {"Cache-Control": "no-store"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._held = places.held(owner)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


class EventList(Page):
    """Events, newest first; a page may hold less than was asked for where many are not shown."""

    events: list[EventView]


class _EventLog:
    """The event log as callers may see it."""

    def __init__(self, grant_service: GrantService) -> None:
        self._store = grant_service.store
        self._pool = grant_service.pool

    def visible_to(self, caller: Caller) -> Visible:
        """Which events the caller may see: none of the audit trail, a tenant its project's."""

        def visible(event: Event) -> bool:
            if event.kind.startswith(AUDIT):
                return False
            if caller.project is None:
                return True
            session = self._pool.sessions.get(event.subject)
            grant = self._pool.grants.get(session.grant_id if session else event.subject)
            return grant is not None and caller.sees(grant.project)

        return visible

    async def listed(
        self, query: EventQuery, limit: int, marker: str | None, visible: Visible
    ) -> EventList:
        """A page of what is visible."""
        before = _before(marker)
        found: list[NumberedEvent] = []
        at_once, looked_at = max(limit + 1, READ_AT_ONCE), 0
        while len(found) <= limit:
            some = await self._store.find_events(replace(query, limit=at_once, before=before))
            found += [each for each in some if visible(each.event)]
            if len(some) < at_once:
                before = None
                break
            before = some[-1].number
            looked_at += len(some)
            if looked_at >= MOST_LOOKED_AT:
                break
        shown = found[:limit]
        last = shown[-1].number if len(found) > limit else before
        return EventList(
            events=[_view(each) for each in shown],
            next_marker=make_marker((last,)) if last is not None else None,
        )

    async def latest(self) -> int:
        """The newest event's number; 0 if there is none."""
        newest = await self._store.find_events(EventQuery(1))
        return newest[0].number if newest else 0

    async def lines(
        self,
        query: EventQuery,
        after: int,
        visible: Visible,
        goes_on: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[str]:
        """Server-sent events of what is stored after a number, for as long as it goes on."""
        yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
        if gap := await self._gap(after):
            yield gap
        last = time.monotonic()
        while await goes_on():
            newest, some = await self.latest(), []
            if newest > after:
                some = await self._store.find_events(replace(query, after=after))
            for each in some:
                after = each.number
                if visible(each.event):
                    yield f"id: {after}\ndata: {_view(each).model_dump_json()}\n\n"
                    last = time.monotonic()
            if time.monotonic() - last > KEEP_ALIVE_SECONDS:
                yield ": still here\n\n"
                last = time.monotonic()
            if len(some) < READ_AT_ONCE:
                # what is not asked for is passed over once, not at each look
                after = max(after, newest)
                await asyncio.sleep(POLL_SECONDS)

    async def _gap(self, after: int) -> str:
        oldest = await self._store.find_events(EventQuery(1, oldest_first=True))
        if after and oldest and oldest[0].number > after + 1:
            return f'event: gap\ndata: {{"after": {after}, "next": {oldest[0].number}}}\n\n'
        return ""


def event_routes(grant_service: GrantService, tokens: TokenBook) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    log = _EventLog(grant_service)

    @routes.get("/events", tags=["events"])
    async def list_events(
        caller: ViewerOrTenant,
        subject: str | None = None,
        kind: Annotated[str, Query(max_length=100, description="what the kind begins with")] = "",
        since: Annotated[Number, Query(description="only events with greater numbers")] = 0,
        limit: Limit = DEFAULT_EVENTS,
        marker: Marker = None,
    ) -> EventList:
        """The newest events, newest first."""
        subjects = () if subject is None else (subject,)
        query = EventQuery(limit, subjects, kind, without_kind=AUDIT, after=since)
        return await log.listed(query, limit, marker, log.visible_to(caller))

    @routes.post("/events", tags=["events"], status_code=201)
    async def write_event(body: EventRequest, _: Operator) -> None:
        """Writes a line of an adapter's into the event log."""
        await grant_service.store.commit([Event(tokens.wall(), body.kind, body.subject, body.text)])

    @routes.get("/audit", tags=["events"])
    async def list_audit(
        _: Admin,
        token: Annotated[str | None, Query(description="only what this token's owner did")] = None,
        since: Annotated[Number, Query(description="only lines with greater numbers")] = 0,
        limit: Limit = DEFAULT_EVENTS,
        marker: Marker = None,
    ) -> EventList:
        """Who changed what, from where, newest first; the subject is the token's id."""
        subjects = () if token is None else (token,)
        query = EventQuery(limit, subjects, AUDIT, after=since)
        return await log.listed(query, limit, marker, lambda _: True)

    _add_stream(routes, log, grant_service, tokens)
    return routes


def _add_stream(
    routes: APIRouter, log: _EventLog, grant_service: GrantService, tokens: TokenBook
) -> None:
    """The log, followed."""
    streams = Places(MOST_STREAMS, MOST_OF_CALLER, kept=KEPT_FOR_OPERATORS)

    @routes.get(
        "/events/stream",
        tags=["events"],
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "events as they are stored; `gap` says that older ones are gone",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **problem_responses(429, 503),
        },
    )
    async def stream_events(
        request: Request,
        caller: ViewerOrTenant,
        since: Annotated[
            int | None,
            Query(ge=0, le=NUMBER_MOST, description="begin after this number; else from now on"),
        ] = None,
        subject: str | None = None,
        kind: Annotated[str, Query(max_length=100)] = "",
        last_event_id: Annotated[str | None, Header(description="the same as since")] = None,
    ) -> StreamingResponse:
        """Follows the event log, without end."""
        if last_event_id and last_event_id.isascii() and last_event_id.isdecimal():
            since = min(int(last_event_id), NUMBER_MOST)
        subjects = () if subject is None else (subject,)
        query = EventQuery(READ_AT_ONCE, subjects, kind, without_kind=AUDIT, oldest_first=True)

        async def goes_on() -> bool:
            token = tokens.tokens.get(caller.id)
            valid = token is None or token.state(tokens.wall()) == "valid"
            if not valid or grant_service.stepped_down.is_set():
                return False
            return not await request.is_disconnected()

        owner = caller.owner
        if full := streams.take(owner, privileged=caller.is_operator):
            what = f"{streams.of(owner) or MOST_STREAMS} event streams"
            raise no_place(full, ProblemType.TOO_MANY_STREAMS, owner, what, "end one of them")
        try:
            # known before the headers go: whoever has them, and lists then, misses nothing
            begin = await log.latest() if since is None else since
        except BaseException:
            streams.give_back(owner)
            raise

        return _Stream(log.lines(query, begin, log.visible_to(caller), goes_on), streams, owner)


def _before(marker: str | None) -> int | None:
    if marker is None:
        return None
    match read_marker(marker):
        case (int(number),) if 0 <= number <= NUMBER_MOST:
            return number
    raise Problem(
        422, ProblemType.INVALID_MARKER, "marker is not the next_marker of a page of events"
    )


def _view(each: NumberedEvent) -> EventView:
    event = each.event
    return EventView(
        number=each.number,
        time=time_of(event.time),
        kind=event.kind,
        subject=event.subject,
        text=event.text,
    )
