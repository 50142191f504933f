# SPDX-License-Identifier: Apache-2.0
"""In which states the pool's records can be.

Part of model, by which the rest of the controller has them; their values are stored.
"""

from __future__ import annotations

from enum import StrEnum


class NodeState(StrEnum):
    """UP has a stream; AWAY lost it moments ago; LOST was silent for too long."""

    UP = "up"
    AWAY = "away"
    LOST = "lost"


class SessionState(StrEnum):
    """OPENING is granted but its client is not there yet."""

    OPENING = "opening"
    RUNNING = "running"
    ENDED = "ended"


class SwitchStep(StrEnum):
    """How far a GPU is that drains or returns.

    WAITING for grants and reservations; HANDING_OVER by its node; STUCK, as its node says: what
    fails is tried again. NONE is one that does neither, or whose node has to be told anew.
    """

    NONE = ""
    WAITING = "waiting"
    HANDING_OVER = "handing-over"
    STUCK = "stuck"


class GpuMode(StrEnum):
    """POOLED is shared out; DRAINING takes nothing new; DRAINED is empty; NATIVE is one VM's alone.

    RETURNING is on its way back to the pool: its node has yet to report it.
    """

    POOLED = "pooled"
    DRAINING = "draining"
    DRAINED = "drained"
    NATIVE = "native"
    RETURNING = "returning"


class ReservationState(StrEnum):
    """A reservation WAITS in the queue, HOLDS its vGPUs, or has ENDED."""

    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


class ShareKeeping(StrEnum):
    """Whether a node holds vGPUs to their shares of its GPUs' time.

    UNKNOWN is an older server's; OFF its operator's word; AWAY for as long as its arbiter is.
    """

    UNKNOWN = "unknown"
    KEPT = "kept"
    OFF = "off"
    AWAY = "away"


class OwnerKind(StrEnum):
    """Whose processes draw on a reservation."""

    VM = "vm"
    PROJECT = "project"
    LABEL = "label"


class GrantState(StrEnum):
    """A grant counts against its GPUs while it is LIVE."""

    LIVE = "live"
    ENDED = "ended"
