# SPDX-License-Identifier: Apache-2.0
"""Nodes come, fall silent, return and are lost; their GPUs fail: what follows for their grants.

Part of pool.Pool; its steps follow the servers' streams. It promises that a node which returns is
believed about what it runs, and that one which is silent too long has lost what it had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.modes import GpuModes
from sluice.controller.pool.grants import failed_gpus
from sluice.controller.pool.grants.adoption import Adoption, ReportedSession
from sluice.controller.pool.grants.jobs import JobKey, Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.suspending import Suspending
from sluice.controller.pool.grants.suspension import ReportedSuspension
from sluice.controller.pool.model import NODE_LOST, Clock, Gpu, GpuKey, Node, NodeState
from sluice.controller.pool.queue.progress import Progress
from sluice.resources.ends import End, EndCause


class Membership:
    """Which nodes are in the pool, and whether they are heard of."""

    def __init__(
        self,
        clock: Clock,
        ledger: GrantLedger,
        fleet: Fleet,
        jobs: Jobs,
        modes: GpuModes,
        adoption: Adoption,
        suspending: Suspending,
        progress: Progress,
        *,
        node_timeout_seconds: float,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._modes = modes
        self._adoption = adoption
        self._suspending = suspending
        self._progress = progress
        self._node_timeout = node_timeout_seconds
        self._made = clock.monotonic()

    # what servers say

    def register(
        self,
        node: Node,
        gpus: Iterable[Gpu],
        sessions: Iterable[ReportedSession],
        pending_requests: Iterable[str] = (),
        holds: Iterable[JobKey] = (),
        let_go: Collection[str] = (),
        suspensions: Sequence[ReportedSuspension] = (),
    ) -> Decisions:
        """Takes in a server that came (back) and makes the ledger say what it really runs.

        `let_go` names the GPUs that it has handed over.
        """
        self._fleet.joined(node, list(gpus))
        decisions = Decisions()
        self._modes.joined(node.name, let_go, decisions)
        reported: set[str] = set()
        for report in sessions:
            reported.add(report.session.id)
            self._adoption.reconcile(node.name, report, decisions)
        pending = set(pending_requests)
        self._adoption.revive(node.name, pending, decisions)
        self._jobs.replace(node.name, holds)
        self._ledger.end_unreported(node.name, reported | pending)
        self._suspending.reconcile(node.name, suspensions, decisions)
        for gpu in self._fleet.of_node(node.name):
            self._end_faulty(gpu, decisions)
        return self._progress.after(decisions)

    def may_be_part(self, report: ReportedSession) -> bool:
        """Whether a node tells of its part of a grant that is known by another's word alone."""
        return self._adoption.may_be_part(report)

    def gpu_condition(self, key: GpuKey, fault: str, held: str, note: str) -> Decisions:
        """A node says what has become of a GPU; at fault, it loses what is on it."""
        decisions = Decisions()
        if gpu := self._fleet.gpus.get(key):
            gpu = replace(gpu, fault=fault, held=held, note=note)
            self._fleet.set_condition(gpu)
            self._end_faulty(gpu, decisions)
        return self._progress.after(decisions)

    def sharing(self, shared: Node) -> Decisions:
        """A node says how its GPUs can be shared from now on."""
        self._fleet.set_sharing(shared.name, shared)
        return self._progress.after(Decisions())

    def seen(self, name: str) -> None:
        """Notes a sign of life of a node."""
        if node := self._fleet.nodes.get(name):
            node.last_seen = self._clock.monotonic()

    def disconnected(self, name: str) -> None:
        """A node's stream broke: nothing new is placed there until it returns."""
        node = self._fleet.nodes.get(name)
        if node and node.state is NodeState.UP:
            node.last_seen = self._clock.monotonic()
            self._fleet.set_state(node, NodeState.AWAY, "its stream ended")

    # time

    def listening(self) -> None:
        """From now on servers can be heard: what they did not say before was no silence."""
        self._fleet.was_away(self._clock.monotonic() - self._made)

    def was_away(self, seconds: float) -> None:
        """The controller itself stood still for so long: nobody else was silent."""
        self._fleet.was_away(seconds)
        self._ledger.event("controller.stalled", "controller", f"stood still for {seconds:.1f} s")

    def lose_silent(self, decisions: Decisions) -> None:
        """Nodes that were silent too long are lost, and their grants end; part of a step."""
        now = self._clock.monotonic()
        for node in self._fleet.nodes.values():
            if node.state is NodeState.LOST or now - node.last_seen < self._node_timeout:
                continue
            decisions.lost.append(node.name)
            silent = f"silent for {now - node.last_seen:.0f} s"
            self._fleet.set_state(node, NodeState.LOST, silent)
            for grant in self._ledger.grants.live_on(node.name):
                why = End(EndCause.NODE_LOST, NODE_LOST)
                if not self._ledger.lose_part(grant, node.name, why):
                    self._ledger.end(grant, why, lost=True)
            self._jobs.replace(node.name, ())
        self._end_broken_jobs()

    # within

    def _end_broken_jobs(self) -> None:
        """Jobs of several nodes of which one is lost, or a GPU is at fault or gone.

        Those that run no more end, and their next process is placed anew, whoever holds them.
        """
        for grant in self._jobs.grants():
            if grant.spans_nodes and not self._ledger.sessions.live_of(grant.id):
                states = {self._fleet.nodes[node].state for node in grant.nodes}
                if NodeState.LOST in states or grant.unknown_places:
                    self._ledger.end(grant, End(EndCause.NODE_LOST, NODE_LOST), lost=True)
                elif why := self._fleet.why_broken(grant):
                    self._ledger.end(grant, End(EndCause.GPU_FAILED, why))

    def _end_faulty(self, gpu: Gpu, decisions: Decisions) -> None:
        for grant in self._ledger.grants.live_on_gpu(gpu.key):
            if failed_gpus.is_elsewhere(grant):
                self._suspending.note(grant)
            elif gpu.fault:
                failed_gpus.end_on(gpu, grant, self._jobs, decisions)
