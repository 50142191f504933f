# SPDX-License-Identifier: Apache-2.0
"""Makes the ledger say what a server that came (back) really runs: adopts it, or orders its end.

Called by membership.Membership for each session that a server reports. It promises that work which
runs is in the ledger, even beyond what is free, and that work which was ended meanwhile is ended
there too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from sluice.controller.pool.decisions import Decisions, EndOrder, session_end_orders
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.node_parts import numbered_by_grant
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.model import (
    UNKNOWN_VGPU,
    GpuKey,
    Grant,
    GrantState,
    ReservationState,
    Session,
    SessionState,
    Vgpu,
    as_it_is,
)
from sluice.resources.ends import End, EndCause

#: Why a session has ended that nobody ever used.
NEVER_BEGAN = (EndCause.NOT_TAKEN, EndCause.WITHDRAWN)


@dataclass(frozen=True, slots=True)
class ReportedSession:
    """A session that a server says it runs or is about to open."""

    session: Session
    vgpus: tuple[Vgpu, ...]
    request_id: str
    priority: int
    job: str = ""
    job_domain: str = ""
    job_processes: int = 0
    project: str = ""
    #: Of a grant of several nodes: how many vGPUs it has in all, and which of them `vgpus` are; 0:
    #: `vgpus` are all, or an older server's.
    grant_vgpus: int = 0
    places: tuple[int, ...] = ()

    @property
    def all_vgpus(self) -> tuple[Vgpu, ...]:
        """The grant's, as far as this node has told of them."""
        return with_places((UNKNOWN_VGPU,) * self.grant_vgpus, self.places, self.vgpus)


class Adoption:
    """What is done about reported sessions."""

    def __init__(
        self, ledger: GrantLedger, fleet: Fleet, jobs: Jobs, is_resizing: Callable[[str], bool]
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._is_resizing = is_resizing
        #: Grants of which the ledger knew nothing, nor an older server how many vGPUs they have.
        self._unremembered: set[str] = set()
        self._most_unremembered = 1000  # until those that have ended are dropped

    def may_be_part(self, report: ReportedSession) -> bool:
        """Whether it may be of a grant of which the ledger knows another node's part only.

        So it is where nobody remembered the grant, as its store was lost: then each of its nodes
        tells of its own, in the places that are left. A grant that was remembered has the nodes
        that it has.
        """
        grant = self._ledger.grants.get(report.session.grant_id)
        if grant is None:
            return False
        theirs = (grant.job, grant.job_domain, grant.project)
        if theirs != (report.job, report.job_domain, report.project):
            return False
        if report.places:
            same_size = len(grant.vgpus) == report.grant_vgpus
            return same_size and set(report.places) <= set(grant.unknown_places)
        if left := grant.unknown_places:  # an older server's
            return len(report.vgpus) <= len(left)
        return grant.id in self._unremembered

    def revive(self, node: str, pending: Collection[str], decisions: Decisions) -> None:
        """Books again what a lost node was granted and may yet start.

        It stood still with the answer on its way to it, and names the request as one that waits: if
        its grant were over, its room would be given away, and the answer would come after all.
        """
        for grant in self._ledger.grants.ended() if pending else ():
            if grant.node != node or not grant.lost:
                continue
            for session in self._ledger.sessions.of(grant.id):
                if session.request_id not in pending or self._ledger.held_by(session.request_id):
                    continue
                again = replace(
                    session,
                    state=SessionState.OPENING,
                    ended=None,
                    reason="",
                    cause=EndCause.UNKNOWN,
                )
                report = ReportedSession(
                    again,
                    grant.vgpus,
                    grant.request_id,
                    grant.priority,
                    grant.job,
                    grant.job_domain,
                    grant.job_processes,
                    grant.project,
                )
                self.reconcile(node, report, decisions)

    def reconcile(self, node: str, report: ReportedSession, decisions: Decisions) -> None:
        """Adopts a session, or has it ended."""
        session = report.session
        grant = self._ledger.grants.get(session.grant_id)
        ended = grant if grant and grant.state is GrantState.ENDED else None
        if ended and len(ended.nodes) > 1 and not report.places:
            # an older server's: which of the grant's vGPUs these are nobody knows any more
            decisions.ends.append(EndOrder(node, ended.id, End(ended.cause, ended.reason)))
            return
        if grant is None or ended:
            over = self._why_over(ended, session) if ended else None
            grant = self._adopt(node, report, grant)
            if over:
                # its room is nobody else's before it is gone
                self._ledger.end_soon(grant, over)
        elif node not in grant.nodes:
            # one of several nodes' part of a grant that nobody remembered
            vgpus = self._with_overhead(node, report.vgpus)
            vgpus = tuple(replace(vgpu, node=node) for vgpu in vgpus)
            if left := grant.unknown_places:
                places = report.places or left[: len(vgpus)]
                self._ledger.rebook(grant, with_places(grant.vgpus, places, vgpus))
            else:
                self._ledger.rebook(grant, (*grant.vgpus, *vgpus))
            for other in self._ledger.sessions.live_of(grant.id):
                other.chosen = other.chosen or grant.places_on(other.node)
                self._ledger.add_session(other)
        elif grant.suspension is SuspensionState.NONE and not self._is_resizing(grant.id):
            self._take_sizes(grant, report.vgpus)
        if grant.spans_nodes:
            session.chosen = numbered_by_grant(grant, node, session.chosen)
        if why := self._jobs.why_ending(grant):
            decisions.ends.append(EndOrder(node, grant.id, why))
        known = self._ledger.sessions.get(session.id)
        if known and session.state is SessionState.OPENING and known.cause in NEVER_BEGAN:
            # a key that was withdrawn while its node was away
            why = End(known.cause, known.reason)
            decisions.session_ends += session_end_orders([known], why)
            return
        if known and not session.request_id:  # a node whose client came over the network has none
            session.request_id = known.request_id
        if known is None or known.state is not session.state:
            self._ledger.add_session(session)
            self._ledger.recount(grant)
        elif (known.disconnected_since, known.channel) != (
            session.disconnected_since,
            session.channel,
        ):
            known.disconnected_since = session.disconnected_since
            known.channel = session.channel
            self._ledger.changes.append(as_it_is(known))

    def _why_over(self, grant: Grant, session: Session) -> End | None:
        """Why this session of a grant that has ended is to end, too; None: it goes on.

        So does one whose node was silent by then, alone or of several, or had not told of its part
        since the store was lost.
        """
        known = self._ledger.sessions.get(session.id)
        part_lost = len(grant.nodes) > 1 and known and known.cause is EndCause.NODE_LOST
        goes_on = grant.lost or part_lost or session.node not in grant.nodes
        return grant.ordered_end or (None if goes_on else grant.end)

    def _adopt(self, node: str, report: ReportedSession, known: Grant | None) -> Grant:
        """Books what runs and the ledger had lost."""
        session = report.session
        grant = Grant(
            id=session.grant_id,
            request_id=report.request_id,
            node=node,
            vgpus=self._with_overhead(node, report.all_vgpus),
            priority=report.priority,
            created=session.started,
            generation=known.generation + 1 if known else 1,
            job=report.job,
            job_domain=report.job_domain,
            job_processes=report.job_processes,
            project=report.project,
        )
        if known:
            grant.project = known.project
            grant.person, grant.label = known.person, known.label
            reservation = self._ledger.reservations.records.get(known.reservation)
            if reservation and reservation.state is ReservationState.HELD:
                keys = self._ledger.reservations.held(reservation).keys()
                grant.reservation = (
                    reservation.id if {key for key, _ in grant.placed()} <= keys else ""
                )
        if known is None and not report.places:
            self._forgot(grant.id)
        self._ledger.begin(grant)
        self._ledger.event("grant.adopted", grant.id, f"{node} runs session {session.id}")
        for key, _ in grant.placed():
            capacity = self._fleet.capacity.of(key)
            if capacity and (capacity.free_mib < 0 or capacity.free_percent < 0):
                text = f"grant {grant.id} runs there beyond what is free; nothing new is placed"
                self._ledger.event("gpu.overcommitted", str(key), text)
        return grant

    def _forgot(self, grant_id: str) -> None:
        self._unremembered.add(grant_id)
        if len(self._unremembered) > self._most_unremembered:
            is_live = self._ledger.grants.is_live
            self._unremembered = {each for each in self._unremembered if is_live(each)}
            self._most_unremembered = 2 * len(self._unremembered) + 1000

    def _take_sizes(self, grant: Grant, vgpus: tuple[Vgpu, ...]) -> None:
        """It runs with other limits than the ledger says: a resize whose end was not heard."""
        if [v.gpu_uuid for v in vgpus] != [v.gpu_uuid for v in grant.vgpus]:
            return
        sized = tuple(
            replace(old, memory_mib=new.memory_mib, compute_percent=new.compute_percent)
            for old, new in zip(grant.vgpus, vgpus, strict=True)
        )
        if sized != grant.vgpus:
            self._ledger.rebook(grant, sized)
            sizes = ", ".join(f"{v.memory_mib} MiB and {v.compute_percent} %" for v in sized)
            self._ledger.event("grant.resized", grant.id, f"runs with {sizes}")

    def _with_overhead(self, node: str, vgpus: tuple[Vgpu, ...]) -> tuple[Vgpu, ...]:
        gpus = [self._fleet.gpus.get(GpuKey(node, vgpu.gpu_uuid)) for vgpu in vgpus]
        return tuple(
            replace(vgpu, overhead_mib=gpu.context_overhead_mib if gpu else 0)
            for vgpu, gpu in zip(vgpus, gpus, strict=True)
        )


def with_places(
    vgpus: tuple[Vgpu, ...], places: tuple[int, ...], known: tuple[Vgpu, ...]
) -> tuple[Vgpu, ...]:
    """These vGPUs with others in some places; without places the others alone."""
    if not places:
        return known
    there = dict(zip(places, known, strict=True))
    return tuple(there.get(place, vgpu) for place, vgpu in enumerate(vgpus))
