# SPDX-License-Identifier: Apache-2.0
"""REST handler for alerts: what fires now. What fired is in the event log (`kind=alert.`).

Mounted by controller.api.app where alerts are on.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.api.authorisation import Viewer
from sluice.controller.api.schemas import Time, time_of


class AlertView(BaseModel):
    """One that fires."""

    rule: str
    subject: str = Field(description="a node, GPU or project; empty: the pool")
    severity: str = Field(description="page, warning or info")
    text: str
    since: Time


class AlertList(BaseModel):
    """What fires, the most urgent first."""

    alerts: list[AlertView]
    rules: list[str] = Field(description="the rules that are on")
    webhook_trouble: str = Field(description="why the webhook was not told; empty: it was, or none")


def alert_routes(watch: AlertWatch) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

    @routes.get("/alerts", tags=["alerts"])
    async def list_alerts(_: Viewer) -> AlertList:
        """What fires now."""
        return AlertList(
            alerts=[
                AlertView(
                    rule=alert.rule,
                    subject=alert.subject,
                    severity=alert.severity.value,
                    text=alert.text,
                    since=time_of(alert.since),
                )
                for alert in watch.active
            ],
            rules=[rule.name for rule in watch.rules],
            webhook_trouble=watch.webhook.trouble,
        )

    return routes
