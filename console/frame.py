# SPDX-License-Identifier: Apache-2.0
"""A whole page: the frame around its parts, its headers, and error pages.

Used by every handler of the console. The policy of content allows scripts and styles of our own
files only, none within a page, and nothing of any other host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from starlette.datastructures import MutableHeaders

from sluice.console import visit
from sluice.console.board import Board, Rendered
from sluice.console.parts import Name
from sluice.console.rendering import Rendering
from sluice.console.rights import Rights
from sluice.controller.auth.browser_sessions import PREFIX

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SafeHeaders:
    """Puts the headers on every answer of the console, and keeps pages out of caches."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Passes everything on."""

        async def send_safely(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_safely)


class Frame:
    """Makes pages of parts."""

    def __init__(self, board: Board, rendering: Rendering) -> None:
        self._board = board
        self._rendering = rendering

    async def parts(self, rights: Rights, names: Iterable[Name]) -> list[Rendered]:
        """Parts for a page's first look; raises Hidden."""
        return [await self._board.render(name, rights) for name in names]

    async def live_page(
        self,
        request: Request,
        template: str,
        names: Mapping[str, Name | list[Name]],
        values: Mapping[str, Any] | None = None,
    ) -> HTMLResponse:
        """A page of parts that go on changing; `names` says which, by their names in the template.

        Raises Hidden where one of them is, and NotSignedIn.
        """
        rights = visit.rights(request)
        shown: dict[str, Markup] = {}
        every: list[Rendered] = []
        for place, wanted in names.items():
            several = wanted if isinstance(wanted, list) else [wanted]
            rendered = await self.parts(rights, several)
            every += rendered
            shown[place] = Markup("\n").join(_element(each) for each in rendered)
        return self.page(
            request, template, {"parts": shown, "stream": _stream(every), **(values or {})}
        )

    def page(
        self,
        request: Request,
        template: str,
        values: Mapping[str, Any],
        status: int = 200,
    ) -> HTMLResponse:
        """A page as a template makes it; who is not signed in has no menu."""
        caller = request.state.caller
        html = self._rendering.html(
            template,
            {
                "user": caller,
                "rights": Rights.of(caller) if caller else Rights(),
                "csrf": visit.csrf(request) if caller else "",
                "stream": "",
                "here": request.scope["path"].removeprefix(PREFIX),
                **values,
            },
        )
        return HTMLResponse(html, status)

    def error(self, request: Request, status: int, detail: str) -> HTMLResponse:
        """A page that says what went wrong."""
        try:
            title = HTTPStatus(status).phrase
        except ValueError:
            title = "Error"
        return self.page(
            request, "error.html", {"status": status, "title": title, "detail": detail}, status
        )


def _element(part: Rendered) -> Markup:
    kind, event = part.name.kind, part.name.event
    element = '<div id="{}" class="part part-{}" sse-swap="{}" hx-swap="innerHTML">{}</div>'
    return Markup(element).format(event, kind, event, Markup(part.html))


def _stream(parts: list[Rendered]) -> str:
    query = [pair for part in parts for pair in (("part", str(part.name)), ("is", part.digest))]
    return f"{PREFIX}/live?{urlencode(query)}" if query else ""
