# SPDX-License-Identifier: Apache-2.0
"""REST handlers of usage: what projects held times how long and used of GPUs, as JSON and as CSV.

Mounted by controller.api.app. Stored hours and what has been used since are answered as one.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from pydantic import AwareDatetime, BaseModel, Field

from sluice.controller.api.authorisation import ViewerOrTenant
from sluice.controller.api.schemas import Name, Time, time_of
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import UsageRecord
from sluice.resources.vgpu_request import I32

HOUR_SECONDS = 3600
Begin = Annotated[AwareDatetime | None, Query(alias="from", description="the first hour")]
End = Annotated[AwareDatetime | None, Query(alias="to", description="the last hour")]


class CsvResponse(PlainTextResponse):
    """A table for spreadsheets."""

    media_type = "text/csv"


class UsageView(BaseModel):
    """What a project held in one hour, times how long."""

    project: str
    hour: Time
    vgpu_seconds: float
    memory_mib_seconds: float
    compute_percent_seconds: float
    gpu_seconds: float = Field(description="of GPUs' time that its vGPUs used, as measured")
    gpu_wait_seconds: float = Field(
        description="that their work waited for turns, summed over its vGPUs"
    )


class UsageList(BaseModel):
    """Usage by hour, then by project."""

    usage: list[UsageView]


async def _used(
    grant_service: GrantService,
    caller_project: str | None,
    begin: datetime | None,
    end: datetime | None,
    project: str | None,
) -> list[UsageRecord]:
    first = int(begin.timestamp() // HOUR_SECONDS) if begin else 0
    last = int(end.timestamp() // HOUR_SECONDS) if end else I32.high
    whose = caller_project if caller_project is not None else project
    return await used_between(grant_service, first, last, whose)


async def used_between(
    grant_service: GrantService, first: int, last: int, whose: str | None
) -> list[UsageRecord]:
    """What a project (None: each) used in these hours since the epoch, by hour, then project."""
    stored = await grant_service.store.usage(first, last, whose)
    records = {(r.hour, r.project): r for r in stored}
    for record in grant_service.pool.used_up_to_now():
        if first <= record.hour <= last and whose in (None, record.project):
            records[record.hour, record.project] = record
    return [records[key] for key in sorted(records)]


def usage_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()

    @routes.get("/usage", tags=["usage"])
    async def show_usage(
        caller: ViewerOrTenant, begin: Begin = None, end: End = None, project: Name | None = None
    ) -> UsageList:
        """What projects held times how long and had of GPUs, by the hour, up to now."""
        records = await _used(grant_service, caller.project, begin, end, project)
        return UsageList(
            usage=[
                UsageView(
                    project=r.project,
                    hour=time_of(r.hour * HOUR_SECONDS),
                    vgpu_seconds=r.vgpu_seconds,
                    memory_mib_seconds=r.memory_mib_seconds,
                    compute_percent_seconds=r.compute_percent_seconds,
                    gpu_seconds=r.gpu_seconds,
                    gpu_wait_seconds=r.gpu_wait_seconds,
                )
                for r in records
            ]
        )

    @routes.get("/usage.csv", tags=["usage"], response_class=CsvResponse)
    async def export_usage(
        caller: ViewerOrTenant, begin: Begin = None, end: End = None, project: Name | None = None
    ) -> CsvResponse:
        """The same as comma-separated values."""
        text = io.StringIO()
        rows = csv.writer(text)
        rows.writerow(list(UsageView.model_fields))
        for r in await _used(grant_service, caller.project, begin, end, project):
            hour = time_of(r.hour * HOUR_SECONDS).isoformat()
            held = (r.vgpu_seconds, r.memory_mib_seconds, r.compute_percent_seconds)
            rows.writerow([r.project, hour, *held, r.gpu_seconds, r.gpu_wait_seconds])
        return CsvResponse(text.getvalue())

    return routes
