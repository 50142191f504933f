# SPDX-License-Identifier: Apache-2.0
"""Grants suspended, moved, failed and forgotten at random: the books hold, and nobody is stuck."""

from __future__ import annotations

import os
import random

import pytest
from suspension_model import Model

SEED = int(os.environ.get("SLUICE_MODEL_SEED", "0"))
RUNS, STEPS = 20, 300


@pytest.mark.parametrize("run", range(1 if SEED else RUNS))
def test_whatever_happens_in_whatever_order_the_books_hold(run: int) -> None:
    seed = SEED or random.SystemRandom().getrandbits(31)
    model = Model(seed)
    try:
        for _ in range(STEPS):
            model.step()
            model.check()
        model.calm_down()
    except AssertionError as wrong:
        raise AssertionError(f"SLUICE_MODEL_SEED={seed}: {wrong}\n{model.done[-40:]}") from wrong
