# SPDX-License-Identifier: Apache-2.0
"""Where the memory of grants is: on their GPUs or in host memory, as their nodes report it.

Owned by ledger.GrantLedger; rpc.node_service takes reports in. Kept in memory only: a controller
that begins hears of all of it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.controller.pool.model import Grant


@dataclass(frozen=True, slots=True)
class GrantMemory:
    """A node's figures of one grant, since its first session there began."""

    grant_id: str
    resident_mib: int
    swapped_mib: int
    moves: int
    waited: float  # seconds with work, for memory
    why: str = ""  # what it waits for; empty: it does not


class GrantMemories:
    """Every grant of whose memory its node has told."""

    def __init__(self) -> None:
        self._of: dict[str, GrantMemory] = {}

    def of(self, grant_id: str) -> GrantMemory | None:
        """One grant's; None where its node has said nothing."""
        return self._of.get(grant_id)

    def take(self, grant: Grant, report: GrantMemory) -> None:
        """What the node of a live grant says."""
        self._of[grant.id] = report

    def forget(self, grant_id: str) -> None:
        """The grant has ended."""
        self._of.pop(grant_id, None)

    def sums(self) -> tuple[int, int]:
        """MiB on the GPUs and in host memory, of all that nodes have told of."""
        return (
            sum(each.resident_mib for each in self._of.values()),
            sum(each.swapped_mib for each in self._of.values()),
        )
