# SPDX-License-Identifier: Apache-2.0
"""Grants that are suspended: what is asked of their servers, what is booked, and who comes back.

Part of pool.Pool. A grant that is to be suspended is booked as before until its server says that
its memory is the host's; from then on only what stays is, with no compute. One that draws on a
reservation frees room there, for the reservation's owner, and nowhere else. It comes back when that
was asked for and there is room on the GPUs that it has, or on another of its node on which it can
be restored (moving.MovePlaces): it stands in the queue with its priority, by the time since it was
suspended (scheduling.Scheduler asks `in_order` and `attempt`). It promises that nothing is booked
for others before it is free, and that what is to run again has all of its room before its server is
told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluice.controller.pool.decisions import Decisions, end_orders
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants import failed_gpus
from sluice.controller.pool.grants.coming_back import note_of, over_quota
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.moving import MovePlaces, at, own_gpu
from sluice.controller.pool.grants.places_on_the_way import PlacesOnTheWay
from sluice.controller.pool.grants.suspend_orders import SuspendOrders
from sluice.controller.pool.grants.suspendable import why_never, why_not_now
from sluice.controller.pool.grants.suspended_sizes import SuspendedSizes
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspensionState,
)
from sluice.controller.pool.impossible import Impossible, Over, Unknown
from sluice.controller.pool.model import (
    Clock,
    GpuKey,
    Grant,
    GrantState,
    NodeState,
    Vgpu,
    as_it_is,
)
from sluice.controller.pool.projects.quotas import Excess
from sluice.resources.ends import End, EndCause
from sluice.resources.suspended_contexts import ContextPlace

#: After a resume that failed, or a suspension, it is not tried again for so long.
AGAIN_SECONDS = 10.0
VM_PAUSED = "its VM is paused ([suspend] on_pause of its host)"

Order = tuple[float, float]


class Suspending:
    """Which grants are suspended, and what becomes of them."""

    def __init__(
        self,
        clock: Clock,
        ledger: GrantLedger,
        fleet: Fleet,
        jobs: Jobs,
        places: MovePlaces,
        *,
        ageing_seconds: float,
        max_suspended_seconds: float,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._ageing = ageing_seconds
        self._most_seconds = max_suspended_seconds
        self._suspended: dict[str, Grant] = {}  # those that are not NONE
        self._failed: dict[str, float] = {}  # monotonic, by grant
        #: Whose VM is paused, as servers say with each connection.
        self._paused: set[str] = set()
        self._places = places
        self._orders = SuspendOrders(fleet, places)
        self._sizes = SuspendedSizes(ledger)
        self._on_the_way = PlacesOnTheWay(ledger, fleet, jobs, places, self._sizes)
        self.fixed: set[str] = set()  # grants whose servers said that they do not move

    def restore(self) -> None:
        """Takes in what the store remembered."""
        for grant in self._ledger.grants.records.values():
            if grant.state is GrantState.LIVE and grant.suspension is not SuspensionState.NONE:
                self._suspended[grant.id] = grant
                self._keep_place(grant)
            else:
                grant.moving_to = ""  # its server says it again

    # what is asked for

    def begin(
        self,
        grant_id: str,
        why: str,
        decisions: Decisions,
        *,
        resumes: bool,
        with_guest: bool = False,
        moving_to: str = "",
    ) -> Grant:
        """Has a grant suspended; `resumes`: it comes back by itself when there is room.

        `with_guest`: it comes back when its VM goes on. `moving_to`: it is to be sent there.
        Raises Impossible, Unknown.
        """
        grant = self.live(grant_id)
        if grant.suspension is not SuspensionState.NONE:
            raise Impossible(f"grant {grant_id} is {grant.suspension.value} already")
        if problem := self._why_not(grant):
            raise Impossible(problem)
        grant.suspension, grant.resumes, grant.suspension_note = (
            SuspensionState.SUSPENDING,
            resumes,
            why,
        )
        grant.with_guest = with_guest
        self._suspended[grant.id] = grant
        self._changed(grant)
        self._ledger.event("grant.suspending", grant.id, why)
        decisions.suspends.append(self._orders.suspend(grant, moving_to))
        return grant

    def want_back(self, grant_id: str) -> Grant:
        """A suspended grant is to go on as soon as there is room, also where its VM is paused.

        Raises Impossible, Unknown.
        """
        grant = self.live(grant_id)
        if grant.suspension is SuspensionState.NONE:
            raise Impossible(f"grant {grant_id} is not suspended")
        self._failed.pop(grant.id, None)
        self._paused.discard(grant.id)
        if not grant.resumes:
            grant.resumes = True
            self._changed(grant)
        return grant

    def send_to(self, grant: Grant, uuid: str, why: str) -> None:
        """One that is suspended, or about to be, is to come back on this GPU of its node.

        It has that place from now on, until it is there or is not to go there any more.
        """
        grant.moving_to = uuid
        self._keep_place(grant)
        self._changed(grant)
        self._ledger.event("grant.moving", grant.id, f"to GPU {uuid}: {why}")

    def guest(self, node: str, grant_id: str, decisions: Decisions, *, paused: bool) -> None:
        """A server says whether a grant's VM is paused; part of a step."""
        grant = self._ledger.grants.get(grant_id)
        if grant is None or grant.state is not GrantState.LIVE or grant.nodes != {node}:
            return
        if paused:
            self._paused.add(grant_id)
            self._keep_place(grant)  # not any more: it stands still for as long as it pleases
            if grant.with_guest and grant.resumes:  # it is not back yet, and need not be
                grant.resumes = False
                self._changed(grant)
            self.suspend_paused(decisions)
            return
        self._paused.discard(grant_id)
        if grant.with_guest and not grant.resumes and not self._jobs.is_ending(grant):
            self.want_back(grant_id)

    def suspend_paused(self, decisions: Decisions) -> None:
        """Suspends whose VM is paused, again and again where that cannot be yet."""
        for grant_id in sorted(self._paused):
            grant = self._ledger.grants.get(grant_id)
            if grant is None or grant.state is not GrantState.LIVE:
                self._paused.discard(grant_id)
            elif self.is_suspendable(grant) and not self._jobs.is_ending(grant):
                self.begin(grant_id, VM_PAUSED, decisions, resumes=False, with_guest=True)

    def never(self, grant: Grant) -> str:
        """Why a grant of its kind cannot be suspended; "": it can."""
        return why_never(grant, self._fleet.nodes.get(grant.node))

    def is_suspendable(self, grant: Grant) -> bool:
        """Whether it is worth the try now."""
        return (
            grant.suspension is SuspensionState.NONE
            and not self._why_not(grant)
            and not self._failed_lately(grant)
        )

    # what servers say

    def heard(
        self,
        node: str,
        report: ReportedSuspension,
        decisions: Decisions,
        *,
        first: bool = False,
    ) -> None:
        """A server says how a grant stands; part of a step. `first`: as it comes (back)."""
        grant = self._ledger.grants.get(report.grant_id)
        if grant is None or grant.state is not GrantState.LIVE or grant.nodes != {node}:
            return
        late = self._orders.is_late(grant, report, first=first)
        if grant.suspension is SuspensionState.NONE:
            self._on_the_way.learn(grant, report)
        elif grant.suspension is SuspensionState.RESUMING and first:
            self._on_the_way.learn_what_stays(grant, report)
        if report.busy or late:
            return  # it says more when that is done
        state = grant.suspension
        if report.suspended:
            if state is SuspensionState.RESUMING and not report.error:
                decisions.suspends.append(self._orders.resume(grant))  # it was lost on its way
                return
            self._follow(grant, report)
            had_its_place = grant.is_undecided
            self._is_out(grant, report)
            if had_its_place and not grant.is_undecided and self._may_come(grant):
                self.attempt(grant, set(), decisions)  # it goes there, or on where it was
            self._end_where_it_failed(grant, decisions)
        elif state is SuspensionState.SUSPENDING:
            if report.error:
                self._not_suspended(grant, report.error)
            else:
                decisions.suspends.append(self._orders.suspend(grant, grant.moving_to))
        else:  # also where it is not known here that it moved, as with a store that is new
            self._follow(grant, report)
            if state is not SuspensionState.NONE:
                self._runs(grant)
                self._end_where_it_failed(grant, decisions)

    def _end_where_it_failed(self, grant: Grant, decisions: Decisions) -> None:
        """Something of it is on a GPU that failed while it was on its way there, or thought off."""
        for key, _ in grant.placed():
            gpu = self._fleet.gpus.get(key)
            if gpu and gpu.fault and not failed_gpus.is_elsewhere(grant):
                failed_gpus.end_on(gpu, grant, self._jobs, decisions)
                return

    def reconcile(
        self, node: str, reports: Sequence[ReportedSuspension], decisions: Decisions
    ) -> None:
        """A server came (back): what it does not name simply runs. Part of a step."""
        for grant_id in list(self._paused):  # it says anew whose VM is paused
            grant = self._ledger.grants.get(grant_id)
            if grant is None or node in grant.nodes:
                self._paused.discard(grant_id)
        named = {report.grant_id for report in reports}
        known = [grant for grant in self._suspended.values() if grant.nodes == {node}]
        silent = [ReportedSuspension(g.id, suspended=False) for g in known if g.id not in named]
        for report in [*reports, *silent]:
            self.heard(node, report, decisions, first=True)
        for report in reports:  # by now all of them have given back what they do not have there
            grant = self._ledger.grants.get(report.grant_id)
            if grant and grant.moving_to and grant.suspension is SuspensionState.NONE:
                self._on_the_way.learn(grant, report)
            elif grant and grant.moving_to and grant.id in self._suspended:
                self._keep_place(grant)

    def ended(self) -> None:
        """Forgets grants that have ended; before each look at them."""
        for grant_id in [g for g, it in self._suspended.items() if it.state is GrantState.ENDED]:
            del self._suspended[grant_id]
            self.fixed.discard(grant_id)
            self._failed.pop(grant_id, None)
            self._orders.forget(grant_id)

    # the queue

    def leaving(self, key: GpuKey) -> int:
        """How many grants are booked elsewhere, and their server has not said yet that they are."""
        return sum(
            grant.suspension is SuspensionState.RESUMING
            and own_gpu(grant) != key
            and any(GpuKey(v.node or grant.node, v.gpu_uuid) == key for v in grant.running_vgpus)
            for grant in self._suspended.values()
        )

    def in_order(self) -> list[tuple[Order, Grant]]:
        """Those that wait to come back, with their places among requests (waiting.Entry.order)."""
        self.ended()
        now, wall = self._clock.monotonic(), self._clock.wall()
        found = []
        for grant in self._suspended.values():
            if not self._may_come(grant):
                continue
            since = now - max(0.0, wall - (grant.suspended_since or wall))
            order = (
                (since - grant.priority * self._ageing, 0.0)
                if self._ageing
                else (-grant.priority, since)
            )
            found.append((order, grant))
        return sorted(found, key=lambda each: (each[0], each[1].id))

    def attempt(self, grant: Grant, held: set[GpuKey], decisions: Decisions) -> list[GpuKey]:
        """Has it resumed, if there is room that nobody before it waits for.

        Returns what it holds against those behind it: nothing where a reservation has its room, or
        its project's quota alone keeps it. The place that is kept for it nobody before it waits
        for.
        """
        place = self._ledger.places.on(grant.id)
        sized, reserved = self._sizes.sized(grant), bool(grant.reservation)
        over = over_quota(self._ledger.quotas, grant, sized)
        node = self._fleet.nodes.get(grant.node)
        is_up = node is not None and node.state is NodeState.UP
        for vgpus in self._ways_back(grant, sized) if is_up and not over else ():
            keys = {GpuKey(vgpu.node or grant.node, vgpu.gpu_uuid) for vgpu in vgpus}
            if reserved or keys == {GpuKey(grant.node, place)} or not keys & held:
                self._resume(grant, vgpus, decisions)
                return []
        if over:
            self._ledger.places.drop(grant.id)
        else:
            self._keep_place(grant)
        self.note(grant, over)
        return [] if reserved or over else [key for key, _ in grant.placed()]

    def note(self, grant: Grant, over: Excess | None = None) -> None:
        """Says what keeps a suspended grant, where that is its project's quota or its GPU."""
        gpu = self._fleet.gpus.get(own_gpu(grant))
        never = self._places.why_never(grant)
        failed = failed_gpus.why_it_stays(gpu, grant, never) if gpu and gpu.fault else ""
        note = note_of(grant, over, failed)
        if grant.suspension is SuspensionState.SUSPENDED and note != grant.suspension_note:
            grant.suspension_note = note
            self._changed(grant)

    def _ways_back(self, grant: Grant, sized: tuple[Vgpu, ...]) -> Iterator[tuple[Vgpu, ...]]:
        """Its vGPUs where there is room for it, best first: as it is wanted, where it is, beside.

        Nothing while it is not known whether it can be moved as it was asked for.
        """
        contexts, own = grant.contexts, own_gpu(grant).uuid
        if grant.moving_to and contexts and contexts.place is ContextPlace.LEAVING:
            return
        beside: list[tuple[Vgpu, ...]] = []
        if contexts and contexts.are_off and not self._places.why_never(grant):
            beside = self._places.among(grant, sized, contexts.moves_to)
        if grant.moving_to and grant.moving_to != own:
            wanted = at(sized, grant.moving_to)
            if wanted in beside:
                yield wanted
            else:
                self._give_up_moving(grant, wanted)
        gpu = self._fleet.gpus.get(own_gpu(grant))
        is_open = gpu is not None and self._fleet.is_open(gpu)
        if not is_open:  # it is drained, or at fault
            yield from beside
        if self._places.fits_there(grant, sized):
            yield sized
        if is_open:
            yield from beside

    def _give_up_moving(self, grant: Grant, wanted: tuple[Vgpu, ...]) -> None:
        """What it was asked for cannot be; it comes back as it can."""
        contexts = grant.contexts
        can = contexts is not None and grant.moving_to in contexts.moves_to
        why = self._places.why_not(grant, wanted) if can else ""
        why = why or (contexts.moves_not if contexts else "") or "its server does not move it there"
        if not can and contexts and contexts.are_decided:
            self.fixed.add(grant.id)
        self._ledger.places.drop(grant.id)
        grant.moving_to, grant.suspension_note = "", f"not moved: {why}"
        self._changed(grant)
        self._ledger.event("grant.not_moved", grant.id, why)

    def _resume(self, grant: Grant, vgpus: tuple[Vgpu, ...], decisions: Decisions) -> None:
        before, stays = own_gpu(grant).uuid, grant.vgpus
        self._ledger.places.drop(grant.id)  # it is booked there itself
        grant.suspension, grant.moving_to = SuspensionState.RESUMING, ""
        self._ledger.rebook(grant, vgpus)
        self._on_the_way.leaves(grant, stays)
        there = own_gpu(grant).uuid
        where = f" on GPU {there} (it was on {before})" if there != before else " again"
        self._ledger.event("grant.resuming", grant.id, f"there is room for it{where}")
        decisions.suspends.append(self._orders.resume(grant))

    def _follow(self, grant: Grant, report: ReportedSuspension) -> None:
        """Books it on the GPU that its server says it is on."""
        uuids = report.gpu_uuids
        if grant.reservation or len(uuids) != len(grant.vgpus) or len({*uuids}) != 1:
            return
        before, there = own_gpu(grant), GpuKey(grant.node, uuids[0])
        if there != before and there in self._fleet.gpus:
            if there.uuid == grant.moving_to:
                self._ledger.places.drop(grant.id)
                grant.moving_to = ""
            self._ledger.rebook(grant, at(grant.vgpus, there.uuid))

    # time

    def end_overdue(self, decisions: Decisions) -> None:
        """Ends what was suspended for too long; part of a step."""
        self.ended()
        self.suspend_paused(decisions)
        wall = self._clock.wall()
        for grant in list(self._suspended.values()) if self._most_seconds else ():
            since = grant.suspended_since
            if (
                grant.suspension is SuspensionState.SUSPENDED
                and since is not None
                and wall - since >= self._most_seconds
                and not self._jobs.is_ending(grant)
            ):
                text = (
                    f"it was suspended for {wall - since:.0f} s, and [pool] max_suspended_seconds "
                    f"is {self._most_seconds:g}"
                )
                why = End(EndCause.SUSPENDED_TOO_LONG, text)
                self._ledger.end_soon(grant, why)
                decisions.ends += end_orders(grant, why)

    # within

    def live(self, grant_id: str) -> Grant:
        """A grant that is not over, nor about to be. Raises Unknown, Over."""
        grant = self._ledger.grants.get(grant_id)
        if grant is None:
            raise Unknown("grant", grant_id)
        if grant.state is not GrantState.LIVE or self._jobs.is_ending(grant):
            raise Over("grant", f"grant {grant_id} has ended or is being ended")
        return grant

    def _why_not(self, grant: Grant) -> str:
        """Why it is not suspended now: first what time does not change; "": it can be."""
        live = self._ledger.sessions.live_of(grant.id)
        return self.never(grant) or why_not_now(grant, self._fleet.nodes.get(grant.node), live)

    def _may_come(self, grant: Grant) -> bool:
        """Whether one that is suspended comes back as soon as there is room."""
        comes = grant.suspension is SuspensionState.SUSPENDED and grant.resumes
        stands = self._failed_lately(grant) or grant.id in self._paused
        return comes and not stands and not self._jobs.is_ending(grant)

    def _failed_lately(self, grant: Grant) -> bool:
        at = self._failed.get(grant.id)
        return at is not None and self._clock.monotonic() - at < AGAIN_SECONDS

    def when_it_runs(self, grant: Grant) -> tuple[Vgpu, ...]:
        """Its vGPUs with all that they have then, contexts included."""
        return self._sizes.when_it_runs(grant)

    def _keep_place(self, grant: Grant) -> None:
        """Where it is to go is booked, while it is on its way."""
        self._on_the_way.keep(grant, stands=grant.id in self._paused)

    def _is_out(self, grant: Grant, report: ReportedSuspension) -> None:
        """Its memory is the host's: only what stays is booked."""
        if grant.suspension is SuspensionState.NONE:
            grant.resumes = True  # nobody here has asked for it
        if grant.suspension in (SuspensionState.NONE, SuspensionState.SUSPENDING):
            grant.running_vgpus, grant.suspended_since = grant.vgpus, self._clock.wall()
            self._ledger.event(
                "grant.suspended", grant.id, f"{sum(report.staying_mib)} MiB of it stay"
            )
        elif report.error:
            self._failed[grant.id] = self._clock.monotonic()
            self._ledger.event("grant.not_resumed", grant.id, report.error)
        if grant.suspension is SuspensionState.RESUMING:
            self._ledger.places.drop(grant.id)
        grant.suspension = SuspensionState.SUSPENDED
        grant.suspension_note = report.error or grant.suspension_note
        self._suspended[grant.id] = grant
        before, grant.contexts = grant.contexts, report.contexts
        smaller = self._sizes.staying(grant, report.staying_mib)
        self._ledger.rebook(grant, self._sizes.sized(grant) if grant.is_undecided else smaller)
        if grant.contexts and grant.contexts.are_off and not (before and before.are_off):
            left = sum(vgpu.overhead_mib for vgpu in smaller)
            self._ledger.event("grant.contexts_off", grant.id, f"{left} MiB of its contexts stay")

    def _not_suspended(self, grant: Grant, why: str) -> None:
        self._failed[grant.id] = self._clock.monotonic()
        self._forget(grant, why)
        self._changed(grant)
        self._ledger.event("grant.not_suspended", grant.id, why)

    def _runs(self, grant: Grant) -> None:
        sized = self._sizes.sized(grant)
        before = {vgpu.gpu_uuid for vgpu in grant.running_vgpus}
        now = {vgpu.gpu_uuid for vgpu in grant.vgpus}
        moved = before and now != before and f"from GPU {min(before)} to GPU {min(now)}"
        self._forget(grant, "")
        self._ledger.rebook(grant, sized)
        self._ledger.event("grant.resumed", grant.id, "it goes on")
        if moved:
            self._ledger.event("grant.moved", grant.id, moved)

    def _forget(self, grant: Grant, note: str) -> None:
        grant.suspension, grant.suspension_note = SuspensionState.NONE, note
        grant.running_vgpus, grant.suspended_since, grant.resumes = (), None, False
        grant.with_guest, grant.contexts, grant.moving_to = False, None, ""
        self._ledger.places.drop(grant.id)
        self._suspended.pop(grant.id, None)

    def _changed(self, grant: Grant) -> None:
        grant.generation += 1
        self._ledger.changes.append(as_it_is(grant))
