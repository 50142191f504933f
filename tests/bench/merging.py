# SPDX-License-Identifier: Apache-2.0
"""What it costs a program that never repeats that launches might be merged, beside not merging.

Drained launches, each of a grid of its own, into a null back end: `off` and `auto` take turns, in
pairs, and what is said is the median of the pairs' ratios. Called by bench.py, whose server it
uses.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from figure import Figure

PAIRS = 75
#: At most so much slower, as a ratio.
MOST = 1.01

Run = Callable[[str], dict[str, float]]


def merging_figures(run: Run) -> list[Figure]:
    """`run` runs the launches with SLUICE_MERGE set to what it is given."""
    off: list[float] = []
    auto: list[float] = []
    for pair in range(PAIRS):
        for how in ("off", "auto") if pair % 2 else ("auto", "off"):
            (off if how == "off" else auto).append(run(how)["launch_drained_us"])
    ratios = [ours / theirs for ours, theirs in zip(auto, off, strict=True)]
    spread = (min(ratios), max(ratios))
    return [
        Figure(
            "merge_off_cost", median(ratios), "ratio", limit=MOST, better="lower", spread=spread
        ),
        Figure(
            "never_repeating_launch_us",
            median(auto),
            "us",
            floor=median(off),
            floor_of="SLUICE_MERGE=off",
            spread=(min(auto), max(auto)),
        ),
    ]
