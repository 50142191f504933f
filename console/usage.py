# SPDX-License-Identifier: Apache-2.0
"""What was used over any time: a table by project, person or label, charts over it, and CSV.

Mounted by console.app. Hours of projects, and days of people and labels, are read and summed up a
piece at a time, between which the controller serves others; what is kept for the page is bounded,
however long the time.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from sluice.console import visit
from sluice.console.charts import Chart, Column
from sluice.console.drawing import hue_of
from sluice.console.frame import Frame
from sluice.console.rights import Rights
from sluice.console.visit import Refused
from sluice.controller.api.usage_routes import shared_between, used_between
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.usage_records import UsageRecord, UsageShare

HOUR_SECONDS = 3600
DAY_HOURS = 24
PIECE_HOURS = DAY_HOURS
PIECE_DAYS = 7
MOST_DAYS = 3660
EARLIEST, LATEST = date(2000, 1, 1), date(2200, 1, 1)
DEFAULT_DAYS = 7
#: Up to here a chart's points are hours, beyond days.
MOST_DAYS_BY_HOUR = 8
MOST_POINTS = 300
MOST_ROWS = 200
_PERCENT = 100.0
_MIB = 1024.0
CSV_HEADER = (
    "project", "hour", "vgpu_seconds", "memory_mib_seconds", "compute_percent_seconds",
    "gpu_seconds", "gpu_wait_seconds",
)  # fmt: skip
SHARES_CSV_HEADER = ("project", "person", "label", "day", *CSV_HEADER[2:])
COLUMNS = [
    Column("Used", "GPU-hours", "", 1.0),
    Column("Held", "GPU-hours", "", 1.0),
    Column("Memory held", "GiB-hours", "", 1.0),
]
CHARTS = [
    Chart("GPU time, used and held", "GPU-hours", (0, 1)),
    Chart("Memory held", "GiB-hours", (2,)),
]

Text = Annotated[str, Query(max_length=500)]
By = Literal["project", "person", "label"]


@dataclass(slots=True)
class Sum:
    """Of a project or of a stretch of time."""

    vgpu_hours: float = 0.0
    gib_hours: float = 0.0
    held_hours: float = 0.0  # of GPUs' compute
    used_hours: float = 0.0  # of GPUs' time
    waited_hours: float = 0.0

    def add(self, record: UsageRecord | UsageShare) -> None:
        """One hour of a project's, or day of a share's."""
        self.vgpu_hours += record.vgpu_seconds / HOUR_SECONDS
        self.gib_hours += record.memory_mib_seconds / HOUR_SECONDS / _MIB
        self.held_hours += record.compute_percent_seconds / HOUR_SECONDS / _PERCENT
        self.used_hours += record.gpu_seconds / HOUR_SECONDS
        self.waited_hours += record.gpu_wait_seconds / HOUR_SECONDS


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose usage, from the first to the last day, UTC."""

    first: date
    last: date
    project: str | None
    by: By = "project"
    person: str = ""  # only this one's; empty: everybody's
    label: str = ""

    @property
    def of_shares(self) -> bool:
        """Whether it is asked by the day of people and labels, not by the hour of projects."""
        return self.by != "project" or bool(self.person or self.label)

    def has(self, share: UsageShare) -> bool:
        """Whether this is one of those that are asked for."""
        return self.person in ("", share.person) and self.label in ("", share.label)

    @property
    def hours(self) -> range:
        """Since the epoch."""
        return range(_hour(self.first), _hour(self.last + timedelta(days=1)))


def usage_routes(grant_service: GrantService, frame: Frame) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()

    @routes.get("/usage")
    async def show_usage(
        request: Request,
        first: Annotated[date | None, Query(alias="from")] = None,
        last: Annotated[date | None, Query(alias="to")] = None,
        project: Text = "",
        by: By = "project",
        person: Text = "",
        label: Text = "",
    ) -> Response:
        """A table by project, person or label, and charts."""
        asked = _asked(visit.rights(request), first, last, (project, by, person, label))
        by_name, by_time, step = await summed(grant_service, asked)
        most = max((each.held_hours for each in by_name.values()), default=0.0)
        ordered = sorted(by_name.items(), key=lambda each: (-each[1].held_hours, each[0]))
        span = {"from": asked.first, "to": asked.last}
        own = {"project": asked.project, "person": asked.person, "label": asked.label}
        values = {
            "asked": asked,
            "query": {**span, **{key: value for key, value in own.items() if value}},
            "names": [(name, hue_of(name), each) for name, each in ordered[:MOST_ROWS]],
            "more": max(0, len(ordered) - MOST_ROWS),
            "most": most,
            "columns": COLUMNS,
            "charts": CHARTS,
            "rows": [
                {
                    "time": when,
                    "cells": [f"{v:.2f}" for v in (s.used_hours, s.held_hours, s.gib_hours)],
                }
                for when, s in sorted(by_time.items())
            ],
            "seconds": step,
            "step": "day" if step > HOUR_SECONDS else "hour",
        }
        return frame.page(request, "usage.html", values)

    @routes.get("/usage.csv")
    async def export_usage(
        request: Request,
        first: Annotated[date | None, Query(alias="from")] = None,
        last: Annotated[date | None, Query(alias="to")] = None,
        project: Text = "",
        by: By = "project",
        person: Text = "",
        label: Text = "",
    ) -> Response:
        """Every hour or day, as REST's /v1/usage.csv or /v1/usage/shares.csv has it."""
        asked = _asked(visit.rights(request), first, last, (project, by, person, label))
        name = f"usage-{asked.first}-{asked.last}.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        lines = _share_lines if asked.of_shares else _lines
        return StreamingResponse(lines(grant_service, asked), 200, headers, "text/csv")

    return routes


def _asked(
    rights: Rights, first: date | None, last: date | None, wanted: tuple[str, By, str, str]
) -> Asked:
    """What the user may see of it; raises Refused."""
    last = last or datetime.now(UTC).date()
    if not EARLIEST <= last <= LATEST:
        raise Refused(422, f"give days from {EARLIEST} to {LATEST}")
    first = first or last - timedelta(days=DEFAULT_DAYS - 1)
    if last < first:
        raise Refused(422, "the last day is before the first; change one of them")
    if (last - first).days >= MOST_DAYS:
        raise Refused(422, f"at most {MOST_DAYS} days at a time; move one of the ends")
    if first < EARLIEST:
        raise Refused(422, f"give days from {EARLIEST} to {LATEST}")
    project, by, person, label = wanted
    whose = rights.project if not rights.sees_pool else project or None
    return Asked(first, last, whose, by, person, label)


async def summed(
    grant_service: GrantService, asked: Asked
) -> tuple[dict[str, Sum], dict[int, Sum], int]:
    """By name; by stretch of time, in seconds since the epoch; and how long that is."""
    days = (asked.last - asked.first).days + 1
    by_hour = days <= MOST_DAYS_BY_HOUR and not asked.of_shares
    hours = 1 if by_hour else DAY_HOURS * -(-days // MOST_POINTS)
    by_name: defaultdict[str, Sum] = defaultdict(Sum)
    by_time: defaultdict[int, Sum] = defaultdict(Sum)

    def add(name: str, hour: int, record: UsageRecord | UsageShare) -> None:
        by_name[name].add(record)
        began = hour - (hour - asked.hours.start) % hours
        by_time[began * HOUR_SECONDS].add(record)

    if asked.of_shares:
        async for shares in _share_pieces(grant_service, asked):
            for share in shares:
                add(getattr(share, asked.by), share.day * DAY_HOURS, share)
    else:
        async for records in _pieces(grant_service, asked):
            for record in records:
                add(record.project, record.hour, record)
    return by_name, by_time, hours * HOUR_SECONDS


async def _pieces(grant_service: GrantService, asked: Asked) -> AsyncIterator[list[UsageRecord]]:
    hours = asked.hours
    now = int(datetime.now(UTC).timestamp() // HOUR_SECONDS)
    for first in range(hours.start, min(hours.stop, now + 1), PIECE_HOURS):
        last = min(first + PIECE_HOURS, hours.stop) - 1
        yield await used_between(grant_service, first, last, asked.project)
        await asyncio.sleep(0)


async def _share_pieces(
    grant_service: GrantService, asked: Asked
) -> AsyncIterator[list[UsageShare]]:
    first, last = asked.hours.start // DAY_HOURS, (asked.hours.stop - 1) // DAY_HOURS
    last = min(last, int(datetime.now(UTC).timestamp() // HOUR_SECONDS // DAY_HOURS))
    for begin in range(first, last + 1, PIECE_DAYS):
        end = min(begin + PIECE_DAYS - 1, last)
        found = await shared_between(grant_service, begin, end, asked.project)
        yield [share for share in found if asked.has(share)]
        await asyncio.sleep(0)


async def _share_lines(grant_service: GrantService, asked: Asked) -> AsyncIterator[str]:
    yield _csv([SHARES_CSV_HEADER])
    async for shares in _share_pieces(grant_service, asked):
        if shares:
            yield _csv([
                (
                    *(_harmless(name) for name in (s.project, s.person, s.label)),
                    datetime.fromtimestamp(s.day * DAY_HOURS * HOUR_SECONDS, UTC).isoformat(),
                    s.vgpu_seconds,
                    s.memory_mib_seconds,
                    s.compute_percent_seconds,
                    s.gpu_seconds,
                    s.gpu_wait_seconds,
                )
                for s in shares
            ])  # fmt: skip


async def _lines(grant_service: GrantService, asked: Asked) -> AsyncIterator[str]:
    yield _csv([CSV_HEADER])
    async for records in _pieces(grant_service, asked):
        if records:
            yield _csv([
                (
                    _harmless(r.project),
                    datetime.fromtimestamp(r.hour * HOUR_SECONDS, UTC).isoformat(),
                    r.vgpu_seconds,
                    r.memory_mib_seconds,
                    r.compute_percent_seconds,
                    r.gpu_seconds,
                    r.gpu_wait_seconds,
                )
                for r in records
            ])  # fmt: skip


def _csv(rows: list[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _harmless(name: str) -> str:
    """A spreadsheet takes what begins so for a formula."""
    return f"'{name}" if name.startswith(tuple("=+-@\t\r")) else name


def _hour(day: date) -> int:
    began = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return int(began.timestamp() // HOUR_SECONDS)
