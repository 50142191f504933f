# SPDX-License-Identifier: Apache-2.0
"""REST handlers for enrolments: made and withdrawn by operators, used once by a new machine.

Mounted by controller.api.app. The machine shows the enrolment's secret where others show a token
(`Authorization: Bearer sluice_enrol_…`), so the access middleware counts, checks and records it
like every other caller; the one thing that such a caller may do is `POST /v1/enrol`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, model_validator

from sluice.controller.api.authorisation import Operator, needs
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import SHOW_PROBLEMS, Problem, not_found, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Line, Name, Time, time_of
from sluice.controller.auth.access import ENROLMENT, Caller
from sluice.controller.auth.enrolments import Enrolment, EnrolmentBook, NotOpen
from sluice.controller.auth.tokens import Role
from sluice.controller.pool.model import OwnerKind, Reservation, ReservationState
from sluice.controller.pool.pool import Pool
from sluice.resources.problem_types import ProblemType

LONGEST_SECONDS = 86400
TEN_YEARS_SECONDS = 10 * 366 * 86400

StateName = Literal["open", "used", "expired", "withdrawn"]


class EnrolmentRequest(BaseModel):
    """The enrolment that is wanted, and what the token will be that it is exchanged for."""

    role: Literal["tenant", "node"] = "tenant"
    name: Line = Field("", description="for people: which machine")
    reservation: Name | None = Field(
        None, description="a tenant's: its project and its owner are the token's; over with it"
    )
    project: Name | None = Field(None, description="a tenant's (default: the reservation's)")
    vm: Name | None = Field(
        None, description="a tenant's: the UUID of the VM whose reservations it draws on"
    )
    node: Name | None = Field(None, description="a node's name; only an admin may")
    expires_seconds: int = Field(
        600, ge=10, le=LONGEST_SECONDS, description="how long the secret is good for"
    )
    token_expires_seconds: int | None = Field(
        None, ge=1, le=TEN_YEARS_SECONDS, description="and the token; null: until it is revoked"
    )

    @model_validator(mode="after")
    def _whose(self) -> EnrolmentRequest:
        if (self.role == "node") != (self.node is not None):
            raise ValueError("a node's enrolment has the node's name, and no other: give `node`")
        of_tenant = (self.reservation, self.project, self.vm)
        if self.role == "node" and any(each is not None for each in of_tenant):
            raise ValueError("a node's has no reservation, project or vm: leave them out")
        if self.role == "tenant" and self.reservation is None and self.project is None:
            raise ValueError("a tenant's is for a reservation or a project: give one")
        return self


class EnrolmentView(BaseModel):
    """An enrolment, without its secret."""

    id: str
    role: Literal["tenant", "node"]
    name: str
    project: str
    node: str
    vm: str
    label: str
    reservation: str
    state: StateName
    created: Time
    created_by: str
    expires: Time
    used: Time | None
    token_id: str = Field(description="of the token that it was exchanged for")
    generation: int


class EnrolmentMade(EnrolmentView):
    """A new enrolment."""

    secret: str = Field(description="shown this once")


class EnrolmentList(Page):
    """Enrolments, oldest first."""

    enrolments: list[EnrolmentView]


class Enrolled(BaseModel):
    """The machine's own token."""

    secret: str = Field(description="shown this once")
    token_id: str
    role: Literal["tenant", "node"]
    project: str
    node: str
    vm: str
    reservation: str
    expires: Time | None


@dataclass(frozen=True)
class _Whose:
    """Whose a tenant's token will be; empty: nobody's in particular."""

    project: str
    vm: str
    label: str = ""


def _whose_reservation(pool: Pool, reservation_id: str, said: _Whose) -> _Whose:
    """A reservation's project and owner; raises Problem where another was said, or it is over."""
    reservation = _live_reservation(pool, reservation_id)
    if reservation is None:
        raise Problem(
            409,
            ProblemType.RESERVATION_OVER,
            f"reservation {reservation_id} is not there or has ended; list them at "
            "/v1/reservations",
        )
    if said.project not in ("", reservation.project):
        raise Problem(
            422,
            ProblemType.PROJECT_OF_ANOTHER,
            f"project is {said.project}, and reservation {reservation.id} is of "
            f"{reservation.project}: leave `project` out",
        )
    whose = replace(said, project=reservation.project)
    if reservation.owner_kind is OwnerKind.LABEL:
        return replace(whose, label=reservation.owner)
    if reservation.owner_kind is not OwnerKind.VM:
        return whose
    if said.vm not in ("", reservation.owner):
        raise Problem(
            422,
            ProblemType.RESERVATION_OF_ANOTHER,
            f"vm is {said.vm}, and reservation {reservation.id} is of "
            f"{reservation.owner}: leave `vm` out",
        )
    return replace(whose, vm=reservation.owner)


async def make_enrolment(
    book: EnrolmentBook, pool: Pool, body: EnrolmentRequest, caller: Caller
) -> tuple[Enrolment, str]:
    """A new enrolment and its secret; raises Problem, StoreError."""
    role = Role(body.role)
    if role is Role.NODE and Role.ADMIN not in caller.roles:
        raise Problem(
            403,
            ProblemType.NOT_ALLOWED,
            f"a node's enrolment is for admin, as a node's token is, and {caller.id} is "
            f"{', '.join(sorted(caller.roles))}; use another token",
        )
    whose = _Whose(body.project or "", body.vm or "")
    if body.reservation is not None:
        whose = _whose_reservation(pool, body.reservation, whose)
    return await book.create(
        role,
        by=caller.id,
        seconds=body.expires_seconds,
        name=body.name,
        project=whose.project,
        node=body.node or "",
        vm=whose.vm,
        label=whose.label,
        reservation=body.reservation or "",
        token_seconds=body.token_expires_seconds,
    )


async def withdraw_enrolment_of(book: EnrolmentBook, found: Enrolment, caller: Caller) -> Enrolment:
    """The enrolment, withdrawn; raises Problem, StoreError."""
    if found.role is Role.NODE and Role.ADMIN not in caller.roles:
        raise Problem(403, ProblemType.NOT_ALLOWED, "a node's enrolment is withdrawn by an admin")
    return await book.withdraw(found.id, caller.id)


def made_view(enrolment: Enrolment, secret: str, now: float) -> EnrolmentMade:
    """A new enrolment as JSON."""
    return EnrolmentMade(**enrolment_view(enrolment, now).model_dump(), secret=secret)


def enrolment_routes(book: EnrolmentBook, pool: Pool, now: Callable[[], float]) -> APIRouter:
    """The handlers, bound to one pool's enrolments; now() is in seconds since the epoch."""
    routes = APIRouter(prefix=REST)
    _add_making(routes, book, pool, now)
    _add_reading(routes, book, now)
    _add_withdrawing(routes, book, now)
    _add_enrolling(routes, book, pool)
    return routes


def _add_making(
    routes: APIRouter, book: EnrolmentBook, pool: Pool, now: Callable[[], float]
) -> None:
    """New enrolments."""

    @routes.post(
        "/enrolments",
        tags=["enrolments"],
        status_code=201,
        responses=problem_responses(409, 422),
    )
    async def create_enrolment(
        body: EnrolmentRequest, caller: Operator, response: Response
    ) -> EnrolmentMade:
        """Makes a one-time secret for a new machine; it is in this answer and nowhere else."""
        enrolment, secret = await make_enrolment(book, pool, body, caller)
        set_etag(response, enrolment.generation)
        response.headers["Cache-Control"] = "no-store"
        return made_view(enrolment, secret, now())


def _add_reading(routes: APIRouter, book: EnrolmentBook, now: Callable[[], float]) -> None:
    """Enrolments, listed and shown."""

    @routes.get("/enrolments", tags=["enrolments"])
    async def list_enrolments(
        _: Operator,
        state: Literal["open", "used", "expired", "withdrawn", "live", "all"] = "live",
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> EnrolmentList:
        """Enrolments; open and used ones (`live`) unless told otherwise."""
        moment = now()

        def is_wanted(each: Enrolment) -> bool:
            found = each.state(moment)
            return state in ("all", found) or (state == "live" and found in ("open", "used"))

        wanted = filter(is_wanted, book.enrolments.values())
        shown, marker = page(wanted, lambda e: (e.created, e.id), limit, marker)
        return EnrolmentList(
            enrolments=[enrolment_view(e, moment) for e in shown], next_marker=marker
        )

    @routes.get("/enrolments/{enrolment_id}", tags=["enrolments"], responses=SHOW_PROBLEMS)
    async def show_enrolment(enrolment_id: str, _: Operator, response: Response) -> EnrolmentView:
        """One enrolment."""
        found = _enrolment_of(book, enrolment_id)
        set_etag(response, found.generation)
        return enrolment_view(found, now())


def _add_withdrawing(routes: APIRouter, book: EnrolmentBook, now: Callable[[], float]) -> None:
    """The end of enrolments, by an operator."""

    @routes.delete(
        "/enrolments/{enrolment_id}",
        tags=["enrolments"],
        responses=problem_responses(404, 412),
    )
    async def withdraw_enrolment(
        enrolment_id: str, caller: Operator, response: Response, if_match: IfMatch = None
    ) -> EnrolmentView:
        """Withdraws it: the secret is refused from now on, and its token is revoked."""
        found = _enrolment_of(book, enrolment_id)
        check_generation(if_match, "enrolment", enrolment_id, found.generation)
        found = await withdraw_enrolment_of(book, found, caller)
        set_etag(response, found.generation)
        return enrolment_view(found, now())


def _add_enrolling(routes: APIRouter, book: EnrolmentBook, pool: Pool) -> None:
    """What a new machine does with an enrolment."""

    @routes.post(
        "/enrol",
        tags=["enrolments"],
        status_code=201,
        responses=problem_responses((409, "it was used, or is over")),
    )
    async def enrol(caller: Annotated[Caller, needs(ENROLMENT)], response: Response) -> Enrolled:
        """Exchanges the enrolment whose secret is shown for a token of the machine's own, once."""
        enrolment = book.enrolments[caller.enrolment]
        if enrolment.reservation and _live_reservation(pool, enrolment.reservation) is None:
            raise Problem(
                409,
                ProblemType.RESERVATION_OVER,
                f"enrolment {enrolment.id} was for reservation {enrolment.reservation}, which has "
                "ended; ask for another",
            )
        try:
            token, secret = await book.use(enrolment.id)
        except NotOpen as error:
            raise Problem(409, ProblemType.ENROLMENT_OVER, f"{error}; ask for another") from None
        response.headers["Cache-Control"] = "no-store"
        return Enrolled(
            secret=secret,
            token_id=token.id,
            role=_role(enrolment),
            project=token.project,
            node=token.node,
            vm=token.vm,
            reservation=enrolment.reservation,
            expires=None if token.expires is None else time_of(token.expires),
        )


def _enrolment_of(book: EnrolmentBook, enrolment_id: str) -> Enrolment:
    if (found := book.enrolments.get(enrolment_id)) is None:
        raise not_found("enrolment", enrolment_id)
    return found


def _live_reservation(pool: Pool, reservation_id: str) -> Reservation | None:
    found = pool.reservations.get(reservation_id)
    return None if found is None or found.state is ReservationState.ENDED else found


def _role(enrolment: Enrolment) -> Literal["tenant", "node"]:
    return "node" if enrolment.role is Role.NODE else "tenant"


def enrolment_view(enrolment: Enrolment, now: float) -> EnrolmentView:
    """An enrolment as JSON; `now` in seconds since the epoch."""
    return EnrolmentView(
        id=enrolment.id,
        role=_role(enrolment),
        name=enrolment.name,
        project=enrolment.project,
        node=enrolment.node,
        vm=enrolment.vm,
        label=enrolment.label,
        reservation=enrolment.reservation,
        state=enrolment.state(now),
        created=time_of(enrolment.created),
        created_by=enrolment.created_by,
        expires=time_of(enrolment.expires),
        used=None if enrolment.used is None else time_of(enrolment.used),
        token_id=enrolment.token_id,
        generation=enrolment.generation,
    )
