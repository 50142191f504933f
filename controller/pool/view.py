# SPDX-License-Identifier: Apache-2.0
"""What may be read of the pool: its records, in order where REST lists them, and sums of them.

The base of pool.Pool; read by controller.api, controller.metrics and controller.auth. It decides
nothing and changes nothing. Whoever only reads takes a PoolView.
"""

from __future__ import annotations

from sluice.controller.pool.gpus.allocations import Usage
from sluice.controller.pool.gpus.attachments import Attachments
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.fragmentation import Fragmentation
from sluice.controller.pool.grants.grant_memory import GrantMemory
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.used_tally import UsedTally
from sluice.controller.pool.grants.vgpu_times import VgpuTime
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Gpu,
    GpuKey,
    GpuMode,
    Grant,
    OwnerKind,
    Reservation,
    Session,
)
from sluice.controller.pool.queue.scheduling import Scheduler
from sluice.controller.pool.usage_records import UsageRecord, UsageShare


class PoolView:
    """The pool, to be read."""

    def __init__(
        self,
        ledger: GrantLedger,
        fleet: Fleet,
        scheduler: Scheduler,
        attachments: Attachments,
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._scheduler = scheduler
        self.nodes = fleet.nodes
        self.nodes_in_order = fleet.nodes_in_order
        self.gpus = fleet.gpus
        self.gpus_in_order = fleet.gpus_in_order
        self.switches = fleet.switches
        self.capacity = fleet.capacity
        self.attachments = attachments.records
        self.grants = ledger.grants.records
        self.grants_in_order = ledger.grants.in_order
        self.sessions = ledger.sessions.records
        self.sessions_in_order = ledger.sessions.in_order
        self.reservations = ledger.reservations.records
        self.quotas = ledger.quotas
        self.queue = scheduler.queue

    # GPUs

    def gpus_of(self, node: str) -> list[Gpu]:
        """A node's GPUs."""
        return self._fleet.of_node(node)

    def mode(self, key: GpuKey) -> GpuMode:
        """Which pool a GPU is in."""
        return self._fleet.mode(key)

    def usage(self, key: GpuKey) -> Usage:
        """What live grants have of a GPU."""
        booked, kept = self._ledger.allocations.usage(key), self.kept(key)
        vgpus = sum(
            1
            for grant in self._ledger.grants.live_on_gpu(key)
            for place, _ in grant.placed()
            if place == key
        )
        return Usage(
            booked.memory_mib - kept.memory_mib,
            booked.compute_percent - kept.compute_percent,
            vgpus,
            occupancy=booked.occupancy,
        )

    def kept(self, key: GpuKey) -> Usage:
        """What is kept free of it: for reservations' owners, requests that preempt, and moves."""
        undrawn = self._ledger.reservations.undrawn_on(key)
        claimed_mib, claimed_percent = self._scheduler.claims.on_gpu(key)
        moving_mib, moving_percent = self._ledger.places.used_of(key)
        return Usage(
            undrawn.memory_mib + claimed_mib + moving_mib,
            undrawn.compute_percent + claimed_percent + moving_percent,
            0,
        )

    def promisable_mib(self, gpu: Gpu) -> int:
        """How much of a GPU's memory may be granted, contexts included."""
        capacity = self.capacity.of(gpu.key)
        there = gpu.memory_mib - gpu.reserved_mib
        return capacity.kind.promise.limit_mib(gpu) if capacity else there

    def fragmentation(self) -> Fragmentation:
        """How much of the free memory can still be given in useful pieces."""
        return self.capacity.fragments.read()

    # grants

    def grants_live_on(self, node: str) -> list[Grant]:
        """The live grants that have a vGPU on a node."""
        return self._ledger.grants.live_on(node)

    def grants_live_on_gpu(self, key: GpuKey) -> list[Grant]:
        """The live grants that have a vGPU on a GPU."""
        return self._ledger.grants.live_on_gpu(key)

    def grants_live_of(self, project: str) -> list[Grant]:
        """A project's live grants; those of nobody in particular are the default project's."""
        own = self._ledger.grants.live_of(project)
        return own + self._ledger.grants.live_of("") if project == DEFAULT_PROJECT else own

    def ended_grants(self) -> list[Grant]:
        """The ended grants that are remembered."""
        return self._ledger.grants.ended()

    def live_sessions_on(self, node: str) -> int:
        """How many sessions live on a node."""
        return self._ledger.sessions.live_on(node)

    def sessions_of(self, grant_id: str) -> list[Session]:
        """Every session of a grant, ended ones too."""
        return self._ledger.sessions.of(grant_id)

    def vgpu_time(self, grant_id: str, number: int) -> VgpuTime | None:
        """What a vGPU of a live grant has had of its GPU; None where its node has not said."""
        return self._ledger.vgpu_times.of(grant_id, number)

    def grant_memory(self, grant_id: str) -> GrantMemory | None:
        """Where a live grant's memory is; None where its node has not said, or moves none."""
        return self._ledger.memories.of(grant_id)

    def memory_sums(self) -> tuple[int, int]:
        """MiB of grants on their GPUs and in host memory, where nodes move it."""
        return self._ledger.memories.sums()

    def tally_used(self) -> UsedTally:
        """From now on what GPUs and projects use is summed there, for whoever keeps history."""
        tally = self._ledger.vgpu_times.tally = UsedTally()
        return tally

    def used_of_project(self, project: str) -> float:
        """Seconds of GPUs' time that a project used since this controller began."""
        return self._ledger.vgpu_times.used_of_project.get(project, 0.0)

    # reservations and projects

    def reservations_of(self, kind: OwnerKind, name: str) -> list[Reservation]:
        """An owner's reservations that have not ended, oldest first."""
        return self._ledger.reservations.owned(kind, name)

    def reservations_on(self, key: GpuKey) -> list[str]:
        """The ids of the reservations that hold something of a GPU."""
        return self._ledger.reservations.on(key)

    def grants_of_reservation(self, reservation: Reservation) -> list[Grant]:
        """The live grants that draw on a reservation."""
        found = {
            grant.id: grant
            for key in {slot.key for slot in reservation.slots}
            for grant in self._ledger.grants.live_on_gpu(key)
            if grant.reservation == reservation.id
        }
        return list(found.values())

    def used_up_to_now(self) -> list[UsageRecord]:
        """What the store does not have yet: every project's newest hours, up to now."""
        return self._ledger.usage.up_to_now()

    def shared_up_to_now(self) -> list[UsageShare]:
        """The same by person and label: today's, and of days that are over and not stored yet."""
        return self._ledger.shares.up_to_now()
