# SPDX-License-Identifier: Apache-2.0
"""Finds room for reservations, resizes them, and shows their owners what they may draw on.

Called by scheduling.Scheduler (a reservation waits in the queue like any request) and by pool.Pool.
It promises that a reservation is held as a whole or not at all, and that a change that cannot be
made leaves it as it was, with the reason in words.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sluice.controller.pool.admission import refusals
from sluice.controller.pool.decisions import GrantRequest, Refused
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.occupancy import NOBODY, Occupancy
from sluice.controller.pool.gpus.slices import FreeCapacity, slice_on
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import (
    Clock,
    GpuKey,
    Grant,
    NodeSharing,
    Reservation,
    ReservationState,
    Sharing,
    Slot,
    Vgpu,
)
from sluice.controller.pool.placement import feasibility, placement
from sluice.controller.pool.placement.policies import PlacementPolicy
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.reservations.reservations import Resources, sums
from sluice.protocol.frames import MIN_CONCURRENT_PERCENT


class Reserving:
    """What can be done with reservations."""

    def __init__(
        self, clock: Clock, ledger: GrantLedger, fleet: Fleet, policy: PlacementPolicy
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self._policy = policy

    def capacities(
        self, reservation: Reservation, request: GrantRequest, *, as_if_empty: bool = False
    ) -> list[FreeCapacity]:
        """What the owner's process finds of it, as if these were GPUs.

        `as_if_empty`: if nobody drew on it and its nodes were there.
        """
        capacities = []
        ledger = self._ledger.reservations
        found = ledger.held(reservation) if as_if_empty else ledger.free(reservation)
        for key, free in found.items():
            gpu = self._fleet.gpus.get(key)
            if gpu is None or not (as_if_empty or self._fleet.is_open(gpu)):
                continue
            if request.local_only and key.node != request.node:
                continue
            count = self._fleet.capacity_of(gpu).vgpu_count
            sharing, beside = self._as_reserved(reservation, key)
            capacities.append(
                FreeCapacity(gpu, free.memory_mib, free.compute_percent, count, sharing, beside)
            )
        return capacities

    def place(self, request: GrantRequest, held: Collection[GpuKey]) -> tuple[Slot, ...] | None:
        """Slots for a waiting reservation: on GPUs of one node, else wherever there is room."""
        together = placement.choose(self._policy, request, self._fleet.capacity, held)
        if together is not None:
            return tuple(map(_slot, placement.vgpus_on(request, together)))
        single = replace(request, count=1)
        booked: list[Grant] = []
        try:
            while len(booked) < request.count:
                chosen = placement.choose(self._policy, single, self._fleet.capacity, held)
                if chosen is None:
                    return None
                vgpus = placement.vgpus_on(single, chosen)
                node, project = vgpus[0].node, request.project
                grant = Grant(
                    *(request.request_id, "", node, vgpus, 0, 0.0),
                    project=project,
                    reservation=request.reservation,
                )
                booked.append(grant)
                self._ledger.allocations.book(booked[-1])
        finally:
            for booking in booked:
                self._ledger.allocations.unbook(booking)
        return tuple(_slot(booking.vgpus[0]) for booking in booked)

    def never_shared_so(self, request: GrantRequest) -> Refused | None:
        """Why no GPU is shared in the way that is asked for."""
        return feasibility.never_shared_so(request, self._fleet.capacity)

    def why_no_room(self, request: GrantRequest) -> str:
        """In words what may be missing besides room, behind a comma; "" where nothing is."""
        away = feasibility.without_arbiter(request, self._fleet.capacity)
        return ", and shares of a node's time are not kept while its arbiter is away" * away

    def could_ever(self, request: GrantRequest) -> bool:
        """Whether it would fit into the pool if nothing else were in it."""
        fitting = 0
        for key in self._fleet.reach(request):
            gpu = self._fleet.gpus[key]
            vgpu = slice_on(request, gpu, self._fleet.capacity_of(gpu).vgpu_count)
            by_memory = (gpu.memory_mib - gpu.reserved_mib) // (vgpu.memory_mib + vgpu.overhead_mib)
            fitting += min(by_memory, 100 // vgpu.compute_percent)
        return fitting >= request.count

    def hold(self, reservation: Reservation, slots: tuple[Slot, ...]) -> None:
        """It has found its room."""
        reservation.slots = slots
        reservation.state = ReservationState.HELD
        reservation.generation += 1
        self._ledger.hold_slots(reservation, 1)
        self._ledger.reservations.index(reservation)
        self._ledger.changes.append(replace(reservation))
        where = ", ".join(sorted({str(slot.key) for slot in slots}))
        text = f"{len(slots)} vGPU(s) on {where}"
        if reservation.within:
            text = f"{reservation.owner}: {text}, of reservation {reservation.within}"
            self._ledger.event("part.made", reservation.id, text)
        else:
            self._ledger.event("reservation.held", reservation.id, text)

    def end(self, reservation: Reservation, reason: str) -> None:
        """It goes; grants that draw on it stay, on the pool's own account, and so do its parts.

        Grants that draw on a part stay on the account of what that was a part of.
        """
        was_held = reservation.state is ReservationState.HELD
        drawing = [
            grant
            for key in {slot.key for slot in reservation.slots}
            for grant in self._ledger.grants.live_on_gpu(key)
            if grant.reservation == reservation.id
        ]
        parts = self._ledger.reservations.parts_of(reservation)
        for each in (reservation, *parts) if was_held else ():
            self._ledger.hold_slots(each, -1)
        for part in parts:
            part.within = ""
            part.generation += 1
            self._ledger.hold_slots(part, 1)
            self._ledger.changes.append(replace(part))
        reservation.state = ReservationState.ENDED
        reservation.ended, reservation.reason = self._clock.wall(), reason
        reservation.generation += 1
        self._ledger.over(reservation)
        for grant in {grant.id: grant for grant in drawing}.values():
            self._ledger.move_to_pool(grant, reservation.within)
        self._ledger.changes.append(replace(reservation))
        if reservation.within:
            self._ledger.event("part.ended", reservation.id, reason)
        else:
            self._ledger.event("reservation.ended", reservation.id, reason)

    def resize(
        self, reservation: Reservation, count: int, memory_mib: int, compute_percent: int
    ) -> None:
        """Changes a held reservation while it is in use; raises Impossible."""
        ledger = self._ledger
        if reservation.within:
            raise Impossible(
                f"it is a part of reservation {reservation.within}, and parts keep their sizes: "
                "give it back, and ask for another"
            )
        slots = [self._resized(slot, memory_mib, compute_percent) for slot in reservation.slots]
        slots = self._fewer(reservation, slots, count)
        before, after = ledger.reservations.held(reservation), sums(slots)
        for key, left in after.items():
            self._check_drawn(reservation, key, left)
            self._check_room(key, before.get(key, Resources()), left)
        for key in before.keys() - after.keys():
            self._check_drawn(reservation, key, Resources())
        old = Held.of(reservation.slots)
        more = count - len(slots)
        ledger.hold_slots(reservation, -1)
        kept, reservation.slots = reservation.slots, tuple(slots)
        ledger.hold_slots(reservation, 1)
        added: tuple[Slot, ...] | None = ()
        if more > 0:
            request = request_of(
                replace(
                    reservation,
                    count=more,
                    memory_mib=memory_mib,
                    compute_percent=compute_percent,
                )
            )
            added = self.place(request, ())
        wanted = Held.of((*slots, *(added or ())))
        over = ledger.quotas.exceeded(reservation.project, wanted, Held.of(slots))
        ledger.hold_slots(reservation, -1)
        if added is None or (over and _grows(old, wanted)):
            reservation.slots = kept
            ledger.hold_slots(reservation, 1)
            no_room = f"there is no room for {more} more vGPU(s) now; end or move other work"
            raise Impossible(str(over or no_room))
        reservation.slots = (*slots, *added)
        ledger.hold_slots(reservation, 1)
        reservation.count = count
        reservation.memory_mib, reservation.compute_percent = memory_mib, compute_percent
        reservation.generation += 1
        ledger.reservations.index(reservation)
        ledger.changes.append(replace(reservation))
        text = f"now {count} vGPU(s) of {memory_mib} MiB and {compute_percent} %"
        ledger.event("reservation.resized", reservation.id, text)

    def _as_reserved(self, reservation: Reservation, key: GpuKey) -> tuple[NodeSharing, Occupancy]:
        """How what draws on a reservation shares a GPU: as the reservation does."""
        of_slots = [slot.sharing for slot in reservation.slots if slot.key == key]
        sharing = next(iter(of_slots), Sharing.AUTO)
        said = self._fleet.sharing if sharing is Sharing.AUTO else sharing
        beside = NOBODY.plus(sharing, reservation.project, 0)
        return NodeSharing(pool=said, concurrent=sharing is Sharing.CONCURRENT), beside

    def _resized(self, slot: Slot, memory_mib: int, compute_percent: int) -> Slot:
        if slot.sharing is Sharing.CONCURRENT and 0 < compute_percent < MIN_CONCURRENT_PERCENT:
            raise Impossible(refusals.too_small_at_once(compute_percent))
        return replace(
            slot,
            memory_mib=memory_mib or slot.memory_mib,
            compute_percent=compute_percent or slot.compute_percent,
        )

    def _fewer(self, reservation: Reservation, slots: list[Slot], count: int) -> list[Slot]:
        """Leaves out slots that nobody draws on, on the least drawn GPUs first."""
        kept = list(slots)
        while len(kept) > count:
            for slot in sorted(kept, key=lambda s: self._drawn(reservation, s.key)):
                rest = [other for other in kept if other is not slot]
                left = sums(rest).get(slot.key, Resources())
                drawn = self._ledger.reservations.drawn(reservation.id, slot.key)
                if (
                    drawn.memory_mib <= left.memory_mib
                    and drawn.compute_percent <= left.compute_percent
                ):
                    kept = rest
                    break
            else:
                raise Impossible(
                    f"{len(kept)} of its vGPUs are in use; end what draws on it first "
                    f"(`sluice grant list`), or keep at least {len(kept)}"
                )
        return kept

    def _drawn(self, reservation: Reservation, key: GpuKey) -> int:
        return self._ledger.reservations.drawn(reservation.id, key).memory_mib

    def _check_drawn(self, reservation: Reservation, key: GpuKey, left: Resources) -> None:
        drawn = self._ledger.reservations.drawn(reservation.id, key)
        if drawn.memory_mib > left.memory_mib or drawn.compute_percent > left.compute_percent:
            raise Impossible(
                f"its owner's processes use {drawn.memory_mib} MiB and {drawn.compute_percent} % "
                f"of it on {key}, and {left.memory_mib} MiB and {left.compute_percent} % would be "
                "left; end them first"
            )

    def _check_room(self, key: GpuKey, before: Resources, after: Resources) -> None:
        gpu = self._fleet.gpus.get(key)
        if gpu is None:
            raise Impossible(f"its GPU {key} is not in the pool now; delete the reservation")
        free = self._fleet.capacity_of(gpu)
        more_mib = after.memory_mib - before.memory_mib
        more_percent = after.compute_percent - before.compute_percent
        fits = free.brings_in(more_mib, 0, stays=True)
        if more_mib > max(0, free.free_mib) or more_percent > max(0, free.free_percent) or not fits:
            raise Impossible(
                f"it would take {more_mib} MiB and {more_percent} % more of {key}, which has "
                f"{max(0, free.free_mib)} MiB and {max(0, free.free_percent)} % free"
            )


def request_of(reservation: Reservation) -> GrantRequest:
    """What a reservation asks for, as the queue has it: it waits for ever."""
    return GrantRequest(
        request_id=reservation.id,
        count=reservation.count,
        memory_mib=reservation.memory_mib,
        compute_percent=reservation.compute_percent,
        priority=reservation.priority,
        wait_seconds=-1,
        node=reservation.node,
        local_only=bool(reservation.node),
        program=f"reservation {reservation.id}",
        project=reservation.project,
        reservation=reservation.id,
        sharing=reservation.sharing,
    )


def _slot(vgpu: Vgpu) -> Slot:
    return Slot(
        vgpu.node,
        vgpu.gpu_uuid,
        vgpu.memory_mib,
        vgpu.compute_percent,
        vgpu.overhead_mib,
        vgpu.sharing,
    )


def _grows(old: Held, new: Held) -> bool:
    return (
        new.vgpus > old.vgpus
        or new.memory_mib > old.memory_mib
        or new.compute_percent > old.compute_percent
    )
