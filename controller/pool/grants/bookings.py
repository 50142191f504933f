# SPDX-License-Identifier: Apache-2.0
"""What grants and reservations take: of GPUs, of one another, and of their projects' quotas.

Owned by ledger.GrantLedger, which books each live grant once and unbooks it once. It promises that
what draws on a reservation is on its GPUs' and its project's account with it, not again by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from sluice.controller.pool.gpus.allocations import Allocations
from sluice.controller.pool.grants.kept_places import KeptPlaces
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Change,
    Clock,
    Grant,
    OwnerKind,
    Reservation,
    ReservationState,
    Vgpu,
)
from sluice.controller.pool.projects.quotas import NOTHING, Held, Quotas
from sluice.controller.pool.projects.shares import Share, ShareMeters
from sluice.controller.pool.projects.usage import UsageMeters
from sluice.controller.pool.reservations.reservations import Reservations
from sluice.controller.pool.usage_records import UsageRecord, UsageShare


class Bookings:
    """The accounts on which something is booked; what must be stored of it is returned."""

    def __init__(self, clock: Clock) -> None:
        self.allocations = Allocations()
        self.places = KeptPlaces(self.allocations)
        self.reservations = Reservations()
        self.quotas = Quotas()
        self.usage = UsageMeters(clock)
        self.shares = ShareMeters(clock)

    def restore(
        self,
        grants: Iterable[Grant],
        reservations: Iterable[Reservation],
        usage: Iterable[UsageRecord],
        shares: Iterable[UsageShare] = (),
    ) -> None:
        """Takes in what the store remembered; these grants live."""
        held: dict[str, Held] = {}
        each: list[tuple[str, Share, Held, float]] = []
        for reservation in reservations:
            self.reservations.add(reservation)
            if reservation.state is ReservationState.HELD:
                self.book_slots(reservation, 1)
        for reservation in reservations:
            if reservation.state is ReservationState.HELD:
                for whose, of_it in self._on_accounts(reservation, 1):
                    account = whose.project or DEFAULT_PROJECT
                    held[account] = self.quotas.change(whose.project, of_it, 1)
                    each.append((whose.id, _of_reservation(whose), of_it, reservation.created))
        for grant in grants:
            self.book(grant)
            if not grant.reservation:
                account = grant.project or DEFAULT_PROJECT
                of_it = Held.of(grant.known_vgpus)
                held[account] = self.quotas.change(grant.project, of_it, 1)
                each.append((grant.id, _of_grant(grant), of_it, grant.created))
        self.usage.restore(usage, held)
        self.shares.restore(shares, each)

    def book(self, grant: Grant) -> None:
        """Its vGPUs are taken of their GPUs, or of its reservation."""
        if grant.reservation:
            self.reservations.draw(grant, 1)
        else:
            self.allocations.book(grant)

    def unbook(self, grant: Grant) -> None:
        """They are given back."""
        if grant.reservation:
            self.reservations.draw(grant, -1)
        else:
            self.allocations.unbook(grant)

    def book_slots(self, reservation: Reservation, sign: int) -> None:
        """A reservation's vGPUs are taken of their GPUs, or given back; a part's of its whole."""
        if reservation.within:
            self.reservations.draw_part(reservation, sign)
            return
        for slot in reservation.slots:
            vgpu = Vgpu(
                slot.gpu_uuid,
                slot.memory_mib,
                slot.compute_percent,
                slot.overhead_mib,
                sharing=slot.sharing,
            )
            whose = reservation.project
            booking = Grant(
                *(reservation.id, "", slot.node, (vgpu,), 0, 0.0),
                project=whose,
                reservation=reservation.id,
            )
            (self.allocations.book if sign > 0 else self.allocations.unbook)(booking)

    def count(self, grant: Grant, sign: int) -> list[Change]:
        """Its project holds it, or no longer."""
        if grant.reservation:  # is counted with that
            return []
        held = Held.of(grant.known_vgpus)
        self.shares.change(grant.id, _of_grant(grant), held, sign)
        return self._count(grant.project, held, sign)

    def count_slots(self, reservation: Reservation, sign: int) -> list[Change]:
        """The project holds a reservation's vGPUs, or no longer; a part's not its whole's, too."""
        changes: list[Change] = []
        for whose, held in self._on_accounts(reservation, sign):
            if whose is reservation:
                self.shares.change(whose.id, _of_reservation(whose), Held.of(whose.slots), sign)
            else:
                self.shares.adjust(whose.id, _of_reservation(whose), held)
            changes += self._count(whose.project, held, 1)
        return changes

    def _on_accounts(self, reservation: Reservation, sign: int) -> list[tuple[Reservation, Held]]:
        """Whose account changes by what when a reservation is held (1), or no longer (-1)."""
        held = Held.of(reservation.slots)
        found = [(reservation, NOTHING.plus(held, sign))]
        if whole := self.reservations.records.get(reservation.within):
            # a vGPU of the whole stays one, whatever parts it has
            of_whole = Held(0, held.memory_mib, held.compute_percent)
            found.append((whole, NOTHING.plus(of_whole, -sign)))
        return found

    def measured(self, grant: Grant, used: float, waited: float) -> None:
        """A grant's vGPUs had so many seconds more of GPUs' time, and waited so long for it."""
        self.usage.measured(grant.project or DEFAULT_PROJECT, used, waited)
        self.shares.measured(grant.id, _of_grant(grant), used, waited)

    def _count(self, project: str, held: Held, sign: int) -> list[Change]:
        account = project or DEFAULT_PROJECT
        return [*self.usage.change(account, self.quotas.change(project, held, sign))]


def _of_grant(grant: Grant) -> Share:
    return Share(grant.project or DEFAULT_PROJECT, grant.person, grant.label)


def _of_reservation(reservation: Reservation) -> Share:
    label = reservation.owner if reservation.owner_kind is OwnerKind.LABEL else ""
    return Share(reservation.project or DEFAULT_PROJECT, "", label)
