# SPDX-License-Identifier: Apache-2.0
"""The event stream of a page: its parts as they change, each as often as it is rendered at most.

Mounted by console.app. One stream has all that is on a screen, as server-sent events named as the
elements that they replace. It ends when its session does, or when this controller no longer leads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sluice.config.places import Places
from sluice.console import visit
from sluice.console.live import Live, Subscription
from sluice.console.parts import Name
from sluice.console.visit import Refused
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.grant_service import GrantService

MOST_PARTS = 64  # of one screen
MOST_STREAMS = 400
MOST_OF_TOKEN = 50
KEPT_FOR_OPERATORS = 40
LOOK_SECONDS = 1.0  # whether it goes on
KEEP_ALIVE_SECONDS = 15.0
RECONNECT_MILLISECONDS = 2000
END = b"event: end\ndata: signed out\n\n"


class _Stream(StreamingResponse):
    """Gives its place and its subscription back when it ends, be it before its first line."""

    def __init__(self, lines: AsyncIterator[bytes], give_back: Callable[[], None]) -> None:
        super().__init__(
            lines, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
        self._give_back = give_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_back()


@lru_cache(maxsize=256)  # what several look at is put together once
def _event(name: Name, html: str) -> bytes:
    lines = "\n".join(f"data: {line}" for line in html.splitlines())
    return f"event: {name.event}\n{lines}\n\n".encode()


async def _lines(
    subscription: Subscription,
    goes_on: Callable[[], bool],
    is_gone: Callable[[], Awaitable[bool]],
    is_signed_in: Callable[[], bool],
) -> AsyncIterator[bytes]:
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n".encode()
    last = looked = time.monotonic()
    while goes_on():
        now = time.monotonic()
        if now - looked > KEEP_ALIVE_SECONDS:
            # who leaves is noticed by the response; this is for a server that does not tell it
            if await is_gone():
                return
            looked = now
        if news := subscription.take():
            yield b"".join(_event(each.name, each.html) for each in news)
            last = now
        elif now - last > KEEP_ALIVE_SECONDS:
            yield b": still here\n\n"
            last = now
        await _something_new(subscription)
    if not is_signed_in():
        yield END  # else the browser asks again, perhaps another controller


async def _something_new(subscription: Subscription) -> None:
    """Until there is something to be sent, or it is to be looked whether the stream goes on."""
    # of a hundred streams that wait, a task and an exception a second each would cost most
    waking = asyncio.get_running_loop().call_later(LOOK_SECONDS, subscription.news.set)
    try:
        await subscription.news.wait()
    finally:
        waking.cancel()


def stream_routes(grant_service: GrantService, browsers: BrowserSessions, live: Live) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()
    streams = Places(MOST_STREAMS, MOST_OF_TOKEN, kept=KEPT_FOR_OPERATORS)

    @routes.get("/live")
    async def follow(
        request: Request,
        part: Annotated[list[str], Query(max_length=MOST_PARTS)],
        has: Annotated[list[str], Query(alias="is", max_length=MOST_PARTS)],
    ) -> StreamingResponse:
        """Follows parts of pages, of which the browser has the versions that it says."""
        caller = visit.user(request)
        rights, secret = visit.rights(request), visit.secret_of(request)
        if len(part) != len(has):
            raise Refused(400, "each part comes with the version that is there")
        versions = {Name.read(name): version for name, version in zip(part, has, strict=True)}

        def is_signed_in() -> bool:
            return browsers.caller(secret, caller.address) is not None

        def goes_on() -> bool:
            return not grant_service.stepped_down.is_set() and is_signed_in()

        if streams.take(caller.owner, privileged=caller.is_operator):
            raise Refused(429, "too many pages are open; close some")
        try:
            subscription = live.subscribe(rights, versions)
        except BaseException:
            streams.give_back(caller.owner)
            raise

        def give_back() -> None:
            streams.give_back(caller.owner)
            live.unsubscribe(subscription)

        return _Stream(
            _lines(subscription, goes_on, request.is_disconnected, is_signed_in), give_back
        )

    return routes
