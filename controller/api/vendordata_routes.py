# SPDX-License-Identifier: Apache-2.0
"""The REST handler that Nova calls for an instance's dynamic vendordata.

Mounted by controller.api.app. What it answers, the instance finds in its metadata: where the
controller is, and a one-time secret with which its guest runtime gets a token for the reservation
of its own. Nova asks several times for one instance, and whoever is in the instance reads the
answer: so the secret is good once and for minutes, and the same until it is used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from sluice.config.controller import OpenStackSection
from sluice.controller.api.authorisation import needs
from sluice.controller.api.problems import problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Time, time_of
from sluice.controller.auth.access import Caller
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.keystone import VENDORDATA
from sluice.controller.auth.tokens import Role
from sluice.controller.pool.model import OwnerKind, Reservation, ReservationState
from sluice.controller.pool.pool import Pool

LOOK_SECONDS = 0.05
#: A secret that is good for less than this is not handed out again.
LEAST_SECONDS = 60.0
MOST_REMEMBERED = 10_000
_UUID = r"^[0-9a-fA-F-]{32,36}$"


class VendordataRequest(BaseModel):
    """What Nova tells of an instance; the rest of it is passed over."""

    model_config = ConfigDict(extra="ignore")

    instance: str = Field(alias="instance-id", pattern=_UUID)
    project: str = Field(alias="project-id", pattern=_UUID)


class Vendordata(BaseModel):
    """What the instance is told."""

    reservation: str = Field(description="the instance's own; empty: it has none (yet)")
    controller: str = Field("", description="where its guest runtime enrols and asks for sessions")
    enrolment: str = Field("", description="a secret that is good once, at POST /v1/enrol")
    expires: Time | None = Field(None, description="until when the secret can be used")


@dataclass(frozen=True)
class _Handed:
    reservation: str
    enrolment: str
    secret: str


class _Instances:
    """What instances have been told, for a pool whose reservations are theirs."""

    def __init__(
        self,
        section: OpenStackSection,
        pool: Pool,
        book: EnrolmentBook,
        now: Callable[[], float],
    ) -> None:
        self._section = section
        self._pool = pool
        self._book = book
        self._now = now
        self._handed: dict[str, _Handed] = {}
        #: Instances that had no reservation when they were waited for: nobody waits for them again.
        self._without: dict[str, float] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def awaited(self, body: VendordataRequest) -> Reservation | None:
        """The reservation, which the adapter is making as Nova asks: a moment is waited for it."""
        found = self._reservation_of(body)
        waits = body.instance not in self._without
        deadline = time.monotonic() + self._section.reservation_wait_seconds
        while found is None and waits and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            found = self._reservation_of(body)
        if found is None and waits:
            if len(self._without) >= MOST_REMEMBERED:
                self._without.clear()
            self._without[body.instance] = deadline
        if found is not None:
            self._without.pop(body.instance, None)
        return found

    async def told(self, reservation: Reservation, caller: Caller) -> Vendordata:
        """What the reservation's instance is told; raises StoreError."""
        lock = self._turns.setdefault(reservation.owner, asyncio.Lock())
        try:
            async with lock:
                handed = self._known(reservation) or await self._made(reservation, caller)
        finally:
            if not lock.locked():
                self._turns.pop(reservation.owner, None)
        return Vendordata(
            reservation=reservation.id,
            controller=self._section.guest_address,
            enrolment=handed.secret,
            expires=time_of(self._book.enrolments[handed.enrolment].expires),
        )

    def _reservation_of(self, body: VendordataRequest) -> Reservation | None:
        project = body.project.replace("-", "").lower()
        for each in self._pool.reservations_of(OwnerKind.VM, body.instance.lower()):
            if (
                each.state is not ReservationState.ENDED
                and each.project.replace("-", "").lower() == project
            ):
                return each
        return None

    def _known(self, reservation: Reservation) -> _Handed | None:
        """The secret that the instance was told before, if it is good for a while yet."""
        known = self._handed.get(reservation.owner)
        if known is None or known.reservation != reservation.id:
            return None
        enrolment = self._book.enrolments.get(known.enrolment)
        if enrolment is None or enrolment.state(self._now()) != "open":
            return None
        return known if enrolment.expires - self._now() > LEAST_SECONDS else None

    async def _made(self, reservation: Reservation, caller: Caller) -> _Handed:
        enrolment, secret = await self._book.create(
            Role.TENANT,
            by=caller.id,
            seconds=self._section.enrolment_seconds,
            # by this the adapter finds it again, to withdraw it with the instance
            name=f"{reservation.origin} instance {reservation.owner}",
            project=reservation.project,
            vm=reservation.owner,
            reservation=reservation.id,
            token_seconds=self._section.token_seconds,
        )
        if len(self._handed) >= MOST_REMEMBERED:
            self._handed.clear()
        made = _Handed(reservation.id, enrolment.id, secret)
        self._handed[reservation.owner] = made
        return made


def vendordata_routes(
    section: OpenStackSection,
    pool: Pool,
    book: EnrolmentBook,
    now: Callable[[], float],
) -> APIRouter:
    """The handler, bound to one pool; now() is in seconds since the epoch."""
    routes = APIRouter(prefix=REST)
    instances = _Instances(section, pool, book, now)

    @routes.post("/vendordata", tags=["openstack"], responses=problem_responses(401))
    async def vendordata(
        body: VendordataRequest, caller: Annotated[Caller, needs(VENDORDATA)], response: Response
    ) -> Vendordata:
        """Tells an instance of OpenStack where its vGPUs are; for Nova's account alone."""
        response.headers["Cache-Control"] = "no-store"
        found = await instances.awaited(body)
        if found is None:
            return Vendordata(reservation="")
        return await instances.told(found, caller)

    return routes
