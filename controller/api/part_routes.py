# SPDX-License-Identifier: Apache-2.0
"""REST handlers of reservations' parts: what a platform keeps of its room for one of its own.

Mounted by controller.api.app. An operator may call them, and whoever has a token with the label
that the reservation is for; that one makes parts on the account of its own project, or of one below
it (`cluster.team` below `cluster`), and of no other.
"""

from __future__ import annotations

import secrets
import time

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import OperatorOrTenant
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.problems import (
    CHANGE_PROBLEMS,
    SHOW_PROBLEMS,
    Problem,
    not_found,
    problem_responses,
)
from sluice.controller.api.reservation_routes import (
    ReservationView,
    refuse_in_trouble,
    reservation_view,
)
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Name
from sluice.controller.auth.access import Caller
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.model import OwnerKind, Reservation
from sluice.controller.pool.pool import Pool
from sluice.controller.pool.reservations.parts import Place
from sluice.resources.problem_types import ProblemType
from sluice.resources.vgpu_request import COMPUTE_PERCENT, I32

MOST_PLACES = 64


class PartPlace(BaseModel):
    """A vGPU of exactly this size on exactly this GPU."""

    gpu: str = Field(min_length=1, max_length=255, description="node:uuid, as the slots have it")
    memory_mib: int = Field(ge=1, le=I32.high)
    compute_percent: int = Field(ge=1, le=COMPUTE_PERCENT.high)


class PartRequest(BaseModel):
    """What is to be one owner's."""

    vgpus: list[PartPlace] = Field(min_length=1, max_length=MOST_PLACES)
    project: Name | None = Field(None, description="on whose account (default: the reservation's)")
    priority: int = Field(0, ge=I32.low, le=I32.high)


class PartList(BaseModel):
    """The parts that live."""

    reservation: ReservationView
    parts: list[ReservationView]


def _whole_of(pool: Pool, name: str, caller: Caller) -> Reservation:
    whole = pool.reservations.get(name)
    is_own = whole is not None and (
        caller.is_operator
        or (whole.owner_kind is OwnerKind.LABEL and caller.label and caller.label == whole.owner)
    )
    # another's is as good as none
    if whole is None or not is_own:
        raise not_found("reservation", name)
    return whole


def _is_own(pool: Pool, part: Reservation, caller: Caller) -> bool:
    """Whether the caller may give it back; of one that outlived its whole the project decides."""
    if part.within:
        whole = pool.reservations[part.within]
        return caller.is_operator or bool(caller.label and caller.label == whole.owner)
    own = caller.project
    return caller.is_operator or (own is not None and part.project.startswith(f"{own}."))


def _project(asked: PartRequest, whole: Reservation, caller: Caller) -> str:
    project = asked.project or whole.project
    own = caller.project
    if caller.is_operator or own is None or project == own or project.startswith(f"{own}."):
        return project
    raise Problem(
        403,
        ProblemType.NOT_ALLOWED,
        f"project {project} is not the token's: name {own}, or one below it such as {own}.team",
    )


def part_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/reservations/{name}/parts", tags=["reservations"], responses=SHOW_PROBLEMS)
    async def list_parts(name: str, caller: OperatorOrTenant) -> PartList:
        """A reservation and the parts that live of it."""
        whole = _whole_of(pool, name, caller)
        parts = pool.parts.of(whole)
        return PartList(
            reservation=reservation_view(pool, whole),
            parts=[reservation_view(pool, part) for part in parts],
        )

    @routes.put(
        "/reservations/{name}/parts/{owner}",
        tags=["reservations"],
        responses=problem_responses(403, 404, 409),
    )
    async def keep_part(
        name: str, owner: Name, body: PartRequest, caller: OperatorOrTenant
    ) -> ReservationView:
        """Keeps a part for a label; the same request again has the same answer."""
        refuse_in_trouble(grant_service)
        whole = _whole_of(pool, name, caller)
        places = [
            Place(gpu_key(pool.gpus, each.gpu), each.memory_mib, each.compute_percent)
            for each in body.vgpus
        ]
        part = Reservation(
            id=secrets.token_hex(8),
            owner_kind=OwnerKind.LABEL,
            owner=owner,
            project=_project(body, whole, caller),
            count=len(places),
            memory_mib=0,
            compute_percent=0,
            priority=body.priority,
            node="",
            created=time.time(),
            origin=whole.origin,
            sharing=whole.sharing,
            within=whole.id,
        )
        kept = part

        def decide() -> Decisions:
            nonlocal kept
            kept, decisions = pool.parts.keep(part, places)
            return decisions

        await carried_out(grant_service, decide)
        return reservation_view(pool, kept)

    @routes.delete(
        "/reservations/{name}/parts/{owner}", tags=["reservations"], responses=CHANGE_PROBLEMS
    )
    async def give_part_back(name: str, owner: Name, caller: OperatorOrTenant) -> ReservationView:
        """Gives a part back to its reservation; what runs on it ends."""
        whole = _whole_of(pool, name, caller)
        part = pool.parts.named(whole, owner)
        if part is None:
            raise not_found("part", owner)
        why = f"{owner} gave its part of reservation {whole.id} back"
        await carried_out(grant_service, lambda: pool.parts.give_back(part.id, why))
        return reservation_view(pool, part)

    @routes.delete("/parts/{owner}", tags=["reservations"], responses=CHANGE_PROBLEMS)
    async def give_any_part_back(owner: Name, caller: OperatorOrTenant) -> ReservationView:
        """The same for whoever does not know which reservation it is of, or outlived."""
        part = pool.parts.anywhere(owner)
        if part is None or not _is_own(pool, part, caller):
            raise not_found("part", owner)
        why = f"{owner} gave its part back"
        await carried_out(grant_service, lambda: pool.parts.give_back(part.id, why))
        return reservation_view(pool, part)

    return routes
