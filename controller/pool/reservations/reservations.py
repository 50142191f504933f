# SPDX-License-Identifier: Apache-2.0
"""Reservations: room that is one owner's whether it is used or not, and what is drawn from it.

Owned by grants.bookings. A reservation's vGPUs are booked on their GPUs as a whole; grants that
draw on it are booked here, inside of it, and nowhere else. It promises that what is drawn of a
reservation on a GPU never exceeds what it holds there, except where the node reports work that
really runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import (
    GpuKey,
    Grant,
    Mode,
    OwnerKind,
    Reservation,
    ReservationState,
    Slot,
)


@dataclass(slots=True)
class Resources:
    """Memory, contexts included, and compute."""

    memory_mib: int = 0
    compute_percent: int = 0


class Reservations:
    """Every reservation, ended ones too, and what is drawn."""

    def __init__(self) -> None:
        self.records: dict[str, Reservation] = {}
        self._by_owner: dict[tuple[OwnerKind, str], dict[str, Reservation]] = {}
        self._drawn: dict[tuple[str, GpuKey], Resources] = {}
        self._by_gpu: dict[GpuKey, set[str]] = defaultdict(set)

    def add(self, reservation: Reservation) -> None:
        """A reservation waits or holds."""
        self.records[reservation.id] = reservation
        if reservation.state is not ReservationState.ENDED:
            owner = (reservation.owner_kind, reservation.owner)
            self._by_owner.setdefault(owner, {})[reservation.id] = reservation
        self.index(reservation)

    def index(self, reservation: Reservation) -> None:
        """Its slots have changed."""
        held = reservation.state is ReservationState.HELD
        keys = {slot.key for slot in reservation.slots} if held else set()
        for key, ids in list(self._by_gpu.items()):
            ids.discard(reservation.id)
            if not ids and key not in keys:
                del self._by_gpu[key]
        for key in keys:
            self._by_gpu[key].add(reservation.id)

    def remove(self, reservation: Reservation) -> None:
        """It has ended; the record stays for people to look at."""
        owner = (reservation.owner_kind, reservation.owner)
        owned = self._by_owner.get(owner, {})
        owned.pop(reservation.id, None)
        if not owned:
            self._by_owner.pop(owner, None)
        self.index(reservation)

    def forget_old(self, kept: int) -> None:
        """Of ended ones only the newest are remembered."""
        ended = [r for r in self.records.values() if r.state is ReservationState.ENDED]
        if len(ended) > kept:
            for reservation in sorted(ended, key=lambda r: r.ended or 0.0)[: len(ended) - kept]:
                del self.records[reservation.id]

    def forget(self, reservation: Reservation) -> None:
        """It never came to be."""
        self.remove(reservation)
        del self.records[reservation.id]

    def of(self, request: GrantRequest) -> list[Reservation]:
        """The held reservations that the request's process may draw on, oldest first."""
        if not self._by_owner or request.mode is Mode.ON_DEMAND:
            return []
        owners = (
            (OwnerKind.VM, request.domain_uuid),
            (OwnerKind.VM, request.domain_name),
            (OwnerKind.LABEL, request.owner_label),
            (OwnerKind.PROJECT, request.project),
        )
        return [
            reservation
            for kind, name in owners
            if name
            for reservation in self._by_owner.get((kind, name), {}).values()
            if reservation.state is ReservationState.HELD
        ]

    @property
    def are_none(self) -> bool:
        """Whether nobody owns one that has not ended."""
        return not self._by_owner

    def owned(self, kind: OwnerKind, name: str) -> list[Reservation]:
        """An owner's reservations that have not ended, oldest first."""
        return list(self._by_owner.get((kind, name), {}).values())

    def on(self, key: GpuKey) -> list[str]:
        """The reservations that hold something of a GPU."""
        return sorted(self._by_gpu.get(key, ()))

    def held(self, reservation: Reservation) -> dict[GpuKey, Resources]:
        """What it holds of each GPU, drawn or not."""
        return sums(reservation.slots)

    def drawn(self, reservation_id: str, key: GpuKey) -> Resources:
        """What is drawn of it on a GPU."""
        return self._drawn.get((reservation_id, key)) or Resources()

    def free(self, reservation: Reservation) -> dict[GpuKey, Resources]:
        """What it holds of each GPU and nobody draws."""
        result = {}
        for key, resources in self.held(reservation).items():
            drawn = self.drawn(reservation.id, key)
            result[key] = Resources(
                resources.memory_mib - drawn.memory_mib,
                resources.compute_percent - drawn.compute_percent,
            )
        return result

    def undrawn_on(self, key: GpuKey) -> Resources:
        """What reservations hold of a GPU beyond what is drawn."""
        total = Resources()
        for reservation_id in self._by_gpu.get(key, ()):
            resources = self.free(self.records[reservation_id])[key]
            total.memory_mib += max(0, resources.memory_mib)
            total.compute_percent += max(0, resources.compute_percent)
        return total

    def draw(self, grant: Grant, sign: int) -> None:
        """Books a grant inside its reservation, or takes it out again."""
        for key, vgpu in grant.placed():
            at = (grant.reservation, key)
            resources = self._drawn.setdefault(at, Resources())
            resources.memory_mib += sign * (vgpu.memory_mib + vgpu.overhead_mib)
            resources.compute_percent += sign * vgpu.compute_percent
            if resources == Resources():
                del self._drawn[at]

    def draw_part(self, part: Reservation, sign: int) -> None:
        """Books a part inside of the reservation that it is of, or takes it out again."""
        for slot in part.slots:
            at = (part.within, slot.key)
            resources = self._drawn.setdefault(at, Resources())
            resources.memory_mib += sign * (slot.memory_mib + slot.overhead_mib)
            resources.compute_percent += sign * slot.compute_percent
            if resources == Resources():
                del self._drawn[at]

    def parts_of(self, whole: Reservation) -> list[Reservation]:
        """What lives within a reservation, oldest first."""
        found = {
            part.id: part
            for key in {slot.key for slot in whole.slots}
            for part_id in self.on(key)
            if (part := self.records[part_id]).within == whole.id
        }
        return sorted(found.values(), key=lambda part: (part.created, part.id))


def sums(slots: Iterable[Slot]) -> dict[GpuKey, Resources]:
    """What slots are together, by GPU."""
    result: dict[GpuKey, Resources] = {}
    for slot in slots:
        resources = result.setdefault(slot.key, Resources())
        resources.memory_mib += slot.memory_mib + slot.overhead_mib
        resources.compute_percent += slot.compute_percent
    return result
