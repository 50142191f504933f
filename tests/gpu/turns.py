# SPDX-License-Identifier: Apache-2.0
"""Programs that are warm and measure in turns, each between two of the one it is held against.

Used by delays.py. A machine may be half as fast a minute later, so figures are compared only with
those of just before and just after. The programs are tenants (tenants.py), of which one works and
the others wait for their input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenants import LATE_SECONDS, Said, Tenant


def order(base: str, others: Sequence[str], number: int) -> list[str]:
    """Who has a turn in a round: the base before and after each other.

    The others begin with another one in each round, and go back and forth.
    """
    first = number % len(others)
    turned = [*others[first:], *others[:first]][:: -1 if number % 2 else 1]
    return [base, *(name for other in turned for name in (other, base))]


def take_turns(tenants: Mapping[str, Tenant], names: Sequence[str], task: Said) -> list[Said]:
    """What each of them says to the task, one after the other; raises TenantFailed."""
    said = []
    for name in names:
        tenants[name].tell(task)
        said.append(tenants[name].answer(task["lead"] + task["seconds"] + LATE_SECONDS))
    return said


def of_neighbours(names: Sequence[str], rates: Sequence[float]) -> dict[str, float]:
    """The mean of the base's rates before and after each other; `names` are order()'s."""
    return {names[at]: (rates[at - 1] + rates[at + 1]) / 2 for at in range(1, len(names) - 1, 2)}
