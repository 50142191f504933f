# SPDX-License-Identifier: Apache-2.0
"""Programs that run with and without merged launches, and what their clients say of that."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from static_pool import StaticPool

SENT = re.compile(r"sluice: (\d+) asynchronous commands, (\d+) round trips")
MERGED = re.compile(r"sluice: (\d+) commands merged into (\d+) graphs; left single: (.*)")


class Left(StrEnum):
    """Why commands were left single (native/wire/merge_figures.h)."""

    LATE = "late"
    DIFFERING = "differing"
    CUT_SHORT = "cut short"
    NOT_MADE = "without a graph"
    UNSEEN = "not looked at"
    ANSWERED = "answered"
    LIBRARY = "of libraries"
    OTHER = "of other kinds"


@dataclass(frozen=True)
class MergedFigures:
    """Of one session: its commands, and what became of them."""

    commands: int
    round_trips: int
    replayed: int
    graphs: int
    left: dict[Left, int]


def figures_of(said: str) -> MergedFigures:
    """What a client with SLUICE_STATS printed; the question itself is one more command."""
    sent, merged = SENT.search(said), MERGED.search(said)
    assert sent, said
    assert merged, said
    left = {}
    for one in merged[3].split(", "):
        count, _, why = one.partition(" ")
        left[Left(why)] = int(count)
    waits = int(sent[2]) + 1
    return MergedFigures(int(sent[1]) + waits, waits, int(merged[1]), int(merged[2]), left)


def run_program(
    pool: StaticPool, command: Sequence[str | Path], how: str, seconds: int = 240
) -> subprocess.CompletedProcess[str]:
    """To its end, which must be a good one, with statistics."""
    done = subprocess.run(
        [str(word) for word in command],
        env=pool.environment(SLUICE_MERGE=how, SLUICE_STATS="1"),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
