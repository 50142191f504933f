# SPDX-License-Identifier: Apache-2.0
"""REST handler for alerts: what fires now. What fired is in the event log (`kind=alert.`).

Mounted by controller.api.app where alerts are on.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.api.authorisation import Viewer
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Time, time_of


class AlertView(BaseModel):
    """One that fires."""

    rule: str
    subject: str = Field(description="a node, GPU or project; empty: the pool")
    severity: str = Field(description="page, warning or info")
    text: str
    since: Time


class RuleView(BaseModel):
    """A rule that is on."""

    name: str
    severity: str = Field(description="page, warning or info")
    seconds: float = Field(description="for how long it has to be so before it fires")
    says: str = Field(description="when it fires, in words")
    own: bool = Field(description="whether it is one of [alerts] rules_file")
    series: int | None = Field(
        description="how many series one of rules_file looked at last: 0 for long means that its "
        "labels fit nothing; null: it is one of the default set"
    )


class AlertList(BaseModel):
    """What fires, the most urgent first."""

    alerts: list[AlertView]
    rules: list[str] = Field(description="the rules that are on")
    definitions: list[RuleView] = Field(description="the same, with what they say")
    webhook_trouble: str = Field(description="why the webhook was not told; empty: it was, or none")


def alert_routes(watch: AlertWatch) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter(prefix=REST)

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
            definitions=[
                RuleView(
                    name=rule.name,
                    severity=rule.severity.value,
                    seconds=rule.held,
                    says=rule.says,
                    own=rule.own,
                    series=watch.series_of(rule),
                )
                for rule in watch.rules
            ],
            webhook_trouble=watch.webhook.trouble,
        )

    return routes
