# SPDX-License-Identifier: Apache-2.0
"""REST handlers of reservations: what is kept for an owner, used or not.

Mounted by controller.api.app. They decide nothing: every change is one step of the pool.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Operator, Viewer
from sluice.controller.api.carrying_out import carried_out, problem_of
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import (
    CHANGE_PROBLEMS,
    SHOW_PROBLEMS,
    not_found,
    problem_responses,
)
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Name, Size, Time, time_of
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.model import DEFAULT_PROJECT, OwnerKind, Reservation, ReservationState
from sluice.controller.pool.pool import Pool
from sluice.controller.pool.reservations.steps import Outcome
from sluice.controller.store.store import StoreError
from sluice.resources.vgpu_request import COMPUTE_PERCENT, I32, Sharing


class ReservationRequest(BaseModel):
    """Room that is to be one owner's: `count` vGPUs of one size. Zeros: the pool's defaults."""

    owner_kind: Literal["vm", "project", "label"]
    owner: Name = Field(description="the VM's UUID or name, the project, or the label")
    project: Name | None = Field(None, description="on whose account (default: default)")
    count: int = Field(1, ge=1, le=1024)
    memory_mib: Size = 0
    compute_percent: int = Field(0, ge=0, le=COMPUTE_PERCENT.high)
    priority: int = Field(0, ge=I32.low, le=I32.high)
    node: Name | None = Field(None, description="where it must be (default: anywhere)")
    sharing: Sharing = Field(
        Sharing.AUTO, description="how what draws on it shares GPUs; auto: as pool and server say"
    )
    wait: bool = Field(False, description="let it wait in the queue; else it is refused")
    origin: Name | None = Field(
        None, description="the adapter that keeps it, by which it finds its own again"
    )


class ReservationSize(BaseModel):
    """The sizes that are to change; zeros leave one as it is."""

    count: int = Field(0, ge=0, le=1024)
    memory_mib: Size = 0
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
    sharing: Sharing
    generation: int
    within: str = Field(description="the reservation that it is a part of; empty: none")


class ReservationList(Page):
    """Reservations, oldest first."""

    reservations: list[ReservationView]


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
        sharing=wanted.sharing,
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
        sharing=reservation.sharing,
        generation=reservation.generation,
        within=reservation.within,
    )


def _reservation_of(pool: Pool, name: str) -> Reservation:
    if (found := pool.reservations.get(name)) is None:
        raise not_found("reservation", name)
    return found


def reservation_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/reservations", tags=["reservations"])
    async def list_reservations(
        _: Viewer,
        state: Literal["waiting", "held", "ended", "live", "all"] = "live",
        origin: Annotated[str | None, Query(description="only this adapter's")] = None,
        owner: Annotated[str | None, Query(description="only this owner's")] = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> ReservationList:
        """Reservations; those that have not ended unless told otherwise."""
        wanted = (
            r
            for r in pool.reservations.values()
            if origin in (None, r.origin)
            and owner in (None, r.owner)
            and (
                state in ("all", r.state.value)
                or (state == "live" and r.state is not ReservationState.ENDED)
            )
        )
        shown, marker = page(wanted, lambda r: (r.created, r.id), limit, marker)
        return ReservationList(
            reservations=[reservation_view(pool, r) for r in shown], next_marker=marker
        )

    @routes.get("/reservations/{name}", tags=["reservations"], responses=SHOW_PROBLEMS)
    async def show_reservation(name: str, _: Viewer, response: Response) -> ReservationView:
        """One reservation, ended ones too while they are remembered."""
        reservation = _reservation_of(pool, name)
        set_etag(response, reservation.generation)
        return reservation_view(pool, reservation)

    _add_changing(routes, grant_service)
    return routes


def _add_changing(routes: APIRouter, grant_service: GrantService) -> None:
    """Those of operators."""
    pool = grant_service.pool

    @routes.post(
        "/reservations",
        tags=["reservations"],
        status_code=201,
        responses=problem_responses(409),
    )
    async def create_reservation(body: ReservationRequest, _: Operator) -> ReservationView:
        """Holds room for an owner, or lets it wait for room."""
        refuse_in_trouble(grant_service)
        reservation = new_reservation(body)
        outcomes: list[Outcome] = []

        def decide() -> Decisions:
            outcome, decisions = pool.reserving.reserve(reservation, wait=body.wait)
            outcomes.append(outcome)
            return decisions

        await carried_out(grant_service, decide)
        if not isinstance(outcomes[0], Reservation):
            raise problem_of(outcomes[0])
        return reservation_view(pool, reservation)

    @routes.patch("/reservations/{name}", tags=["reservations"], responses=CHANGE_PROBLEMS)
    async def resize_reservation(
        name: str, body: ReservationSize, _: Operator, if_match: IfMatch = None
    ) -> ReservationView:
        """Changes its size while it is in use, or says why that cannot be."""
        reservation = _reservation_of(pool, name)
        check_generation(if_match, "reservation", name, reservation.generation)
        await carried_out(
            grant_service,
            lambda: pool.reserving.resize_reservation(
                name, body.count, body.memory_mib, body.compute_percent
            ),
        )
        return reservation_view(pool, reservation)

    @routes.delete("/reservations/{name}", tags=["reservations"], responses=CHANGE_PROBLEMS)
    async def delete_reservation(
        name: str, _: Operator, if_match: IfMatch = None
    ) -> ReservationView:
        """Gives its room back to the pool; what draws on it goes on."""
        reservation = _reservation_of(pool, name)
        check_generation(if_match, "reservation", name, reservation.generation)
        reason = "deleted by the operator"
        await carried_out(grant_service, lambda: pool.reserving.end_reservation(name, reason))
        return reservation_view(pool, reservation)
