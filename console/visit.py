# SPDX-License-Identifier: Apache-2.0
"""A request of a browser: who it is of, what its form says, whether one of our pages sent it.

Used by every handler of the console. The access middleware has found the caller by the cookie;
`user` turns away who is not signed in. `checked_form` is the only way to a form's fields, and lets
nothing through that another site had a browser send.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import Request

from sluice.console.rights import Rights
from sluice.controller.auth.access import Caller
from sluice.controller.auth.audit import DENIED
from sluice.controller.auth.browser_sessions import (
    COOKIE,
    PREFIX,
    TLS_COOKIE,
    BrowserSessions,
    csrf_of,
    is_csrf_of,
)

SIGN_IN = f"{PREFIX}/sign-in"
#: Of the form to sign in, which has no session yet.
FORM_COOKIE = "sluice_console_form"
MOST_FIELDS = 40
CSRF_FIELD = "csrf"


class NotSignedIn(Exception):
    """The browser is sent to sign in, and back."""


class Refused(Exception):
    """An error page: its status, and what to do."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def is_tls(request: Request) -> bool:
    """Whether it came by TLS, as far as this controller sees."""
    return request.scope.get("scheme") == "https"


def cookie_name(request: Request) -> str:
    """The session's."""
    return TLS_COOKIE if is_tls(request) else COOKIE


def secret_of(request: Request) -> str:
    """The session's secret; empty: there is none."""
    return BrowserSessions.secret_in(request.headers, tls=is_tls(request))


def user(request: Request) -> Caller:
    """Who is signed in; raises NotSignedIn."""
    caller: Caller | None = request.state.caller
    if caller is None:
        raise NotSignedIn
    return caller


def rights(request: Request) -> Rights:
    """What the user may; raises NotSignedIn."""
    return Rights.of(user(request))


def csrf(request: Request) -> str:
    """What this session's forms carry."""
    return csrf_of(secret_of(request))


def way_back(text: str) -> str:
    """Where to go after signing in: a page of the console, whatever somebody wrote there."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return PREFIX + "/"
    inside = parts.path == PREFIX or parts.path.startswith(PREFIX + "/")
    plain = text.isprintable() and "\\" not in text and not parts.scheme and not parts.netloc
    if not (inside and plain) or parts.path.startswith(SIGN_IN):
        return PREFIX + "/"
    path = quote(parts.path, safe="/%-._~")
    return path + (f"?{parts.query}" if parts.query else "")


async def checked_form(request: Request, secret: str) -> Mapping[str, str]:
    """A form's fields; raises Refused where it is not one that we made for this browser."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    host = request.headers.get("host", "")
    foreign = (origin is not None and origin.partition("://")[2] != host) or (
        site is not None and site != "same-origin"
    )
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/x-www-form-urlencoded":
        raise Refused(415, "a form of this console is application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode("utf-8")
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refused(400, "the form cannot be read; reload its page and try again") from None
    if foreign or not is_csrf_of(secret, fields.pop(CSRF_FIELD, "")):
        raise Refused(
            403,
            "this form did not come from a page of this session, so nothing was done; "
            "reload the page and try again",
        )
    return fields


async def checked_form_of_user(request: Request, browsers: BrowserSessions) -> Mapping[str, str]:
    """The same of who is signed in; what is refused is in the audit trail."""
    caller = user(request)
    try:
        return await checked_form(request, secret_of(request))
    except Refused as refused:
        if refused.status == 403:
            what = f"a form of another page for {request.scope['path']}: {caller}"
            await browsers.access.audit.refused(DENIED, caller.id, what)
        raise
