# SPDX-License-Identifier: Apache-2.0
"""A session's figures of the last hour, fetched from its node when somebody looks; a grant's sum.

Mounted by console.app: for a session's and a grant's page, which fetch them into themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sluice.console import visit
from sluice.console.charts import Chart, Column
from sluice.console.frame import Frame
from sluice.console.inner_rest import InnerRest, RestCall
from sluice.console.parts import Hidden
from sluice.controller.pool.model import SessionState
from sluice.controller.pool.pool import Pool

STEP_SECONDS = 15
MOST_SESSIONS = 8  # of a grant, whose nodes are asked
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
        return shown(request, steps, "" if answer.ok else answer.why)

    @routes.get("/grant/figures")
    async def show_sum(
        request: Request,
        id: Annotated[str, Query(max_length=500)],  # noqa: A002
    ) -> Response:
        """The same of a grant: what its sessions use together."""
        if not visit.rights(request).sees_grant(pool.grants.get(id)):
            raise Hidden
        alive = [s for s in pool.sessions_of(id) if s.state is not SessionState.ENDED]
        asked = sorted(alive, key=lambda session: session.started)[:MOST_SESSIONS]
        answers = await asyncio.gather(
            *(
                rest.ask(visit.user(request), RestCall("GET", ("sessions", each.id, "figures")))
                for each in asked
            )
        )
        said = [answer.why for answer in answers if not answer.ok]
        note = f"Of {len(alive)} sessions the oldest {MOST_SESSIONS} are summed up here."
        steps = summed([answer.json()["steps"] for answer in answers if answer.ok])
        return shown(
            request,
            steps,
            said[0] if said and not steps else "",
            said[0] if said else note if len(alive) > MOST_SESSIONS else "",
        )

    def shown(
        request: Request, steps: list[dict[str, Any]], trouble: str, note: str = ""
    ) -> Response:
        values = {
            "columns": COLUMNS,
            "charts": CHARTS,
            "rows": [_row(step) for step in steps],
            "seconds": STEP_SECONDS,
            "note": note,
            "source": "",
            "trouble": trouble,
            "spans": {},
            "span": "",
            "of": "",
            "empty": "Its first figures are there after half a minute.",
        }
        return frame.page(request, "history.html", values)

    return routes


def summed(several: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Several sessions' steps as one's, the oldest first; a step is that in which it ended."""
    found: dict[int, dict[str, Any]] = {}
    for steps in several:
        for step in steps:
            when = int(datetime.fromisoformat(step["time"]).timestamp()) // STEP_SECONDS
            total = found.setdefault(when, {"time": step["time"]})
            for column in COLUMNS:
                total[column.field] = total.get(column.field, 0.0) + step[column.field]
    return [found[when] for when in sorted(found)]


def _row(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "time": int(datetime.fromisoformat(step["time"]).timestamp()),
        "cells": [f"{step[c.field] * c.factor:.{c.digits}f}" for c in COLUMNS],
    }
