# SPDX-License-Identifier: Apache-2.0
"""Figures over time of the pool, a node, a GPU or a project: charts, and the table behind them.

Mounted by console.app. Pages fetch it into themselves (htmx), and it is a page of its own for who
comes without scripts. What a chart shows is read out of the table by static/charts.js.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sluice.console import visit
from sluice.console.frame import Frame
from sluice.console.parts import Hidden
from sluice.console.rights import Rights
from sluice.controller.history.history_file import HistoryError
from sluice.controller.history.keeper import HistoryKeeper
from sluice.controller.history.prometheus import PrometheusHistory
from sluice.controller.history.series import POOL, TIERS, Point, Span, Values
from sluice.controller.pool.model import GpuKey
from sluice.controller.pool.pool import Pool

#: Rows of a table, and points of a chart: more are means of several.
MOST_ROWS = 300
NOTHING_YET = (
    "Nothing has been kept yet: the first figures are there after half a minute, those of longer "
    "spans when a minute or an hour is over."
)
NOTHING_THERE = (
    "Prometheus has no figures of this in this time: does it scrape the controllers and servers, "
    "and do [console] prometheus_labels fit"
)
SPANS = {Span.HOUR: "Last hour", Span.DAY: "Last day", Span.MONTH: "Last month"}


@dataclass(frozen=True, slots=True)
class Column:
    """Of the table: a name, its unit, and what one of history's is multiplied by."""

    name: str
    unit: str
    field: str
    factor: float = 1.0
    digits: int = 2


@dataclass(frozen=True, slots=True)
class Chart:
    """Columns that are shown together, by their places in the table."""

    title: str
    unit: str
    columns: tuple[int, ...]
    most: float | None = None  # where the scale ends; None: where the figures do


def _columns(of: str) -> list[Column]:
    unit, factor, digits = ("%", 100.0, 1) if of.startswith("gpu:") else ("GPUs", 1.0, 2)
    promised = "Held" if of.startswith("project:") else "Promised"
    return [
        Column("Used", unit, "used", factor, digits),
        Column(promised, unit, "compute", factor, digits),
        Column("Memory", "GiB", "memory_mib", 1 / 1024, 1),
        Column("vGPUs", "", "vgpus", 1.0, 1),
    ]


def _charts(columns: Sequence[Column]) -> list[Chart]:
    time, memory, vgpus = columns[1], columns[2], columns[3]
    what = time.name.lower()
    whole = 100.0 if time.unit == "%" else None
    return [
        Chart(f"GPU time, used and {what}", time.unit, (0, 1), whole),
        Chart(f"Memory {what}", memory.unit, (2,)),
        Chart("vGPUs", vgpus.unit, (3,)),
    ]


@dataclass(frozen=True, slots=True)
class Histories:
    """Where figures come from: Prometheus where there is one, else what this controller keeps."""

    kept: HistoryKeeper | None = None
    prometheus: PrometheusHistory | None = None


def chart_routes(pool: Pool, frame: Frame, histories: Histories) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

    @routes.get("/history")
    async def show_history(
        request: Request,
        of: Annotated[str, Query(max_length=500)] = POOL,
        span: Span = Span.HOUR,
    ) -> Response:
        """Charts and a table; for htmx without a page around them."""
        _check(pool, visit.rights(request), of)
        columns = _columns(of)
        points, note = await _read(histories, of, span)
        values = {
            "of": of,
            "span": span,
            "spans": SPANS,
            "columns": columns,
            "charts": _charts(columns),
            "rows": [_row(point, columns) for point in points],
            "seconds": _seconds(points, span),
            "trouble": "",
            "note": note,
            "source": "Prometheus" if histories.prometheus and points and not note else "",
            "empty": NOTHING_YET,
        }
        whole = "hx-request" not in request.headers
        return frame.page(request, "history_page.html" if whole else "history.html", values)

    return routes


def _check(pool: Pool, rights: Rights, of: str) -> None:
    """Raises Hidden for what there is not, and for what the rights do not show."""
    kind, _, name = of.partition(":")
    if kind == "project":
        seen = rights.sees_project(name)
    elif kind == "gpu":
        node, _, uuid = name.rpartition(":")
        seen = rights.sees_pool and GpuKey(node, uuid) in pool.gpus
    elif kind == "node":
        seen = rights.sees_pool and name in pool.nodes
    else:
        seen = rights.sees_pool and of == POOL
    if not seen:
        raise Hidden


async def _read(histories: Histories, of: str, span: Span) -> tuple[list[Point], str]:
    """Points, and what is to be said of them.

    Where Prometheus has none, they are the controller's own, and that is said.
    """
    note = ""
    if histories.prometheus is not None:
        try:
            if points := await histories.prometheus.read(of, span):
                return thinned(points, MOST_ROWS), ""
            note = NOTHING_THERE
        except HistoryError as error:
            note = str(error)
    if histories.kept is None:
        return [], note or "history is off: [console] history in controller.conf"
    try:
        points = thinned(await histories.kept.read(of, span), MOST_ROWS)
    except HistoryError as error:
        return [], f"{note}; {error}" if note else str(error)
    return points, f"{note}. These are the controller's own figures." if note and points else note


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many: each of several becomes their mean, of which what is not known is none."""
    every = -(-len(points) // most) if points else 1
    if every == 1:
        return list(points)
    found = []
    for at in range(0, len(points), every):
        several = points[at : at + every]
        means = [_mean([getattr(p.values, field) for p in several]) for field in Values._fields]
        found.append(Point(several[0].time, Values(*means)))
    return found


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _seconds(points: Sequence[Point], span: Span) -> int:
    """How far rows are apart where nothing is missing."""
    gaps = [later.time - point.time for point, later in pairwise(points)]
    return min(gaps, default=TIERS[span].seconds)


def _row(point: Point, columns: Sequence[Column]) -> dict[str, Any]:
    cells = []
    for column in columns:
        value = getattr(point.values, column.field) * column.factor
        cells.append("" if math.isnan(value) else f"{value:.{column.digits}f}")
    return {"time": point.time, "cells": cells}
