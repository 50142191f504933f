# SPDX-License-Identifier: Apache-2.0
"""A session's figures of the last hour, fetched from its node when somebody looks.

Mounted by console.app: for the session's page, which fetches it into itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sluice.console import visit
from sluice.console.charts import Chart, Column
from sluice.console.frame import Frame
from sluice.console.inner_rest import InnerRest, RestCall
from sluice.console.parts import Hidden
from sluice.controller.pool.pool import Pool

STEP_SECONDS = 15
COLUMNS = [
    Column("GPU time", "%", "gpus", 100.0, 1),
    Column("Memory", "MiB", "memory_mib", 1.0, 0),
    Column("Commands", "per second", "commands", 1.0, 1),
    Column("Round trips", "per second", "round_trips", 1.0, 1),
    Column("To the node", "MiB per second", "received_bytes", 1 / (1 << 20), 2),
    Column("To the client", "MiB per second", "sent_bytes", 1 / (1 << 20), 2),
]
CHARTS = [
    Chart("GPU time", "% of a GPU", (0,)),
    Chart("Memory", "MiB", (1,)),
    Chart("Commands and round trips", "per second", (2, 3)),
    Chart("Data", "MiB per second", (4, 5)),
]


def figure_routes(pool: Pool, rest: InnerRest, frame: Frame) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

    @routes.get("/session/figures")
    async def show_figures(
        request: Request,
        id: Annotated[str, Query(max_length=500)],  # noqa: A002
    ) -> Response:
        """Charts and a table, for a session's page."""
        if not visit.rights(request).sees_session(pool, pool.sessions.get(id)):
            raise Hidden
        answer = await rest.ask(visit.user(request), RestCall("GET", ("sessions", id, "figures")))
        steps = answer.json()["steps"] if answer.ok else []
        values = {
            "columns": COLUMNS,
            "charts": CHARTS,
            "rows": [_row(step) for step in steps],
            "seconds": STEP_SECONDS,
            "note": "",
            "trouble": "" if answer.ok else answer.why,
            "spans": {},
            "span": "",
            "of": "",
            "empty": "Its first figures are there after half a minute.",
        }
        return frame.page(request, "history.html", values)

    return routes


def _row(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "time": int(datetime.fromisoformat(step["time"]).timestamp()),
        "cells": [f"{step[c.field] * c.factor:.{c.digits}f}" for c in COLUMNS],
    }
