# SPDX-License-Identifier: Apache-2.0
"""Assembles the REST application: the way in, every route and every error handler, in one place.

Called by controller.service, and by tests that speak to it without a socket. A request passes the
access middleware (how often, who, audit), idempotency, then its handler, which declares the role it
needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from sluice.config.buckets import Buckets
from sluice.config.controller import OpenStackSection
from sluice.config.version import own_version
from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.api import problems
from sluice.controller.api.access_middleware import AccessMiddleware
from sluice.controller.api.alert_routes import alert_routes
from sluice.controller.api.attachment_routes import attachment_routes
from sluice.controller.api.authorisation import undeclared
from sluice.controller.api.description import describe
from sluice.controller.api.enrolment_batch import enrolment_batch_routes
from sluice.controller.api.enrolment_routes import enrolment_routes
from sluice.controller.api.event_routes import event_routes
from sluice.controller.api.gpu_routes import gpu_routes
from sluice.controller.api.grant_routes import grant_routes
from sluice.controller.api.health_routes import health_routes
from sluice.controller.api.idempotency import Idempotency
from sluice.controller.api.metrics_routes import metrics_routes
from sluice.controller.api.node_routes import node_routes
from sluice.controller.api.part_routes import part_routes
from sluice.controller.api.people_routes import people_routes
from sluice.controller.api.pool_routes import pool_routes
from sluice.controller.api.queue_routes import queue_routes
from sluice.controller.api.quota_routes import quota_routes
from sluice.controller.api.reservation_batch import reservation_batch_routes
from sluice.controller.api.reservation_routes import reservation_routes
from sluice.controller.api.routing import add_routes
from sluice.controller.api.session_routes import session_routes
from sluice.controller.api.suspension_routes import suspension_routes
from sluice.controller.api.tcp_sessions import tcp_session_routes
from sluice.controller.api.token_routes import token_routes
from sluice.controller.api.usage_routes import usage_routes
from sluice.controller.api.vendordata_routes import vendordata_routes
from sluice.controller.api.vgpu_routes import vgpu_routes
from sluice.controller.api.view_routes import view_routes
from sluice.controller.api.vm_routes import vm_routes
from sluice.controller.auth.access import Access
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.auth.keystone import KeystoneTokens
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import Document
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.store.store import StoreError


def build_app(
    grant_service: GrantService,
    service: PoolService,
    key_seconds: int,
    access: Access,
    *,
    documents: Sequence[Document] = (),
    requests_per_second: float = 0.0,
    openstack: OpenStackSection | None = None,
    keystone: KeystoneTokens | None = None,
    browsers: BrowserSessions | None = None,
    alerts: AlertWatch | None = None,
) -> FastAPI:
    """Returns the application for one pool; raises RuntimeError for a route without a role.

    With `browsers` the console may be added to it (console.app).
    """
    app = FastAPI(
        title="Sluice controller",
        version=own_version(),
        description="The GPU pool: nodes, GPUs, grants and sessions. Memory is in MiB.",
        openapi_url=None,  # describe() has a route for it
        docs_url=None,
        redoc_url=None,
    )
    routers = [
        pool_routes(grant_service),
        node_routes(grant_service),
        gpu_routes(grant_service),
        grant_routes(grant_service, service),
        suspension_routes(grant_service),
        session_routes(grant_service, service),
        event_routes(grant_service, access.tokens),
        token_routes(access.tokens),
        enrolment_routes(access.enrolments, grant_service.pool, access.tokens.wall),
        enrolment_batch_routes(access.enrolments, grant_service.pool, access.tokens.wall),
        reservation_routes(grant_service),
        part_routes(grant_service),
        quota_routes(grant_service),
        queue_routes(grant_service),
        usage_routes(grant_service),
        reservation_batch_routes(grant_service),
        vgpu_routes(grant_service.pool),
        attachment_routes(grant_service, service),
        health_routes(grant_service, service),
        vm_routes(grant_service.pool, service),
        tcp_session_routes(grant_service, service, key_seconds),
        view_routes(grant_service, service),
    ]
    if alerts is not None:
        routers.append(alert_routes(alerts))
    if browsers is not None and access.people is not None:
        routers.append(people_routes(access.people, browsers))
    if openstack is not None and keystone is not None:
        wall = access.tokens.wall
        routers.append(vendordata_routes(openstack, grant_service.pool, access.enrolments, wall))
    for routes in routers:
        add_routes(app, routes)
    metrics = metrics_routes(grant_service)
    add_routes(app, metrics)
    if forgotten := undeclared([*routers, metrics]):
        raise RuntimeError(f"routes that declare no role: {'; '.join(forgotten)}")
    app.add_exception_handler(problems.Problem, problems.answer_problem)
    app.add_exception_handler(StoreError, problems.answer_store_error)
    app.add_exception_handler(HTTPException, problems.answer_http_error)
    app.add_exception_handler(RequestValidationError, problems.answer_invalid)
    # the last one added is the first that a request meets
    app.add_middleware(Idempotency, store=grant_service.store, documents=documents)
    app.add_middleware(
        AccessMiddleware,
        access=access,
        buckets=Buckets(requests_per_second),
        keystone=keystone,
        browsers=browsers,
    )
    describe(app)
    return app
