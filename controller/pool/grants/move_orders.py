# SPDX-License-Identifier: Apache-2.0
"""Grants are to go on on another GPU of their node: as operators ask, or as their GPU is drained.

Part of pool.Pool. An order is a suspension after which the grant comes back there
(suspending.Suspending, Grant.moving_to); it promises that nothing is suspended for a place that has
no room at the time, and that what does not move, as its server says, is not tried for a drain
again.
"""

from __future__ import annotations

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.moving import MovePlaces, at
from sluice.controller.pool.grants.suspending import Suspending
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import GpuKey, Grant
from sluice.resources.suspended_contexts import ContextPlace


class MoveOrders:
    """Who is to move, and where."""

    def __init__(
        self, suspending: Suspending, places: MovePlaces, ledger: GrantLedger, jobs: Jobs
    ) -> None:
        self._suspending = suspending
        self._places = places
        self._ledger = ledger
        self._jobs = jobs

    def move(self, grant_id: str, uuid: str, why: str, decisions: Decisions) -> Grant:
        """Has a grant go on on another GPU of its node, the one that is named or any with room.

        One that runs is suspended, moved and resumed; part of a step. Raises Impossible, Unknown.
        """
        grant = self._suspending.live(grant_id)
        if problem := self._suspending.never(grant) or self._places.why_never(grant):
            raise Impossible(problem)
        if grant.suspension is SuspensionState.RESUMING:
            raise Impossible(f"grant {grant_id} is coming back; try again")
        contexts = grant.contexts
        if contexts and contexts.place is ContextPlace.STAYS:
            raise Impossible(f"grant {grant_id} cannot be moved: {contexts.moves_not}")
        uuid = uuid or self._anywhere(grant)
        if problem := self._places.why_not(grant, at(self._suspending.when_it_runs(grant), uuid)):
            raise Impossible(problem)
        if grant.suspension is SuspensionState.NONE:
            self._suspending.begin(grant_id, why, decisions, resumes=True, moving_to=uuid)
        else:
            self._suspending.want_back(grant_id)
        self._suspending.send_to(grant, uuid, why)
        return grant

    def move_away(self, key: GpuKey, decisions: Decisions) -> None:
        """Has what can be moved leave a GPU that takes nothing new; part of a step."""
        for grant in self._ledger.grants.live_on_gpu(key):
            if grant.id in self._suspending.fixed or self._jobs.is_ending(grant):
                continue
            if not self._suspending.is_suspendable(grant) or self._places.why_never(grant):
                continue
            if self._places.among(grant, self._suspending.when_it_runs(grant)):
                self.move(grant.id, "", f"GPU {key} is drained", decisions)

    def _anywhere(self, grant: Grant) -> str:
        """The fullest GPU that has room for it. Raises Impossible."""
        there = self._places.among(grant, self._suspending.when_it_runs(grant))
        if not there:
            raise Impossible(
                f"no other GPU of node {grant.node} has room for grant {grant.id}: `sluice gpu "
                "list` has what is free"
            )
        return there[0][0].gpu_uuid
