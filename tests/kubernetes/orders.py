# SPDX-License-Identifier: Apache-2.0
"""Restarts in every order, without restarting everything for each of them.

Used by the tests of what must be withstood. A superpermutation has each order of its letters as
letters side by side: 9 restarts have the 6 orders of three parts, 33 the 24 of four. Of four CI has
13, in which each restarts right behind each other one; SLUICE_KUBERNETES_ORDERS=all has the 33.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import permutations

SHORTEST = {3: "123121321", 4: "123412314231243121342132413214321"}
PAIRS_OF_FOUR = "1234132421431"


def every_order(parts: Sequence[str]) -> list[str]:
    """The parts in a row, in which each order of all of them is a stretch; in CI of two of four."""
    size, row = len(parts), SHORTEST[len(parts)]
    if size == 4 and os.environ.get("SLUICE_KUBERNETES_ORDERS") != "all":
        size, row = 2, PAIRS_OF_FOUR
    found = [parts[int(letter) - 1] for letter in row]
    stretches = {tuple(found[at : at + size]) for at in range(len(found) - size + 1)}
    assert stretches >= set(permutations(parts, size))
    return found
