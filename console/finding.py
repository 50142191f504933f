# SPDX-License-Identifier: Apache-2.0
"""From a name that somebody wrote to the page of what has it.

Mounted by console.app. Names are whole, but for a GPU's UUID, of which the beginning is enough.
What the user may not see is not found.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from sluice.console import visit
from sluice.console.frame import Frame
from sluice.console.rendering import link
from sluice.console.rights import Rights
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.problems import Problem
from sluice.controller.pool.pool import Pool


def page_of(pool: Pool, rights: Rights, name: str) -> str | None:
    """The address of the page of what has this name; None: nothing that these rights show."""
    session = pool.sessions.get(name)
    if rights.sees_session(pool, session):
        return link("session", id=name)
    if rights.sees_grant(pool.grants.get(name)):
        return link("grant", id=name)
    if rights.sees_pool:
        if name in pool.nodes:
            return link("node", name=name)
        if name in pool.reservations:
            return link("reservation", id=name)
        try:
            return link("gpu", id=str(gpu_key(pool.gpus, name)))
        except Problem:
            pass
    known = rights.sees_project(name) and (
        rights.project == name or pool.grants_live_of(name) or name in pool.quotas.limits
    )
    return link("project", name=name) if known else None


def finding_routes(pool: Pool, frame: Frame) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

    @routes.get("/find")
    async def find(request: Request, name: Annotated[str, Query(max_length=500)]) -> Response:
        """To the page of what has this name."""
        wanted = name.strip()
        if found := page_of(pool, visit.rights(request), wanted):
            return RedirectResponse(found, 303)
        return frame.error(
            request,
            404,
            f"nothing that you may see is called {wanted[:100]}; write a whole name or id, or the "
            "first eight characters of a GPU's UUID",
        )

    return routes
