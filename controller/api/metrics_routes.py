# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: the leader's figures for Prometheus.

Mounted by controller.api.app, outside /v1 because scrapers look for it there. Whoever may look at
the pool may scrape it. Controllers that do not lead answer in leader_only.py, with their standing
only.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry

from sluice.config import peer_lines
from sluice.config.metric_families import FamilyCollector, exposition
from sluice.controller.api.authorisation import Viewer
from sluice.controller.grant_service import GrantService
from sluice.controller.metrics.collector import PoolFigures


def registry_of(grant_service: GrantService) -> CollectorRegistry:
    """Everything that a controller exposes while it leads."""
    registry = CollectorRegistry()
    registry.register(grant_service.meters.standing.registry)
    registry.register(grant_service.meters.registry)
    registry.register(PoolFigures(grant_service).collector())
    registry.register(FamilyCollector((peer_lines.FAMILY,), peer_lines.CONTROLLER.fill))
    return registry


def metrics_routes(grant_service: GrantService) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()
    registry = registry_of(grant_service)

    @routes.get(
        "/metrics",
        tags=["metrics"],
        response_class=PlainTextResponse,
        responses={200: {"content": {"application/openmetrics-text": {}}}},
    )
    async def show_metrics(request: Request, _: Viewer) -> Response:
        """The pool's and this controller's figures in Prometheus' text format, or OpenMetrics."""
        body, content_type = exposition(registry, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return routes
