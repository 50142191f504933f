# SPDX-License-Identifier: Apache-2.0
"""How routes come into an application, for REST and the console.

FastAPI's include_router makes each route once more at the first request, which takes as long as the
application itself, and looks for a request's route router by router. Ours need none of what it is
for: they know their prefix.
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

REST = "/v1"
"""What every path of REST begins with."""


def add_routes(app: FastAPI, routes: APIRouter) -> None:
    """Adds a router's routes as they are."""
    app.router.routes.extend(routes.routes)
