# SPDX-License-Identifier: Apache-2.0
"""Signing in by token, signing out here and everywhere.

Mounted by console.app; person_sign_in.py has the other way in. A token is shown once, in the form's
body; from then on the browser has a cookie with a secret of its own that scripts cannot read. Who
signed in and out is in the audit trail.
"""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from sluice.config.peer_lines import CONTROLLER as PEERS
from sluice.console.frame import Frame
from sluice.console.visit import (
    FORM_COOKIE,
    SIGN_IN,
    Refused,
    checked_form,
    checked_form_of_user,
    cookie_name,
    is_tls,
    secret_of,
    user,
    way_back,
)
from sluice.controller.auth.access import Denied
from sluice.controller.auth.audit import DENIED
from sluice.controller.auth.browser_sessions import PREFIX, BrowserSessions, csrf_of

SIGNED_IN, SIGNED_OUT = "audit.sign-in", "audit.sign-out"
MOST_TOKEN_CHARACTERS = 500


class TokenForm:
    """The form to sign in by a token; it also says with what else, and what went wrong."""

    def __init__(self, frame: Frame, provider: str = "") -> None:
        """`provider` is what people know an OpenID Connect provider as; empty: there is none."""
        self._frame = frame
        self._provider = provider

    def shown(self, request: Request, back: str, error: str = "", status: int = 200) -> Response:
        """The page; `back` is where to go after it."""
        made = secrets.token_urlsafe(32)
        values = {
            "csrf": csrf_of(made),
            "next": back,
            "error": error,
            "tls": is_tls(request),
            "provider": self._provider,
        }
        answer = self._frame.page(request, "sign_in.html", values, status)
        answer.set_cookie(
            FORM_COOKIE, made, path=SIGN_IN, httponly=True, samesite="strict",
            secure=is_tls(request), max_age=3600,
        )  # fmt: skip
        return answer


def with_session(answer: Response, request: Request, secret: str, seconds: float) -> Response:
    """The answer, with the cookie of a session."""
    answer.set_cookie(
        cookie_name(request), secret, path="/", httponly=True, samesite="lax",
        secure=is_tls(request), max_age=int(seconds),
    )  # fmt: skip
    return answer


def sign_in_routes(browsers: BrowserSessions, form: TokenForm) -> APIRouter:
    """The handlers, bound to one pool's sessions."""
    routes = APIRouter()
    audit = browsers.access.audit

    @routes.get("/sign-in")
    async def show_sign_in(request: Request, next: str = "") -> Response:  # noqa: A002
        """The form to sign in."""
        back = way_back(next)
        if request.state.caller is not None:
            return RedirectResponse(back, 303)
        return form.shown(request, back)

    @routes.post("/sign-in")
    async def sign_in(request: Request) -> Response:
        """A session for who shows a token."""
        try:
            fields = await checked_form(request, request.cookies.get(FORM_COOKIE, ""))
        except Refused as refused:
            return form.shown(request, PREFIX + "/", f"Nothing was done: {refused.detail}.", 403)
        back = way_back(fields.get("next", ""))
        address = request.client.host if request.client else ""
        token = fields.get("token", "").strip()[:MOST_TOKEN_CHARACTERS]
        try:
            caller = browsers.may_sign_in(token, address)
        except Denied as denied:
            what = f"sign-in from {address}: {denied}"
            if denied.subject:
                await audit.refused(DENIED, denied.subject, what)
            else:
                PEERS.warning("console: no token", address, "refused %s", what)
            return form.shown(request, back, f"Not signed in: {denied}.", 401)
        if old := secret_of(request):
            await browsers.end(old)
        secret = await browsers.open(caller)
        await audit.changed(SIGNED_IN, caller.id, f"signed in to the console, {caller}")
        answer = with_session(RedirectResponse(back, 303), request, secret, browsers.seconds)
        answer.delete_cookie(FORM_COOKIE, path=SIGN_IN)
        return answer

    @routes.post("/sign-out")
    async def sign_out(request: Request) -> Response:
        """The end of this session, or of all of this token or person."""
        fields = await checked_form_of_user(request, browsers)
        caller = user(request)
        if fields.get("where") == "everywhere":
            count = await browsers.end_all(caller.id)
            text = f"signed out of the console everywhere ({count} sessions), {caller}"
        else:
            await browsers.end(secret_of(request))
            text = f"signed out of the console, {caller}"
        await audit.changed(SIGNED_OUT, caller.id, text)
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(
            cookie_name(request), path="/", httponly=True, samesite="lax", secure=is_tls(request)
        )
        return answer

    return routes
