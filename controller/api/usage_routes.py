# SPDX-License-Identifier: Apache-2.0
"""REST handlers of usage: what projects held times how long and used of GPUs, as JSON and as CSV.

Mounted by controller.api.app. Stored hours and days and what has been used since are answered as
one. Projects' usage is by the hour and exact; of it, what people and labels had is by the day (UTC)
and may lack a minute of a controller that was killed.
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
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Name, Time, time_of
from sluice.controller.auth.access import Caller
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.projects.shares import DAY_SECONDS
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
from sluice.resources.vgpu_request import I32

HOUR_SECONDS = 3600
Begin = Annotated[AwareDatetime | None, Query(alias="from", description="the first hour")]
End = Annotated[AwareDatetime | None, Query(alias="to", description="the last hour")]
FirstDay = Annotated[AwareDatetime | None, Query(alias="from", description="in the first day")]
LastDay = Annotated[AwareDatetime | None, Query(alias="to", description="in the last day")]
Of = Annotated[str | None, Query(max_length=100, description="this one's; empty: of none")]


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


class ShareView(BaseModel):
    """What a person held of a project under a label in one day, times how long."""

    project: str
    person: str = Field(description="who began it; empty: nobody in particular")
    label: str = Field(description="empty: none")
    day: Time = Field(description="when it began, UTC")
    vgpu_seconds: float
    memory_mib_seconds: float
    compute_percent_seconds: float
    gpu_seconds: float
    gpu_wait_seconds: float


class ShareList(BaseModel):
    """Usage by day, then by project, person and label."""

    shares: list[ShareView]


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


async def shared_between(
    grant_service: GrantService, first: int, last: int, whose: str | None
) -> list[UsageShare]:
    """The same by person and label, of these days since the epoch."""
    stored = await grant_service.store.shares(first, last, whose)
    shares = {(r.day, r.project, r.person, r.label): r for r in stored}
    for share in grant_service.pool.shared_up_to_now():
        if first <= share.day <= last and whose in (None, share.project):
            shares[share.day, share.project, share.person, share.label] = share
    return [shares[key] for key in sorted(shares)]


def usage_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)

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

    _add_shares(routes, grant_service)
    return routes


def _add_shares(routes: APIRouter, grant_service: GrantService) -> None:
    """By person and label."""

    async def found(
        caller: Caller,
        begin: datetime | None,
        end: datetime | None,
        asked: tuple[str | None, str | None, str | None],
    ) -> list[ShareView]:
        project, person, label = asked
        first = int(begin.timestamp() // DAY_SECONDS) if begin else 0
        last = int(end.timestamp() // DAY_SECONDS) if end else I32.high
        whose = caller.project if caller.project is not None else project
        return [
            ShareView(
                project=r.project,
                person=r.person,
                label=r.label,
                day=time_of(r.day * DAY_SECONDS),
                vgpu_seconds=r.vgpu_seconds,
                memory_mib_seconds=r.memory_mib_seconds,
                compute_percent_seconds=r.compute_percent_seconds,
                gpu_seconds=r.gpu_seconds,
                gpu_wait_seconds=r.gpu_wait_seconds,
            )
            for r in await shared_between(grant_service, first, last, whose)
            if person in (None, r.person) and label in (None, r.label)
        ]

    @routes.get("/usage/shares", tags=["usage"])
    async def show_shares(
        caller: ViewerOrTenant,
        begin: FirstDay = None,
        end: LastDay = None,
        project: Name | None = None,
        person: Of = None,
        label: Of = None,
    ) -> ShareList:
        """What people held of projects under labels, times how long, by the day, up to now."""
        return ShareList(shares=await found(caller, begin, end, (project, person, label)))

    @routes.get("/usage/shares.csv", tags=["usage"], response_class=CsvResponse)
    async def export_shares(
        caller: ViewerOrTenant,
        begin: FirstDay = None,
        end: LastDay = None,
        project: Name | None = None,
        person: Of = None,
        label: Of = None,
    ) -> CsvResponse:
        """The same as comma-separated values."""
        text = io.StringIO()
        rows = csv.writer(text)
        rows.writerow(list(ShareView.model_fields))
        for each in await found(caller, begin, end, (project, person, label)):
            values = {**each.model_dump(), "day": each.day.isoformat()}
            rows.writerow(list(values.values()))
        return CsvResponse(text.getvalue())
