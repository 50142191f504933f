# SPDX-License-Identifier: Apache-2.0
"""Tokens: who has which, by whom and until when. For admins; making and revoking is acting.py's.

Mounted by console.app. The list is REST's, which knows no secrets either.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sluice.console import visit
from sluice.console.actions_of_tokens import ROLES
from sluice.console.frame import Frame
from sluice.console.inner_rest import InnerRest, RestCall
from sluice.console.visit import Refused
from sluice.controller.auth.browser_sessions import BrowserSessions

ROWS = 50
STATES = ("valid", "expired", "revoked", "all")
DONE = {"token.revoke": "The token is revoked.", "token.make": "The token is made."}

Text = Annotated[str, Query(max_length=500)]


def token_pages(browsers: BrowserSessions, rest: InnerRest, frame: Frame) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

    @routes.get("/tokens")
    async def show_tokens(
        request: Request,
        state: Annotated[str, Query(pattern="^(valid|expired|revoked|all)$")] = "valid",
        role: Annotated[str, Query(pattern="^(|admin|operator|viewer|tenant|node)$")] = "",
        project: Text = "",
        marker: Annotated[str | None, Query(max_length=500)] = None,
        done: Text = "",
    ) -> Response:
        """Tokens, the oldest first."""
        if not visit.rights(request).audits:
            raise Refused(403, "tokens are shown to admins")
        given = {"state": state, "role": role, "project": project, "marker": marker or ""}
        query = tuple((key, value) for key, value in given.items() if value)
        call = RestCall("GET", ("tokens",), (("limit", str(ROWS)), *query))
        answer = await rest.ask(visit.user(request), call)
        if not answer.ok:
            raise Refused(answer.status, answer.why)
        found = answer.json()
        values = {
            "tokens": found["tokens"],
            "sessions": browsers.counts(),
            "own": visit.user(request).id,
            "states": STATES,
            "roles": [name for name, _ in ROLES],
            "asked": {"state": state, "role": role, "project": project},
            "next": found["next_marker"],
            "done": DONE.get(done, ""),
        }
        return frame.page(request, "tokens.html", values)

    return routes
