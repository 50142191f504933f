# SPDX-License-Identifier: Apache-2.0
"""What operators and VMs' metadata ask of reservations: made, resized, ended, one by one or many.

Part of pool.Pool, called by controller.api through the grant service and by reservations.machines.
A step that cannot be done comes to Impossible or Unknown and has changed nothing of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.controller.pool.admission import refusals
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Impossible, Outdated, Over, Unknown
from sluice.controller.pool.model import Reservation, ReservationState
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.queue.progress import Progress
from sluice.controller.pool.queue.scheduling import Scheduler
from sluice.controller.pool.reservations.reserving import request_of
from sluice.controller.pool.reservations.steps import Create, Outcome, ReservationStep, Resize


class ReservationOperations:
    """Steps that change reservations."""

    def __init__(self, ledger: GrantLedger, scheduler: Scheduler, progress: Progress) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._progress = progress

    def reserve(self, reservation: Reservation, *, wait: bool) -> tuple[Outcome, Decisions]:
        """Holds room for an owner, or lets it wait for room.

        Where neither can be, what was decided meanwhile about others is to be told all the same.
        """
        [outcome], decisions = self.reservation_steps([Create(reservation, wait)])
        return outcome, decisions

    def end_reservation(self, reservation_id: str, reason: str) -> Decisions:
        """Gives its room back; what draws on it goes on. Raises Impossible, Unknown."""
        self._end(reservation_id, reason)
        return self._progress.after(Decisions())

    def resize_reservation(
        self, reservation_id: str, count: int, memory_mib: int, compute_percent: int
    ) -> Decisions:
        """Changes its size; zeros leave one as it is. Raises Impossible, Unknown."""
        self._resize(Resize(reservation_id, count, memory_mib, compute_percent))
        return self._progress.after(Decisions())

    def reservation_steps(
        self, steps: Sequence[ReservationStep]
    ) -> tuple[list[Outcome], Decisions]:
        """Takes many steps in their order, as one: what each came to stands at its place.

        One that cannot be done changes nothing and stops no other. The queue is served once, at the
        end, and before that only where it makes a difference: before a resize, if room was asked
        for or given back until then, and for what is not to wait.
        """
        decisions = Decisions()
        outcomes: list[Outcome] = []
        made: list[Reservation] = []
        is_due = False

        def serve() -> None:
            nonlocal is_due
            self._progress.after(decisions)
            is_due = False
            for reservation in made:
                self._settle(reservation, wait=True)
            made.clear()

        for step in steps:
            try:
                if isinstance(step, Create):
                    self._enqueue(step.reservation)
                    is_due = True
                    if step.wait:
                        made.append(step.reservation)
                    else:
                        serve()
                        self._settle(step.reservation, wait=False)
                    outcomes.append(step.reservation)
                elif isinstance(step, Resize):
                    if is_due:
                        serve()
                    self._check(step.id, step.generation)
                    before = self._sizes(step.id)
                    resized = self._resize(step)
                    outcomes.append(resized)
                    is_waiting = resized.state is ReservationState.WAITING
                    shrank = any(
                        new < old for new, old in zip(self._sizes(step.id), before, strict=True)
                    )
                    is_due = is_waiting or shrank
                else:
                    self._check(step.id, step.generation)
                    outcomes.append(self._end(step.id, step.reason))
                    is_due = True
            except (Impossible, Unknown, Outdated) as error:
                outcomes.append(error)
        serve()
        return outcomes, decisions

    # within

    def _enqueue(self, reservation: Reservation) -> None:
        """Lets a new one wait, unless it never could be; raises Impossible."""
        request = request_of(reservation)
        if malformed := refusals.malformed(replace(request, count=1)):
            raise Impossible(malformed.message)
        if refused := self._scheduler.reserving.never_shared_so(request):
            raise Impossible(refused.message)
        if not self._scheduler.reserving.could_ever(request):
            raise Impossible(
                f"wanted {refusals.wanted(request)}; the pool could not give that if it were empty"
            )
        if never := self._ledger.quotas.never(reservation.project, Held.at_least(request)):
            raise Impossible(str(never))
        self._ledger.reservations.add(reservation)
        self._scheduler.enqueue(request)

    def _settle(self, reservation: Reservation, *, wait: bool) -> None:
        """A new one was served, or goes on waiting, or is not to wait and raises Impossible."""
        wanted = refusals.wanted(request_of(reservation))
        if reservation.state is ReservationState.WAITING and not wait:
            because = self._scheduler.reserving.why_no_room(request_of(reservation))
            self._scheduler.leave(reservation.id)
            self._ledger.reservations.forget(reservation)
            raise Impossible(
                f"wanted {wanted}; there is no room for it now{because}: let it wait (--queue), or "
                "end other work"
            )
        self._ledger.changes.append(replace(reservation))
        owner = f"{reservation.owner_kind.value} {reservation.owner}"
        self._ledger.event("reservation.made", reservation.id, f"{wanted} for {owner}")

    def _sizes(self, reservation_id: str) -> tuple[int, ...]:
        found = self._ledger.reservations.records.get(reservation_id)
        return (found.count, found.memory_mib, found.compute_percent) if found else ()

    def _resize(self, step: Resize) -> Reservation:
        reservation = self._live_reservation(step.id)
        sizes = (
            step.count or reservation.count,
            step.memory_mib or reservation.memory_mib,
            step.compute_percent or reservation.compute_percent,
        )
        if reservation.state is ReservationState.HELD:
            self._scheduler.reserving.resize(reservation, *sizes)
        else:
            self._scheduler.leave(step.id)
            reservation.count, reservation.memory_mib, reservation.compute_percent = sizes
            reservation.generation += 1
            self._ledger.changes.append(replace(reservation))
            self._scheduler.enqueue(request_of(reservation))
        return reservation

    def _end(self, reservation_id: str, reason: str) -> Reservation:
        reservation = self._live_reservation(reservation_id)
        self._scheduler.leave(reservation_id)
        self._scheduler.reserving.end(reservation, reason)
        return reservation

    def _check(self, reservation_id: str, generation: int | None) -> None:
        known = self._ledger.reservations.records.get(reservation_id)
        if known is not None and generation not in (None, known.generation):
            raise Outdated(
                f"reservation {reservation_id} is at generation {known.generation}, not "
                f"{generation}; look at it again"
            )

    def _live_reservation(self, reservation_id: str) -> Reservation:
        reservation = self._ledger.reservations.records.get(reservation_id)
        if reservation is None:
            raise Unknown("reservation", reservation_id)
        if reservation.state is ReservationState.ENDED:
            text = f"reservation {reservation_id} has ended: {reservation.reason}"
            raise Over("reservation", text)
        return reservation
