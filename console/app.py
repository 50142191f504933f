# SPDX-License-Identifier: Apache-2.0
"""Assembles the console and puts it beside REST: at /console, with / leading there.

Called by controller.service for a controller whose [console] is enabled. Requests come through the
same middleware as REST's: rates, sizes, who calls.
"""

from __future__ import annotations

from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from sluice.console.acting import acting_routes
from sluice.console.alerts import alert_routes
from sluice.console.board import Board
from sluice.console.charts import Histories, chart_routes
from sluice.console.finding import finding_routes
from sluice.console.frame import Frame, SafeHeaders
from sluice.console.inner_rest import InnerRest
from sluice.console.live import Live
from sluice.console.pages import page_routes
from sluice.console.parts import Hidden
from sluice.console.person_sign_in import person_routes
from sluice.console.rendering import Rendering
from sluice.console.session_figures import figure_routes
from sluice.console.sign_in import TokenForm, sign_in_routes
from sluice.console.static_files import FILES
from sluice.console.streams import stream_routes
from sluice.console.tokens import token_pages
from sluice.console.usage import usage_routes
from sluice.console.visit import SIGN_IN, NotSignedIn, Refused
from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.api.problems import Problem
from sluice.controller.api.routing import add_routes
from sluice.controller.auth.browser_sessions import PREFIX, BrowserSessions
from sluice.controller.auth.oidc import RelyingParty
from sluice.controller.grant_service import GrantService
from sluice.controller.store.store import StoreError


def add_console(
    app: FastAPI,
    grant_service: GrantService,
    browsers: BrowserSessions,
    histories: Histories | None = None,
    alerts: AlertWatch | None = None,
    party: RelyingParty | None = None,
) -> Live:
    """Adds it to REST's application; returns what its live pages hang on."""
    rendering = Rendering()
    board = Board(grant_service, rendering)
    frame, live, rest = Frame(board, rendering), Live(board), InnerRest(app)
    grant_service.watchers.append(live.changed)
    console = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pool = grant_service.pool
    form = TokenForm(frame, party.section.title if party else "")
    add_routes(console, sign_in_routes(browsers, form))
    if party is not None:
        add_routes(console, person_routes(browsers, party, form))
    add_routes(console, page_routes(pool, rest, frame))
    add_routes(console, finding_routes(pool, frame))
    add_routes(console, chart_routes(pool, frame, histories or Histories()))
    add_routes(console, usage_routes(grant_service, frame))
    add_routes(console, figure_routes(pool, rest, frame))
    add_routes(console, token_pages(browsers, rest, frame))
    add_routes(console, alert_routes(grant_service, frame, alerts))
    add_routes(console, acting_routes(pool, rest, browsers, frame))
    add_routes(console, stream_routes(grant_service, browsers, live))
    console.add_api_route("/static/{digest}/{name}", _static)
    _add_errors(console, frame)
    console.add_middleware(SafeHeaders)
    app.add_route("/", _to_console, include_in_schema=False)
    app.mount(PREFIX, console)
    return live


async def _to_console(_: Request) -> Response:
    return RedirectResponse(f"{PREFIX}/", 303)


async def _static(digest: str, name: str) -> Response:
    file = FILES.get(name)
    if file is None or file.digest != digest:
        raise Hidden
    return file.response()


def _add_errors(console: FastAPI, frame: Frame) -> None:
    """What a page's trouble looks like."""

    def not_signed_in(request: Request, _: Exception) -> Response:
        if request.scope["path"] == f"{PREFIX}/live" or "hx-request" in request.headers:
            return frame.error(request, 401, "you are not signed in any more")
        if request.method != "GET":
            return RedirectResponse(SIGN_IN, 303)
        query = request.scope["query_string"].decode("latin-1")
        target = request.scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"{SIGN_IN}?next={quote(target, safe='')}", 303)

    def hidden(request: Request, _: Exception) -> Response:
        return frame.error(request, 404, "there is no such page, or not for your role")

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return frame.error(request, error.status, error.detail)

    def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return frame.error(request, error.status, error.detail)

    def store_error(request: Request, error: Exception) -> Response:
        return frame.error(request, 503, f"nothing can be stored or read now: {error}")

    def invalid(request: Request, _: Exception) -> Response:
        return frame.error(request, 422, "the address of this page is not as it should be")

    def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return frame.error(request, error.status_code, f"{error.detail}")

    console.add_exception_handler(NotSignedIn, not_signed_in)
    console.add_exception_handler(Hidden, hidden)
    console.add_exception_handler(Refused, refused)
    console.add_exception_handler(Problem, problem)
    console.add_exception_handler(StoreError, store_error)
    console.add_exception_handler(RequestValidationError, invalid)
    console.add_exception_handler(HTTPException, http_error)
