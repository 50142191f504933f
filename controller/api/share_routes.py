# SPDX-License-Identifier: Apache-2.0
"""REST handlers for who may have how much: reservations, quotas, usage, and who waits.

Mounted by controller.api.app. They decide nothing: every change is one step of the pool.
"""

from __future__ import annotations

import csv
import io
import secrets
import time
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import AwareDatetime, BaseModel, Field

from sluice.controller.api.authorisation import Operator, Viewer, ViewerOrTenant
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.operations import carried_out
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import ProblemDocument, not_found
from sluice.controller.api.schemas import Name, Time, time_of
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    OwnerKind,
    Quota,
    Reservation,
    ReservationState,
    UsageRecord,
)
from sluice.controller.pool.pool import Pool
from sluice.controller.store.store import StoreError
from sluice.resources.vgpu_request import COMPUTE_PERCENT, I32

HOUR_SECONDS = 3600

_404: dict[int | str, dict[str, Any]] = {404: {"model": ProblemDocument}}
_CHANGED: dict[int | str, dict[str, Any]] = {
    **_404,
    409: {"model": ProblemDocument},
    412: {"model": ProblemDocument},
}

Begin = Annotated[AwareDatetime | None, Query(alias="from", description="the first hour")]
End = Annotated[AwareDatetime | None, Query(alias="to", description="the last hour")]
Mib = Annotated[int, Field(ge=0, le=I32.high)]
Count = Annotated[int, Field(ge=0, le=100_000)]


class CsvResponse(PlainTextResponse):
    """A table for spreadsheets."""

    media_type = "text/csv"


class ReservationRequest(BaseModel):
    """Room that is to be one owner's: `count` vGPUs of one size. Zeros: the pool's defaults."""

    owner_kind: Literal["vm", "project", "label"]
    owner: Name = Field(description="the VM's UUID or name, the project, or the label")
    project: Name | None = Field(None, description="on whose account (default: default)")
    count: int = Field(1, ge=1, le=1024)
    memory_mib: Mib = 0
    compute_percent: int = Field(0, ge=0, le=COMPUTE_PERCENT.high)
    priority: int = Field(0, ge=I32.low, le=I32.high)
    node: Name | None = Field(None, description="where it must be (default: anywhere)")
    wait: bool = Field(False, description="let it wait in the queue; else it is refused")
    origin: Name | None = Field(
        None, description="the adapter that keeps it, by which it finds its own again"
    )


class ReservationSize(BaseModel):
    """The sizes that are to change; zeros leave one as it is."""

    count: int = Field(0, ge=0, le=1024)
    memory_mib: Mib = 0
    compute_percent: int = Field(0, ge=0, le=COMPUTE_PERCENT.high)


class SlotView(BaseModel):
    """A vGPU that is held."""

    gpu: str
    memory_mib: int
    compute_percent: int


class ReservationView(BaseModel):
    """A reservation and what is drawn of it."""

    id: str
    state: Literal["waiting", "held", "ended"]
    owner_kind: Literal["vm", "project", "label"]
    owner: str
    project: str
    count: int
    memory_mib: int
    compute_percent: int
    priority: int
    node: str
    slots: list[SlotView]
    drawn_mib: int
    grants: list[str] = Field(description="what draws on it")
    created: Time
    ended: Time | None
    reason: str
    origin: str
    generation: int


class ReservationList(Page):
    """Reservations, oldest first."""

    reservations: list[ReservationView]


class QuotaRequest(BaseModel):
    """The most that a project may hold at a time; 0 is no limit."""

    vgpus: Count = 0
    memory_mib: Mib = 0
    compute_percent: Mib = 0
    may_preempt: bool = False
    max_priority: int | None = Field(
        None,
        ge=I32.low,
        le=I32.high,
        description="the highest that its requests may have; null: any, and 0 for tenants' tokens",
    )


class QuotaView(QuotaRequest):
    """A project's quota, and what it holds now."""

    project: str
    held_vgpus: int
    held_mib: int
    held_percent: int
    generation: int = Field(description="0: it has no quota")


class QuotaList(BaseModel):
    """Every project that has a quota or holds something."""

    quotas: list[QuotaView]


class UsageView(BaseModel):
    """What a project held in one hour, times how long."""

    project: str
    hour: Time
    vgpu_seconds: float
    memory_mib_seconds: float
    compute_percent_seconds: float


class UsageList(BaseModel):
    """Usage by hour, then by project."""

    usage: list[UsageView]


class WaitingView(BaseModel):
    """A request that waits; position 1 is next."""

    position: int
    request_id: str
    project: str
    priority: int
    vgpu_count: int
    memory_mib: int
    compute_percent: int
    node: str
    program: str
    reservation: str
    line: str = Field(description="what its client is told")


class WaitingList(BaseModel):
    """The queue, the next first."""

    waiting: list[WaitingView]
    total: int


def refuse_in_trouble(grant_service: GrantService) -> None:
    """Raises StoreError rather than that there is no room, which nobody looks for then."""
    if grant_service.trouble:
        raise StoreError(f"nothing is reserved for now: {grant_service.trouble}")


def new_reservation(wanted: ReservationRequest) -> Reservation:
    """The record of what is asked for, as it begins."""
    return Reservation(
        id=secrets.token_hex(8),
        owner_kind=OwnerKind(wanted.owner_kind),
        owner=wanted.owner,
        project=wanted.project or DEFAULT_PROJECT,
        count=wanted.count,
        memory_mib=wanted.memory_mib,
        compute_percent=wanted.compute_percent,
        priority=wanted.priority,
        node=wanted.node or "",
        created=time.time(),
        origin=wanted.origin or "",
    )


def reservation_view(pool: Pool, reservation: Reservation) -> ReservationView:
    """A reservation as JSON."""
    grants = pool.grants_of_reservation(reservation)
    return ReservationView(
        id=reservation.id,
        state=reservation.state.value,
        owner_kind=reservation.owner_kind.value,
        owner=reservation.owner,
        project=reservation.project,
        count=reservation.count,
        memory_mib=reservation.memory_mib,
        compute_percent=reservation.compute_percent,
        priority=reservation.priority,
        node=reservation.node,
        slots=[
            SlotView(gpu=str(s.key), memory_mib=s.memory_mib, compute_percent=s.compute_percent)
            for s in reservation.slots
        ],
        drawn_mib=sum(v.memory_mib + v.overhead_mib for g in grants for v in g.vgpus),
        grants=[grant.id for grant in grants],
        created=time_of(reservation.created),
        ended=time_of(reservation.ended) if reservation.ended is not None else None,
        reason=reservation.reason,
        origin=reservation.origin,
        generation=reservation.generation,
    )


def share_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()
    pool = grant_service.pool

    def reservation_of(name: str) -> Reservation:
        if (found := pool.reservations.get(name)) is None:
            raise not_found("reservation", name)
        return found

    def view(reservation: Reservation) -> ReservationView:
        return reservation_view(pool, reservation)

    def quota_view(project: str) -> QuotaView:
        limit = pool.quotas.limits.get(project) or Quota(project, generation=0)
        held = pool.quotas.held(project)
        return QuotaView(
            project=project,
            vgpus=limit.vgpus,
            memory_mib=limit.memory_mib,
            compute_percent=limit.compute_percent,
            may_preempt=limit.may_preempt,
            max_priority=limit.max_priority,
            held_vgpus=held.vgpus,
            held_mib=held.memory_mib,
            held_percent=held.compute_percent,
            generation=limit.generation,
        )

    @routes.get("/reservations", tags=["reservations"])
    async def list_reservations(
        _: Viewer,
        state: Literal["waiting", "held", "ended", "live", "all"] = "live",
        origin: Annotated[str | None, Query(description="only this adapter's")] = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> ReservationList:
        """Reservations; those that have not ended unless told otherwise."""
        wanted = (
            r
            for r in pool.reservations.values()
            if origin in (None, r.origin)
            and (
                state in ("all", r.state.value)
                or (state == "live" and r.state is not ReservationState.ENDED)
            )
        )
        shown, marker = page(wanted, lambda r: (r.created, r.id), limit, marker)
        return ReservationList(reservations=[view(r) for r in shown], next_marker=marker)

    @routes.post(
        "/reservations",
        tags=["reservations"],
        status_code=201,
        responses={409: {"model": ProblemDocument}},
    )
    async def create_reservation(body: ReservationRequest, _: Operator) -> ReservationView:
        """Holds room for an owner, or lets it wait for room."""
        refuse_in_trouble(grant_service)
        reservation = new_reservation(body)
        await carried_out(
            grant_service, lambda: pool.reserving.reserve(reservation, wait=body.wait)
        )
        return view(reservation)

    @routes.get("/reservations/{name}", tags=["reservations"], responses=_404)
    async def show_reservation(name: str, _: Viewer, response: Response) -> ReservationView:
        """One reservation, ended ones too while they are remembered."""
        reservation = reservation_of(name)
        set_etag(response, reservation.generation)
        return view(reservation)

    @routes.patch("/reservations/{name}", tags=["reservations"], responses=_CHANGED)
    async def resize_reservation(
        name: str, body: ReservationSize, _: Operator, if_match: IfMatch = None
    ) -> ReservationView:
        """Changes its size while it is in use, or says why that cannot be."""
        reservation = reservation_of(name)
        check_generation(if_match, "reservation", name, reservation.generation)
        await carried_out(
            grant_service,
            lambda: pool.reserving.resize_reservation(
                name, body.count, body.memory_mib, body.compute_percent
            ),
        )
        return view(reservation)

    @routes.delete("/reservations/{name}", tags=["reservations"], responses=_CHANGED)
    async def delete_reservation(
        name: str, _: Operator, if_match: IfMatch = None
    ) -> ReservationView:
        """Gives its room back to the pool; what draws on it goes on."""
        reservation = reservation_of(name)
        check_generation(if_match, "reservation", name, reservation.generation)
        reason = "deleted by the operator"
        await carried_out(grant_service, lambda: pool.reserving.end_reservation(name, reason))
        return view(reservation)

    @routes.get("/quotas", tags=["quotas"])
    async def list_quotas(_: Viewer) -> QuotaList:
        """Every project that has a quota or holds something."""
        return QuotaList(quotas=[quota_view(project) for project in pool.quotas.projects()])

    @routes.get("/quotas/{project}", tags=["quotas"])
    async def show_quota(project: Name, _: Viewer, response: Response) -> QuotaView:
        """One project's quota, and what it holds."""
        shown = quota_view(project)
        set_etag(response, shown.generation)
        return shown

    @routes.put("/quotas/{project}", tags=["quotas"], responses=_CHANGED)
    async def set_quota(
        project: Name, body: QuotaRequest, _: Operator, if_match: IfMatch = None
    ) -> QuotaView:
        """Sets what a project may hold from now on; what it holds already stays."""
        check_generation(if_match, "quota", project, quota_view(project).generation)
        quota = Quota(
            project,
            body.vgpus,
            body.memory_mib,
            body.compute_percent,
            body.may_preempt,
            max_priority=body.max_priority,
        )
        await carried_out(grant_service, lambda: pool.limits.set_quota(quota))
        return quota_view(project)

    @routes.delete("/quotas/{project}", tags=["quotas"], responses=_CHANGED)
    async def remove_quota(project: Name, _: Operator) -> QuotaView:
        """The project may hold whatever there is."""
        await carried_out(grant_service, lambda: pool.limits.remove_quota(project))
        return quota_view(project)

    @routes.get("/queue", tags=["queue"])
    async def show_queue(_: Viewer, limit: Limit = DEFAULT_LIMIT) -> WaitingList:
        """Who waits, the next first."""
        views = []
        for position, entry in enumerate(pool.queue, 1):
            if position > limit:
                break
            request = entry.request
            views.append(
                WaitingView(
                    position=position,
                    request_id=request.request_id,
                    project=request.project,
                    priority=request.priority,
                    vgpu_count=request.vgpu_count,
                    memory_mib=request.memory_mib,
                    compute_percent=request.compute_percent,
                    node=request.node,
                    program=request.program,
                    reservation=request.reservation,
                    line=pool.requests.waiting(request).line,
                )
            )
        return WaitingList(waiting=views, total=len(pool.queue))

    async def used(
        caller_project: str | None,
        begin: datetime | None,
        end: datetime | None,
        project: str | None,
    ) -> list[UsageRecord]:
        first = int(begin.timestamp() // HOUR_SECONDS) if begin else 0
        last = int(end.timestamp() // HOUR_SECONDS) if end else I32.high
        whose = caller_project if caller_project is not None else project
        stored = await grant_service.store.usage(first, last, whose)
        records = {(r.hour, r.project): r for r in stored}
        for record in pool.used_up_to_now():
            if first <= record.hour <= last and whose in (None, record.project):
                records[record.hour, record.project] = record
        return [records[key] for key in sorted(records)]

    @routes.get("/usage", tags=["usage"])
    async def show_usage(
        caller: ViewerOrTenant, begin: Begin = None, end: End = None, project: Name | None = None
    ) -> UsageList:
        """What projects held times how long, by the hour, up to now."""
        records = await used(caller.project, begin, end, project)
        return UsageList(
            usage=[
                UsageView(
                    project=r.project,
                    hour=time_of(r.hour * HOUR_SECONDS),
                    vgpu_seconds=r.vgpu_seconds,
                    memory_mib_seconds=r.memory_mib_seconds,
                    compute_percent_seconds=r.compute_percent_seconds,
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
        for r in await used(caller.project, begin, end, project):
            hour = time_of(r.hour * HOUR_SECONDS).isoformat()
            rows.writerow(
                [r.project, hour, r.vgpu_seconds, r.memory_mib_seconds, r.compute_percent_seconds]
            )
        return CsvResponse(text.getvalue())

    return routes
