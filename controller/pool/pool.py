# SPDX-License-Identifier: Apache-2.0
"""The pool: what is in it (PoolView), and the parts that take its steps.

Called by controller.grant_service, one step at a time, never from two tasks at once. It does no
I/O: time and ids are injected, what must be stored is collected as changes (take_changes), and what
others must be told is returned. It promises that live grants never exceed a GPU, except where a
server reports work that really runs and that the ledger had lost: that is adopted as it is.

Here the parts are put together, the store's snapshot is taken in, and time passes; a decision is in
the part that it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.gpus.attachment import Attachment
from sluice.controller.pool.gpus.attachments import Attachments
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.membership import Membership
from sluice.controller.pool.gpus.modes import GpuModes
from sluice.controller.pool.gpus.operations import GpuOperations
from sluice.controller.pool.grants.adoption import Adoption, ReportedSession
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.lifecycle import GrantLifecycle
from sluice.controller.pool.grants.move_orders import MoveOrders
from sluice.controller.pool.grants.moving import MovePlaces
from sluice.controller.pool.grants.resizing import Resizing
from sluice.controller.pool.grants.suspending import Suspending
from sluice.controller.pool.grants.yielding import Ending, SuspendingOrEnding
from sluice.controller.pool.model import (
    NODE_LOST,
    Change,
    Clock,
    Document,
    Gpu,
    GpuKey,
    GpuSwitch,
    Grant,
    IdFactory,
    Node,
    Quota,
    Reservation,
    ReservationState,
    Session,
)
from sluice.controller.pool.placement.policies import BinPack, PlacementPolicy
from sluice.controller.pool.projects.operations import QuotaOperations
from sluice.controller.pool.queue.progress import Progress
from sluice.controller.pool.queue.requests import Requests
from sluice.controller.pool.queue.scheduling import Scheduler
from sluice.controller.pool.reservations.machines import Machines
from sluice.controller.pool.reservations.operations import ReservationOperations
from sluice.controller.pool.reservations.parts import ReservationParts
from sluice.controller.pool.reservations.reserving import request_of
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
from sluice.controller.pool.view import PoolView
from sluice.resources.vgpu_request import Sharing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the store remembered: the pool's state before a restart."""

    nodes: Sequence[Node] = ()
    gpus: Sequence[Gpu] = ()
    grants: Sequence[Grant] = ()
    sessions: Sequence[Session] = ()
    # not the pool's; read with the rest
    documents: Sequence[Document] = field(default_factory=list)
    reservations: Sequence[Reservation] = field(default_factory=list)
    switches: Sequence[GpuSwitch] = field(default_factory=list)
    quotas: Sequence[Quota] = field(default_factory=list)
    usage: Sequence[UsageRecord] = field(default_factory=list)  # the newest of each project
    attachments: Sequence[Attachment] = field(default_factory=list)
    shares: Sequence[UsageShare] = field(default_factory=list)  # of the newest day


__all__ = ["NODE_LOST", "Pool", "ReportedSession", "Snapshot"]


class Pool(PoolView):
    """What may be read, and the parts by whose steps it changes."""

    def __init__(
        self,
        clock: Clock,
        new_id: IdFactory,
        *,
        vgpu_count: int = 0,
        node_timeout_seconds: float = 30.0,
        ended_kept: int = 1000,
        job_sessions: int = 64,
        job_linger_seconds: float = 5.0,
        ageing_seconds: float = 600.0,
        over_quota_waits: bool = True,
        opening_seconds: float = 300.0,
        hands_over: bool = False,
        on_preempt: str = "suspend",
        max_suspended_seconds: float = 0.0,
        policy: PlacementPolicy | None = None,
        sharing: Sharing = Sharing.AUTO,
        memory_oversubscription: float = 1.0,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._clock = clock
        jobs = Jobs(clock, job_linger_seconds)
        gpus: dict[GpuKey, Gpu] = {}
        ledger = GrantLedger(clock, new_id, jobs, gpus, ended_kept)
        fleet = Fleet(clock, ledger, gpus, vgpu_count, sharing, memory_oversubscription)
        places = MovePlaces(ledger, fleet)
        suspending = Suspending(
            clock,
            ledger,
            fleet,
            jobs,
            places,
            ageing_seconds=ageing_seconds,
            max_suspended_seconds=max_suspended_seconds,
        )
        ending = Ending(ledger)
        scheduler = Scheduler(
            clock,
            new_id,
            ledger,
            fleet,
            jobs,
            policy or BinPack(),
            ageing_seconds=ageing_seconds,
            job_sessions=job_sessions,
            over_quota_waits=over_quota_waits,
            suspending=suspending,
            give_way=(
                SuspendingOrEnding(suspending, ending) if on_preempt == "suspend" else ending
            ),
        )
        attachments = Attachments(clock, ledger, fleet)
        super().__init__(ledger, fleet, scheduler, attachments)
        modes = GpuModes(clock, ledger, fleet, ending, attachments.holder, hands_over=hands_over)
        moves = MoveOrders(suspending, places, ledger, jobs)
        modes.move_away, modes.leaving = moves.move_away, suspending.leaving
        resizing = Resizing(ledger, fleet, jobs)
        progress = self._progress = Progress(scheduler, modes)

        self.requests = Requests(clock, ledger, fleet, jobs, scheduler, progress)
        self.lifecycle = GrantLifecycle(
            ledger, jobs, resizing, suspending, moves, progress, opening_seconds
        )
        self.membership = Membership(
            clock,
            ledger,
            fleet,
            jobs,
            modes,
            Adoption(ledger, fleet, jobs, resizing.is_under_way),
            suspending,
            progress,
            node_timeout_seconds=node_timeout_seconds,
        )
        self.reserving = ReservationOperations(ledger, scheduler, progress)
        self.parts = ReservationParts(ledger, fleet, scheduler.reserving, progress)
        self.limits = QuotaOperations(ledger, progress)
        self.switching = GpuOperations(modes, progress)
        self.native_gpus = attachments  # its steps move nothing else of the pool
        self.machines = Machines(clock, new_id, ledger, self.reserving)
        if snapshot:
            self._restore(snapshot)
            suspending.restore()

    @property
    def paused(self) -> str:
        """Why nothing is granted for now; what waits goes on waiting."""
        return self._scheduler.paused

    @paused.setter
    def paused(self, why: str) -> None:
        self._scheduler.paused = why

    def expire(self) -> Decisions:
        """Lets time pass: silent nodes are lost, overdue requests are refused."""
        decisions = Decisions()
        self.membership.lose_silent(decisions)
        self.lifecycle.end_overdue(decisions)
        self.requests.refuse_overdue(decisions)
        self._ledger.changes += self._ledger.usage.cut()
        self._ledger.changes += self._ledger.shares.cut()
        return self._progress.after(decisions)

    def note(self, kind: str, subject: str, text: str) -> None:
        """A line of the event log that is stored with the step that is being taken."""
        self._ledger.event(kind, subject, text)

    def take_changes(self) -> list[Change]:
        """Hands over what must be stored since the last call, in order."""
        changes, self._ledger.changes = self._ledger.changes, []
        return changes

    def _restore(self, snapshot: Snapshot) -> None:
        self._fleet.restore(snapshot.nodes, snapshot.gpus, snapshot.switches)
        self.native_gpus.restore(snapshot.attachments)
        self.machines.restore(snapshot.documents)
        self.quotas.limits.update({quota.project: quota for quota in snapshot.quotas})
        self._ledger.restore(
            snapshot.grants,
            snapshot.sessions,
            snapshot.reservations,
            snapshot.usage,
            snapshot.shares,
        )
        for reservation in snapshot.reservations:
            if reservation.state is ReservationState.WAITING:
                waited = max(0.0, self._clock.wall() - reservation.created)
                self._scheduler.enqueue(replace(request_of(reservation), waited_seconds=waited))
