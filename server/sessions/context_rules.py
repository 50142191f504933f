# SPDX-License-Identifier: Apache-2.0
"""Which suspended sessions' contexts may leave their GPUs: pure decisions for sessions.contexts.

What was seen on a card is in docs/decisions/0012: a restore needs more room than the checkpoint
gave back, and is lost for good where there is none; a process that has another's memory open is
never restored. So what is not known to come back does not leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.resources.suspended_contexts import Stays
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.sessions.records import Session, run_at_once
from sluice.server.sessions.standing import Standing

#: What stays of a context that has left: 3 MiB on an H100 (driver 580).
LEFT_MIB = 4
#: A restore comes before a session's memory does, whose room is its margin then: a restore into
#: exactly what had been given back failed on an H100, and half of a context more is ample.
ROOM_MIB = 256
SOFTWARE_ROOM_MIB = 8
#: Of what NVIDIA's libraries took, arrays and code: the driver moves them slowly (2 GiB/s), and
#: into the worker's own memory.
MOST_LEFT_MIB = 1024


@dataclass(frozen=True, slots=True)
class Found:
    """Stays.NONE: nothing is in the way."""

    why: Stays
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """`enabled`: [suspend] checkpoint_contexts. `host_left_mib`: what a worker may take more."""

    enabled: bool
    host_left_mib: Callable[[Session], int | None] = lambda _: None

    def why_not(
        self,
        sessions: Sequence[Session],
        standing: Mapping[str, Standing],
        gpus: Sequence[LocalGpu],
        *,
        promised: bool,
    ) -> Found:
        """Why none of these sessions' contexts may leave."""
        overheads = {gpu.uuid: gpu.context_overhead_mib for gpu in gpus}
        software = {gpu.uuid for gpu in gpus if gpu.software}
        if not self.enabled:
            return Found(Stays.OFF)
        if promised:
            return Found(Stays.PROMISED_TWICE)
        for session in sessions:
            found = self._why_not(session, standing[session.id], overheads, software)
            if found.why is not Stays.NONE:
                return found
        return Found(Stays.NONE)

    def _why_not(
        self,
        session: Session,
        standing: Standing,
        overheads: Mapping[str, int],
        software: set[str],
    ) -> Found:
        at = f"session {session.id}"
        uuids = {session.vgpus[place].gpu_uuid for place in session.places}
        if not standing.tells_ties:
            return Found(Stays.OLD_WORKER, at)
        if standing.tie:
            return Found(standing.tie, at)
        if run_at_once(session.vgpus):
            return Found(Stays.MPS, at)
        if not any(overheads.get(uuid) for uuid in uuids):
            return Found(Stays.NOTHING_BOOKED)
        if (moved := sum(standing.out)) < (room := room_mib(software=uuids <= software)):
            return Found(Stays.LITTLE_MEMORY, f"{at}: {moved} MiB are out, and {room} are needed")
        left = left_mib(standing, overheads, session)
        most = MOST_LEFT_MIB + sum(overheads.get(uuid, 0) for uuid in uuids)
        if left > most:
            return Found(Stays.MUCH_LEFT, f"{at}: {left} MiB, and at most {most} are moved")
        free = self.host_left_mib(session)
        if free is not None and free < left:
            return Found(
                Stays.HOST_MEMORY,
                f"{at}: it may take {max(0, free)} MiB more of the host's memory ([server] "
                f"session_memory_mib), and {left} would be needed",
            )
        return Found(Stays.NONE)


def room_mib(*, software: bool) -> int:
    """What has to be free beyond a context for it to come back."""
    return SOFTWARE_ROOM_MIB if software else ROOM_MIB


def left_mib(standing: Standing, overheads: Mapping[str, int], session: Session) -> int:
    """What the driver would move to the host of a session that is out: context and rest."""
    uuids = {session.vgpus[place].gpu_uuid for place in session.places}
    return sum(standing.staying_mib) + sum(overheads.get(uuid, 0) for uuid in uuids)
