# SPDX-License-Identifier: Apache-2.0
"""REST handler for many enrolments at once: made and withdrawn, each with its own outcome.

Mounted by controller.api.app. For adapters whose VMs start or stop by the hundred. Every item is
done as the same request alone would be, and all share the store's next write. Withdrawals come to
their end before anything is made, wherever they stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, WrapValidator

from sluice.controller.api.authorisation import Operator
from sluice.controller.api.batches import (
    AUDIT_KIND,
    MOST_ITEMS,
    Malformed,
    audit_line,
    or_malformed,
)
from sluice.controller.api.enrolment_routes import (
    EnrolmentMade,
    EnrolmentRequest,
    EnrolmentView,
    enrolment_view,
    made_view,
    make_enrolment,
    withdraw_enrolment_of,
)
from sluice.controller.api.problems import (
    Problem,
    ProblemDocument,
    document_of,
    not_found,
    store_problem,
)
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Name
from sluice.controller.auth.access import Caller
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.pool.model import Event
from sluice.controller.pool.pool import Pool
from sluice.controller.store.store import StoreError

PATH = "/v1/enrolments:batch"


class CreateItem(EnrolmentRequest):
    """Make one, as POST /v1/enrolments does."""

    do: Literal["create"]


class WithdrawItem(BaseModel):
    """Withdraw one, as DELETE /v1/enrolments/{enrolment_id} does."""

    do: Literal["withdraw"]
    id: Name


Item = CreateItem | WithdrawItem
ItemApart = Annotated[Annotated[Item, Field(discriminator="do")], WrapValidator(or_malformed)]


class EnrolmentBatchRequest(BaseModel):
    """What is to be done."""

    items: list[ItemApart] = Field(min_length=1, max_length=MOST_ITEMS)


class EnrolmentOutcome(BaseModel):
    """What one item came to: an enrolment, a new one with its secret, or a problem."""

    status: int = Field(description="as the same request alone would be answered")
    enrolment: EnrolmentMade | EnrolmentView | None
    problem: ProblemDocument | None


class EnrolmentBatchAnswer(BaseModel):
    """The outcomes, in the order of the items."""

    outcomes: list[EnrolmentOutcome]


def enrolment_batch_routes(book: EnrolmentBook, pool: Pool, now: Callable[[], float]) -> APIRouter:
    """The handler, bound to one pool's enrolments; now() is in seconds since the epoch."""
    routes = APIRouter(prefix=REST)

    async def done(item: Item, caller: Caller) -> EnrolmentView:
        if isinstance(item, CreateItem):
            return made_view(*await make_enrolment(book, pool, item, caller), now())
        if (found := book.enrolments.get(item.id)) is None:
            raise not_found("enrolment", item.id)
        return enrolment_view(await withdraw_enrolment_of(book, found, caller), now())

    async def outcome(place: int, item: Item | Malformed, caller: Caller) -> EnrolmentOutcome:
        try:
            if isinstance(item, Malformed):
                raise item.problem(place)
            view = await done(item, caller)
        except StoreError as error:
            problem = store_problem(error)
        except Problem as refused:
            problem = refused
        else:
            status = 201 if isinstance(item, CreateItem) else 200
            return EnrolmentOutcome(status=status, enrolment=view, problem=None)
        document = document_of(PATH, problem)
        return EnrolmentOutcome(status=problem.status, enrolment=None, problem=document)

    @routes.post("/enrolments:batch", tags=["enrolments"])
    async def change_enrolments(
        body: EnrolmentBatchRequest, caller: Operator, response: Response
    ) -> EnrolmentBatchAnswer:
        """Makes and withdraws many; each has an outcome of its own, and none stops another."""
        items: Sequence[Item | Malformed] = body.items
        outcomes: dict[int, EnrolmentOutcome] = {}
        for kinds in ((WithdrawItem, Malformed), (CreateItem,)):
            places = [place for place, item in enumerate(items) if isinstance(item, kinds)]
            found = await asyncio.gather(*(outcome(p, items[p], caller) for p in places))
            outcomes |= zip(places, found, strict=True)
        await book.note(
            Event(now(), AUDIT_KIND, caller.id, audit_line(PATH, place, what, caller))
            for place, item in enumerate(items)
            for what in (_what(item, outcomes[place]),)
        )
        response.headers["Cache-Control"] = "no-store"
        return EnrolmentBatchAnswer(outcomes=[outcomes[place] for place in range(len(items))])

    return routes


def _what(item: Item | Malformed, outcome: EnrolmentOutcome) -> str:
    """A line of the audit trail for an item."""
    if isinstance(item, Malformed):
        return str(outcome.status)
    name = outcome.enrolment.id if outcome.enrolment else getattr(item, "id", "")
    return f"{item.do}{f' {name}' if name else ''}: {outcome.status}"
