# SPDX-License-Identifier: Apache-2.0
"""How a grant gives way to a request: it is suspended where that can be, or ends.

Made by pool.Pool for queue.claims and gpus.modes (preemption.Yield).
"""

from __future__ import annotations

from sluice.controller.pool.decisions import Decisions, end_orders
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.suspending import Suspending
from sluice.controller.pool.model import Grant
from sluice.resources.ends import End


class Ending:
    """The Yield of a pool that does not suspend: the work ends with a CUDA error."""

    def __init__(self, ledger: GrantLedger) -> None:
        self._ledger = ledger

    def ask(self, grant: Grant, why: End, decisions: Decisions) -> None:
        """Has the server end it; nobody joins it any more."""
        self._ledger.end_soon(grant, why)
        decisions.ends += end_orders(grant, why)

    def spares(self, grant: Grant) -> bool:
        """It ends whomever it asks."""
        del grant
        return False


class SuspendingOrEnding:
    """The Yield of a pool that suspends whom it can, and ends who cannot be suspended."""

    def __init__(self, suspending: Suspending, ending: Ending) -> None:
        self._suspending = suspending
        self._ending = ending

    def ask(self, grant: Grant, why: End, decisions: Decisions) -> None:
        """Has the server suspend it, if that can be."""
        if self.spares(grant):
            self._suspending.begin(grant.id, why.text, decisions, resumes=True)
        else:
            self._ending.ask(grant, why, decisions)

    def spares(self, grant: Grant) -> bool:
        """Whether it would be suspended, and not ended."""
        return self._suspending.is_suspendable(grant)
