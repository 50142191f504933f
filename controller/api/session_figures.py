# SPDX-License-Identifier: Apache-2.0
"""What a session used, as JSON: made from what its node says, which is a peer's word.

Used by session_routes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import BaseModel, Field

from sluice.controller.api.schemas import Time, time_of
from sluice.rpc import pool_pb2 as rpc

MOST_STEPS = 1000
MOST_FIGURE = 1e18
MOST_TIME = 4_102_444_800.0  # 2100


class SessionStep(BaseModel):
    """What a session used in a step of some 15 seconds, per second of it."""

    time: Time = Field(description="when the step ended")
    gpus: float = Field(description="of GPUs' time, as a number of GPUs")
    memory_mib: float = Field(description="of its vGPUs' memory, at the step's end")
    commands: float
    round_trips: float
    received_bytes: float = Field(description="from its client")
    sent_bytes: float = Field(description="to its client")


class SessionFigures(BaseModel):
    """The last hour of a session, oldest first."""

    steps: list[SessionStep]


def session_figures(steps: Sequence[rpc.SessionStep]) -> SessionFigures:
    """A node's steps as JSON."""
    return SessionFigures(steps=[_step(step) for step in steps[-MOST_STEPS:]])


def _step(step: rpc.SessionStep) -> SessionStep:
    def sane(value: float, most: float = MOST_FIGURE) -> float:
        """What cannot be is nothing."""
        return value if math.isfinite(value) and 0 <= value < most else 0.0

    return SessionStep(
        time=time_of(sane(step.time, MOST_TIME)),
        gpus=sane(step.gpus),
        memory_mib=sane(step.memory_mib),
        commands=sane(step.commands),
        round_trips=sane(step.round_trips),
        received_bytes=sane(step.received_bytes),
        sent_bytes=sane(step.sent_bytes),
    )
