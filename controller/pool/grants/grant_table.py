# SPDX-License-Identifier: Apache-2.0
"""The records of grants, and the orders in which they are looked up.

Owned by ledger.GrantLedger, which says when one begins, moves and ends; read through it and through
pool.Pool. It promises that a grant is found on a node or GPU exactly while it is placed there, and
that of ended ones the newest are remembered.
"""

from __future__ import annotations

from collections import defaultdict

from sluice.controller.pool.model import GpuKey, Grant, GrantState
from sluice.controller.pool.ordered import Ordered


class GrantTable:
    """Every grant, ended ones too."""

    def __init__(self, ended_kept: int) -> None:
        self._ended_kept = ended_kept
        self.records: dict[str, Grant] = {}
        self.in_order: Ordered[Grant] = Ordered()  # by age, then id
        self._live_on: dict[str, dict[str, Grant]] = defaultdict(dict)
        self._live_on_gpu: dict[GpuKey, dict[str, Grant]] = defaultdict(dict)
        self._live_of: dict[str, dict[str, Grant]] = defaultdict(dict)  # by project
        self._ended: dict[str, None] = {}  # ids of ended grants, oldest first

    def get(self, grant_id: str) -> Grant | None:
        """One grant, if it is remembered."""
        return self.records.get(grant_id)

    def is_live(self, grant_id: str) -> bool:
        """Whether there is such a grant and it has not ended."""
        grant = self.records.get(grant_id)
        return grant is not None and grant.state is GrantState.LIVE

    def live_on(self, node: str) -> list[Grant]:
        """The live grants that have a vGPU on a node."""
        return list(self._live_on.get(node, {}).values())

    def live_on_gpu(self, key: GpuKey) -> list[Grant]:
        """The live grants that have a vGPU there."""
        return list(self._live_on_gpu.get(key, {}).values())

    def live_of(self, project: str) -> list[Grant]:
        """A project's live grants; of "" those that are nobody's in particular."""
        return list(self._live_of.get(project, {}).values())

    def ended(self) -> list[Grant]:
        """The ended grants that are remembered."""
        return [self.records[grant_id] for grant_id in self._ended]

    def put(self, grant: Grant) -> None:
        """A grant that is new, or of which a server knows better."""
        self._ended.pop(grant.id, None)
        if known := self.records.get(grant.id):
            self.in_order.drop((known.created, known.id))
        self.records[grant.id] = grant
        self.in_order.put((grant.created, grant.id), grant)

    def place(self, grant: Grant) -> None:
        """It lives where its vGPUs are."""
        for found in self._places(grant):
            found[grant.id] = grant

    def displace(self, grant: Grant) -> None:
        """It does no longer, or not with these vGPUs."""
        for found in self._places(grant):
            found.pop(grant.id, None)

    def put_ended(self, grant: Grant) -> None:
        """It is the one that ended last."""
        self._ended[grant.id] = None

    def forget_old(self) -> list[Grant]:
        """Of ended ones only the newest are remembered; returns the others."""
        forgotten = []
        while len(self._ended) > self._ended_kept:
            grant_id = next(iter(self._ended))
            del self._ended[grant_id]
            grant = self.records.pop(grant_id)
            self.in_order.drop((grant.created, grant_id))
            forgotten.append(grant)
        return forgotten

    def _places(self, grant: Grant) -> list[dict[str, Grant]]:
        nodes = [self._live_on[node] for node in grant.nodes]
        gpus = (self._live_on_gpu[key] for key, _ in grant.placed())
        return [self._live_of[grant.project], *nodes, *gpus]
