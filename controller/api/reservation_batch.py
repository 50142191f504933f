# SPDX-License-Identifier: Apache-2.0
"""REST handler for many reservations at once: made, resized and ended, each with its own outcome.

Mounted by controller.api.app. For adapters that bring a whole platform in line: a thousand calls
are a thousand times authentication, audit and two writes of the store. The items of one call are
one step of the pool, stored in one transaction together with a line of the audit trail for each.
What one item is refused for, or has wrong, is told of that item, by its number, and stops no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field, WrapValidator

from sluice.controller.api.authorisation import Operator
from sluice.controller.api.batches import (
    AUDIT_KIND,
    MOST_ITEMS,
    Malformed,
    audit_line,
    or_malformed,
)
from sluice.controller.api.carrying_out import carried_out, problem_of
from sluice.controller.api.problems import Problem, ProblemDocument, document_of
from sluice.controller.api.reservation_routes import (
    ReservationRequest,
    ReservationSize,
    ReservationView,
    new_reservation,
    refuse_in_trouble,
    reservation_view,
)
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Name
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.model import Reservation
from sluice.controller.pool.reservations.steps import Create, End, Outcome, ReservationStep, Resize

PATH = "/v1/reservations:batch"
ENDED = "deleted by the operator"

Seen = Annotated[
    int | None, Field(ge=0, description="the generation that was read: change that, or nothing")
]


class CreateItem(ReservationRequest):
    """Hold room for an owner, as POST /v1/reservations does."""

    do: Literal["create"]


class ResizeItem(ReservationSize):
    """Change a reservation's size, as PATCH /v1/reservations/{name} does."""

    do: Literal["resize"]
    id: Name
    generation: Seen = None


class EndItem(BaseModel):
    """Give a reservation's room back, as DELETE /v1/reservations/{name} does."""

    do: Literal["end"]
    id: Name
    generation: Seen = None


Item = CreateItem | ResizeItem | EndItem
# what one has wrong is that one's outcome, so it must not fail the whole
ItemApart = Annotated[Annotated[Item, Field(discriminator="do")], WrapValidator(or_malformed)]


class BatchRequest(BaseModel):
    """What is to be done, in this order."""

    items: list[ItemApart] = Field(min_length=1, max_length=MOST_ITEMS)


class BatchOutcome(BaseModel):
    """What one item came to: a reservation as it is now, or a problem."""

    status: int = Field(description="as the same request alone would be answered")
    reservation: ReservationView | None
    problem: ProblemDocument | None


class BatchAnswer(BaseModel):
    """The outcomes, in the order of the items."""

    outcomes: list[BatchOutcome]


def reservation_batch_routes(grant_service: GrantService) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.post("/reservations:batch", tags=["reservations"])
    async def change_reservations(body: BatchRequest, caller: Operator) -> BatchAnswer:
        """Makes, resizes and ends many; each has an outcome of its own, and none stops another."""
        items: Sequence[Item | Malformed] = body.items
        steps = [_step(item) for item in items if not isinstance(item, Malformed)]
        if any(isinstance(step, Create) for step in steps):
            refuse_in_trouble(grant_service)
        found: list[Reservation | Problem] = []

        def decide() -> Decisions:
            outcomes, decisions = pool.reserving.reservation_steps(steps)
            of_steps = iter(outcomes)
            for place, item in enumerate(items):
                if isinstance(item, Malformed):
                    found.append(item.problem(place))
                else:
                    found.append(_told(next(of_steps)))
                line = audit_line(PATH, place, _what(item, found[-1]), caller)
                pool.note(AUDIT_KIND, caller.id, line)
            return decisions

        await carried_out(grant_service, decide)
        return BatchAnswer(
            outcomes=[
                BatchOutcome(status=each.status, reservation=None, problem=document_of(PATH, each))
                if isinstance(each, Problem)
                else BatchOutcome(
                    status=201 if isinstance(item, CreateItem) else 200,
                    reservation=reservation_view(grant_service.pool, each),
                    problem=None,
                )
                for item, each in zip(items, found, strict=True)
            ]
        )

    return routes


def _step(item: Item) -> ReservationStep:
    if isinstance(item, CreateItem):
        return Create(new_reservation(item), item.wait)
    if isinstance(item, ResizeItem):
        sizes = (item.count, item.memory_mib, item.compute_percent)
        return Resize(item.id, *sizes, generation=item.generation)
    return End(item.id, ENDED, item.generation)


def _told(outcome: Outcome) -> Reservation | Problem:
    return outcome if isinstance(outcome, Reservation) else problem_of(outcome)


def _what(item: Item | Malformed, outcome: Reservation | Problem) -> str:
    """A line of the audit trail for an item."""
    status = outcome.status if isinstance(outcome, Problem) else 200
    if isinstance(item, Malformed):
        return str(status)
    if isinstance(item, CreateItem):
        made = "" if isinstance(outcome, Problem) else f" {outcome.id}"
        return f"create{made} for {item.owner_kind} {item.owner}: {201 if made else status}"
    return f"{item.do} {item.id}: {status}"
