# SPDX-License-Identifier: Apache-2.0
"""Assembles the REST application: every route and every error handler, in one place.

Called by controller.service, and by tests that speak to it without a socket.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from sluice.controller.api import problems
from sluice.controller.api.resources import resource_routes
from sluice.controller.api.tcp_sessions import tcp_session_routes
from sluice.controller.desk import GrantDesk
from sluice.controller.node_service import PoolService, own_version
from sluice.controller.store.store import StoreError


def build_app(desk: GrantDesk, service: PoolService, key_seconds: int) -> FastAPI:
    """Returns the application for one pool."""
    app = FastAPI(
        title="Sluice controller",
        version=own_version(),
        description="The GPU pool: nodes, GPUs, grants and sessions. Memory is in MiB.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(resource_routes(desk, service), prefix="/v1")
    app.include_router(tcp_session_routes(desk, service, key_seconds), prefix="/v1")
    app.add_exception_handler(problems.Problem, problems.answer_problem)
    app.add_exception_handler(StoreError, problems.answer_store_error)
    app.add_exception_handler(HTTPException, problems.answer_http_error)
    app.add_exception_handler(RequestValidationError, problems.answer_invalid)
    return app
