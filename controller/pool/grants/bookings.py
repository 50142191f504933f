# SPDX-License-Identifier: Apache-2.0
"""What grants and reservations take: of GPUs, of one another, and of their projects' quotas.

Owned by ledger.GrantLedger, which books each live grant once and unbooks it once. It promises that
what draws on a reservation is on its GPUs' and its project's account with it, not again by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from sluice.controller.pool.gpus.allocations import Allocations
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Change,
    Clock,
    Grant,
    Reservation,
    ReservationState,
    UsageRecord,
    Vgpu,
)
from sluice.controller.pool.projects.quotas import NOTHING, Held, Quotas
from sluice.controller.pool.projects.usage import UsageMeters
from sluice.controller.pool.reservations.reservations import Reservations


class Bookings:
    """The accounts on which something is booked; what must be stored of it is returned."""

    def __init__(self, clock: Clock) -> None:
        self.allocations = Allocations()
        self.reservations = Reservations()
        self.quotas = Quotas()
        self.usage = UsageMeters(clock)

    def restore(
        self,
        grants: Iterable[Grant],
        reservations: Iterable[Reservation],
        usage: Iterable[UsageRecord],
    ) -> None:
        """Takes in what the store remembered; these grants live."""
        held: dict[str, Held] = {}
        for reservation in reservations:
            self.reservations.add(reservation)
            if reservation.state is ReservationState.HELD:
                self.book_slots(reservation, 1)
        for reservation in reservations:
            if reservation.state is ReservationState.HELD:
                for project, of_it in self._on_accounts(reservation, 1):
                    held[project or DEFAULT_PROJECT] = self.quotas.change(project, of_it, 1)
        for grant in grants:
            self.book(grant)
            if not grant.reservation:
                account = grant.project or DEFAULT_PROJECT
                held[account] = self.quotas.change(grant.project, Held.of(grant.vgpus), 1)
        self.usage.restore(usage, held)

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
            booking = Grant(reservation.id, "", slot.node, (vgpu,), 0, 0.0, project=whose)
            (self.allocations.book if sign > 0 else self.allocations.unbook)(booking)

    def count(self, grant: Grant, sign: int) -> list[Change]:
        """Its project holds it, or no longer."""
        if grant.reservation:  # is counted with that
            return []
        return self._count(grant.project, Held.of(grant.vgpus), sign)

    def count_slots(self, reservation: Reservation, sign: int) -> list[Change]:
        """The project holds a reservation's vGPUs, or no longer; a part's not its whole's, too."""
        changes: list[Change] = []
        for project, held in self._on_accounts(reservation, sign):
            changes += self._count(project, held, 1)
        return changes

    def _on_accounts(self, reservation: Reservation, sign: int) -> list[tuple[str, Held]]:
        """Whose account changes by what when a reservation is held (1), or no longer (-1)."""
        held = Held.of(reservation.slots)
        found = [(reservation.project, NOTHING.plus(held, sign))]
        if whole := self.reservations.records.get(reservation.within):
            # a vGPU of the whole stays one, whatever parts it has
            of_whole = Held(0, held.memory_mib, held.compute_percent)
            found.append((whole.project, NOTHING.plus(of_whole, -sign)))
        return found

    def _count(self, project: str, held: Held, sign: int) -> list[Change]:
        account = project or DEFAULT_PROJECT
        return [*self.usage.change(account, self.quotas.change(project, held, sign))]
