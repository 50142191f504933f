# SPDX-License-Identifier: Apache-2.0
"""Which suspended sessions may come back on another GPU of their node, and where: pure decisions.

Used by sessions.suspending, which says so of each that is suspended, and by sessions.contexts,
which has the driver restore it there. What was seen on a card is in docs/decisions/0012: a process
comes back on another GPU where it sees both, and all that it sees are named; it hangs where it does
not. So a worker of a session that may move sees all GPUs of its model (workers.warm), its own
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.server.sessions.records import Session
from sluice.server.sessions.standing import Standing


@dataclass(frozen=True, slots=True)
class Moves:
    """The GPUs that a suspended grant may come back on beside its own; none: why not."""

    gpus: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class MoveRules:
    """`enabled`: [suspend] movable; `is_away`: a GPU that this server has let go."""

    enabled: bool = False
    is_away: Callable[[str], bool] = lambda uuid: False

    def of(
        self,
        sessions: Sequence[Session],
        standings: Mapping[str, Standing],
        why_there: str | None,
    ) -> Moves:
        """Of the sessions of a grant that is suspended.

        `why_there`: their contexts are on their GPUs still, and why in words; None: they are off.
        """
        if why := self._why_not(sessions, standings, why_there):
            return Moves(why_not=why)
        own = {gpu_of(session) for session in sessions}
        first, *others = (session.worker.record.sees for session in sessions)
        there = tuple(
            uuid
            for uuid in first
            if uuid not in own and not self.is_away(uuid) and all(uuid in each for each in others)
        )
        return Moves(there) if there else Moves(why_not="its node has lent the others away")

    def _why_not(
        self,
        sessions: Sequence[Session],
        standings: Mapping[str, Standing],
        why_there: str | None,
    ) -> str:
        if not self.enabled:
            return "[suspend] movable of its node is off"
        if any(len({vgpu.gpu_uuid for vgpu in session.vgpus}) != 1 for session in sessions):
            return "it is on several GPUs"
        if not all(session.worker.record.beside for session in sessions):
            return (
                "its worker sees no other GPU: there is none of its model, or it was started "
                "before [suspend] movable was on"
            )
        if why_there is not None:
            return f"its context is on its GPU{': ' if why_there else ''}{why_there}"
        if any(sum((standings.get(s.id) or Standing()).exported) for s in sessions):
            return "other processes may have memory of it open, which stays on its GPU"
        return ""


NONE_MOVES = MoveRules()


def gpu_of(session: Session) -> str:
    """The one GPU that a session is on; "": it is on several."""
    uuids = {session.vgpus[place].gpu_uuid for place in session.places}
    return uuids.pop() if len(uuids) == 1 else ""


def exchanged(sees: Sequence[str], own: str, other: str) -> dict[str, str]:
    """Where what is on each GPU that a process sees is to be, so that it is on another than now.

    All of them are named, each once on either side, as the driver wants it.
    """
    swapped = {own: other, other: own}
    return {uuid: swapped.get(uuid, uuid) for uuid in sees}
