# SPDX-License-Identifier: Apache-2.0
"""Parts of reservations: room on named GPUs that a platform keeps for one of its own.

Part of pool.Pool, called by controller.api. A platform with a scheduler of its own (Kubernetes)
divides what the pool has reserved for it: a part is a reservation for a label, on exactly the GPUs
that are named, whose room is its whole's and so is booked once. It promises that parts together
never are more than their whole holds on a GPU, that a part is made as a whole or not at all, that
the same part asked for again is the same one, and that nothing that runs outlives a part for longer
than its server takes to end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluice.controller.pool.decisions import Decisions, end_orders
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Impossible, Over, Unknown
from sluice.controller.pool.model import (
    GpuKey,
    Grant,
    OwnerKind,
    Reservation,
    ReservationState,
    Slot,
)
from sluice.controller.pool.projects.quotas import NOTHING, Held
from sluice.controller.pool.queue.progress import Progress
from sluice.controller.pool.reservations.reservations import Resources, sums
from sluice.controller.pool.reservations.reserving import Reserving
from sluice.resources.ends import End, EndCause


@dataclass(frozen=True, slots=True)
class Place:
    """A vGPU that is wanted on one GPU."""

    gpu: GpuKey
    memory_mib: int
    compute_percent: int


class ReservationParts:
    """Steps that make parts and give them back."""

    def __init__(
        self, ledger: GrantLedger, fleet: Fleet, reserving: Reserving, progress: Progress
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._reserving = reserving
        self._progress = progress

    def keep(self, part: Reservation, places: Sequence[Place]) -> tuple[Reservation, Decisions]:
        """Makes a part, of `part.within`; the one there is, if it is the same.

        Raises Impossible, Unknown.
        """
        whole = self.whole(part.within)
        wanted = tuple(self._slot(whole, place) for place in places)
        if known := self.named(whole, part.owner):
            if _sizes(known.slots) == _sizes(wanted) and known.project == part.project:
                return known, Decisions()
            raise Impossible(
                f"{part.owner} has a part of reservation {whole.id} already, of another size or "
                "project, or on other GPUs: give that back first"
            )
        self._check_room(whole, wanted)
        self._check_quota(whole, part.project, wanted)
        first = wanted[0]
        part.count = len(wanted)
        part.memory_mib, part.compute_percent = first.memory_mib, first.compute_percent
        part.node = first.node
        self._ledger.reservations.add(part)
        self._reserving.hold(part, wanted)
        return part, self._progress.after(Decisions())

    def give_back(self, part_id: str, why: str) -> Decisions:
        """A part goes, and what runs on it ends. Raises Unknown where there is none.

        What its servers have not ended yet is booked on the whole until they have.
        """
        part = self._ledger.reservations.records.get(part_id)
        if part is None or part.state is not ReservationState.HELD:
            raise Unknown("part", part_id)
        decisions = Decisions()
        end = End(EndCause.CHANNEL_REMOVED, why)
        for grant in self.drawing_on(part):
            if grant.ordered_end is None:
                self._ledger.end_soon(grant, end)
                decisions.ends += end_orders(grant, end)
        self._reserving.end(part, why)
        return self._progress.after(decisions)

    def whole(self, reservation_id: str) -> Reservation:
        """A reservation that parts can be made of; raises Impossible, Unknown."""
        whole = self._ledger.reservations.records.get(reservation_id)
        if whole is None:
            raise Unknown("reservation", reservation_id)
        if whole.state is ReservationState.ENDED:
            raise Over("reservation", f"reservation {whole.id} has ended: {whole.reason}")
        if whole.within:
            raise Impossible(f"{whole.id} is a part itself: name reservation {whole.within}")
        if whole.state is not ReservationState.HELD:
            raise Impossible(f"reservation {whole.id} waits for room itself: ask again later")
        return whole

    def named(self, whole: Reservation, owner: str) -> Reservation | None:
        """The part that lives for this label."""
        owned = self._ledger.reservations.owned(OwnerKind.LABEL, owner)
        return next((part for part in owned if part.within == whole.id), None)

    def of(self, whole: Reservation) -> list[Reservation]:
        """The parts that live."""
        return self._ledger.reservations.parts_of(whole)

    def anywhere(self, owner: str) -> Reservation | None:
        """The part that lives for this label, of whichever reservation; one that outlived it, too.

        A label has parts of one reservation only, unless it is asked for of several.
        """
        return next(iter(self._ledger.reservations.owned(OwnerKind.LABEL, owner)), None)

    def drawing_on(self, part: Reservation) -> list[Grant]:
        """The live grants that use a part."""
        found = {
            grant.id: grant
            for slot in part.slots
            for grant in self._ledger.grants.live_on_gpu(slot.key)
            if grant.reservation == part.id
        }
        return list(found.values())

    # within

    def _slot(self, whole: Reservation, place: Place) -> Slot:
        beside = next((slot for slot in whole.slots if slot.key == place.gpu), None)
        if beside is None:
            raise Impossible(
                f"reservation {whole.id} holds nothing of {place.gpu}: look at its slots again"
            )
        gpu = self._fleet.gpus.get(place.gpu)
        if gpu is None or gpu.fault:
            why = gpu.fault if gpu else "its node does not report it"
            raise Impossible(f"{place.gpu} cannot be used now: {why}")
        return replace(beside, memory_mib=place.memory_mib, compute_percent=place.compute_percent)

    def _check_room(self, whole: Reservation, wanted: Sequence[Slot]) -> None:
        free = self._ledger.reservations.free(whole)
        for key, needs in sums(wanted).items():
            left = free.get(key, Resources())
            if needs.memory_mib > left.memory_mib or needs.compute_percent > left.compute_percent:
                raise Impossible(
                    f"{needs.memory_mib} MiB (contexts included) and {needs.compute_percent} % of "
                    f"{key} are wanted, and reservation {whole.id} has {left.memory_mib} MiB and "
                    f"{left.compute_percent} % free there: give parts back, or have the operator "
                    "resize it (`sluice reservation resize`)"
                )

    def _check_quota(self, whole: Reservation, project: str, wanted: Sequence[Slot]) -> None:
        held = Held.of(wanted)
        own = project == whole.project
        freed = Held(0, held.memory_mib, held.compute_percent) if own else NOTHING
        if over := self._ledger.quotas.exceeded(project, held, freed):
            raise Impossible(str(over))


def _sizes(slots: Sequence[Slot]) -> list[tuple[str, int, int]]:
    return sorted((str(s.key), s.memory_mib, s.compute_percent) for s in slots)
