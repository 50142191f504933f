# SPDX-License-Identifier: Apache-2.0
"""Alerts: what fires, what fired, and which rules there are.

Mounted by console.app. The history is the event log's (`alert.firing`, `alert.resolved`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sluice.console import visit
from sluice.console.frame import Frame
from sluice.console.parts import Hidden
from sluice.console.rendering import link
from sluice.controller.alerts.book import Alert
from sluice.controller.alerts.rules import About
from sluice.controller.alerts.watch import FIRING, AlertWatch
from sluice.controller.grant_service import GrantService
from sluice.controller.store.store import EventQuery

ROWS = 50
#: Which page an alert is about, and how it names it.
PAGES = {
    About.NODE: ("node", "name"),
    About.GPU: ("gpu", "id"),
    About.PROJECT: ("project", "name"),
    About.QUEUE: ("queue", ""),
}


def alert_routes(grant_service: GrantService, frame: Frame, watch: AlertWatch | None) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

    @routes.get("/alerts")
    async def show_alerts(
        request: Request, before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None
    ) -> Response:
        """What fires, and what fired; for htmx without a page around it."""
        if not visit.rights(request).sees_pool:
            raise Hidden
        query = EventQuery(ROWS + 1, kind="alert.", before=before)
        found = await grant_service.store.find_events(query)
        shown = found[:ROWS]
        about = {rule.name: rule.about for rule in watch.rules} if watch else {}
        values = {
            "is_on": watch is not None,
            "active": [(each, _page(each, about)) for each in watch.active] if watch else [],
            "rules": [(rule, watch.series_of(rule)) for rule in watch.rules] if watch else [],
            "trouble": watch.webhook.trouble if watch else "",
            "past": [(each.event, each.event.kind == FIRING) for each in shown],
            "next": shown[-1].number if len(found) > ROWS else None,
            "before": before,
        }
        whole = "hx-request" not in request.headers
        return frame.page(request, "alerts_page.html" if whole else "alerts.html", values)

    return routes


def _page(alert: Alert, about: Mapping[str, About]) -> str:
    """Where to look; empty: nowhere in particular."""
    page, name = PAGES.get(about.get(alert.rule, About.POOL), ("", ""))
    if name and not alert.subject:
        return ""
    return link(page, **({name: alert.subject} if name else {})) if page else ""
