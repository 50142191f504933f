# SPDX-License-Identifier: Apache-2.0
"""How a step of the pool becomes an answer: what cannot be is a problem document.

Used by every module of handlers that changes something.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.controller.api.problems import Problem, not_found
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.impossible import Impossible, Outdated, Over, Unknown
from sluice.controller.store.store import StoreError
from sluice.resources.problem_types import ProblemType

_OVER = {"grant": ProblemType.GRANT_ENDED, "reservation": ProblemType.RESERVATION_OVER}


def problem_of(error: Impossible | Unknown | Outdated) -> Problem:
    """What the pool could not do, as a problem."""
    if isinstance(error, Unknown):
        return not_found(error.kind, error.name)
    if isinstance(error, Outdated):
        return Problem(412, ProblemType.GENERATION_CHANGED, str(error))
    kind = _OVER[error.kind] if isinstance(error, Over) else ProblemType.NOT_POSSIBLE
    return Problem(409, kind, str(error))


async def carried_out(grant_service: GrantService, decide: Callable[[], Decisions]) -> None:
    """Takes a step; what cannot be is a problem document, what is not stored an error."""
    try:
        stored = await grant_service.step(decide)
    except (Impossible, Unknown, Outdated) as error:
        raise problem_of(error) from None
    if not stored:
        raise StoreError(f"it is done, but not stored yet: {grant_service.trouble}")
