# SPDX-License-Identifier: Apache-2.0
"""What history is kept of: names of series, their values, and the three spans.

Used by sampling, history_file, keeper and the console's charts.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple


class Span(StrEnum):
    """How far back."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class Tier(NamedTuple):
    """How long one value stands for, and how many are kept: then the oldest is written over."""

    seconds: int
    slots: int


#: 15 seconds for an hour, minutes for a day, hours for a month.
TIERS: dict[Span, Tier] = {
    Span.HOUR: Tier(15, 240),
    Span.DAY: Tier(60, 1440),
    Span.MONTH: Tier(3600, 720),
}
STEP_SECONDS = TIERS[Span.HOUR].seconds

POOL = "pool"
FIELDS = 4


class Values(NamedTuple):
    """Of a GPU, node, project or the pool, as means over a step; not a number: it is not known."""

    used: float  # of GPUs' time, as a number of GPUs
    compute: float  # promised, as a number of GPUs
    memory_mib: float  # promised, with what contexts take
    vgpus: float


ABSENT = Values(*(math.nan,) * FIELDS)


class Point(NamedTuple):
    """A step: when it began, in seconds since the epoch, and its values."""

    time: int
    values: Values


def of_gpu(node: str, uuid: str) -> str:
    """The name of a GPU's series."""
    return f"gpu:{node}:{uuid}"


def of_node(name: str) -> str:
    """The name of a node's series."""
    return f"node:{name}"


def of_project(name: str) -> str:
    """The name of a project's series."""
    return f"project:{name}"
