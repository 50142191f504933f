# SPDX-License-Identifier: Apache-2.0
"""Doing something: a page that says what will happen, and the form that does it.

Mounted by console.app. The form carries what the session's forms carry, and the generation that the
page was made at; it is asked of REST for the user, which judges, guards and writes down. What REST
refuses is said on the same page, which shows anew what will happen.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from sluice.console import visit
from sluice.console.actions import ACTIONS
from sluice.console.actions_of_tokens import token_actions
from sluice.console.frame import Frame
from sluice.console.inner_rest import InnerRest, RestCall
from sluice.console.parts import Hidden
from sluice.console.plans import Action, Plan, number
from sluice.console.rendering import link
from sluice.console.visit import Refused
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.pool.pool import Pool

MOST_KEY = 64


def acting_routes(
    pool: Pool, rest: InnerRest, browsers: BrowserSessions, frame: Frame
) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()
    actions = {**ACTIONS, **token_actions(browsers)}

    def found(name: str) -> Action:
        if (action := actions.get(name)) is None:
            raise Hidden
        return action

    def confirm(
        request: Request,
        name: str,
        target: str,
        plan: Plan,
        error: str = "",
        status: int = 200,
        given: Mapping[str, str] | None = None,
    ) -> Response:
        fields = plan.fields
        if given is not None:  # what was written stands there again
            fields = [dataclasses.replace(f, value=given.get(f.name, "")) for f in fields]
        values = {
            "action": name,
            "target": target,
            "plan": plan,
            "fields": fields,
            "key": secrets.token_urlsafe(18),
            "error": error,
        }
        return frame.page(request, "confirm.html", values, status)

    @routes.get("/do")
    async def show(request: Request, action: str, target: str = "") -> Response:
        """What will happen, and the button."""
        rights, chosen = visit.rights(request), found(action)
        if not chosen.may(rights, pool, target):
            raise Refused(403, "this is not for your role")
        return confirm(request, action, target, chosen.plan(pool, target))

    @routes.post("/do")
    async def do(request: Request) -> Response:
        """Does it, by REST."""
        fields = await visit.checked_form_of_user(request, browsers)
        name, target = fields.get("action", ""), fields.get("target", "")
        chosen = found(name)
        try:
            call = _with_guards(chosen.call(target, fields), fields)
        except Refused as wrong:
            plan = chosen.plan(pool, target)
            return confirm(request, name, target, plan, wrong.detail, wrong.status, fields)
        answer = await rest.ask(visit.user(request), call)
        if not answer.ok:
            if not chosen.may(visit.rights(request), pool, target):
                raise Refused(answer.status, answer.why)
            plan = chosen.plan(pool, target)
            return confirm(request, name, target, plan, answer.why, answer.status, fields)
        if chosen.reveals:
            made = answer.json()
            secret = "" if answer.replayed else made.get("secret", "")
            return frame.page(request, "made.html", {"made": made, "secret": secret})
        try:
            back = chosen.plan(pool, target).back
        except Hidden:  # what it was about is not remembered any more
            back = link("")
        return RedirectResponse(f"{back}{'&' if '?' in back else '?'}done={name}", 303)

    return routes


def _with_guards(call: RestCall, fields: Mapping[str, str]) -> RestCall:
    generation = number(fields, "generation")
    key = fields.get("key", "") if call.method == "POST" else ""
    if key and not (key.isascii() and key.isprintable() and len(key) <= MOST_KEY):
        raise Refused(422, "the form is not as this console made it; reload its page")
    return dataclasses.replace(call, if_match=generation, key=key)
