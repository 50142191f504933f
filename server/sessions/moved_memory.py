# SPDX-License-Identifier: Apache-2.0
"""Where the memory of suspended and moved sessions is, grant by grant, as their workers say.

And whose is on its way in, and takes the room from then on, though its workers say that it is out.
Part of sessions.suspending, which remembers what workers say; sessions.residency reads it, and
writes down whom the arbiter orders in. A worker that was taken over says what it likes, so nothing
is more than its vGPUs have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from sluice.server.sessions.records import Session
from sluice.server.sessions.standing import OUT, Standing


class MovedMemory:
    """Of the sessions of this server."""

    def __init__(
        self, sessions_of: Callable[[str], list[Session]], standing: Mapping[str, Standing]
    ) -> None:
        """`standing`: by session; it is the owner's, and changes."""
        self._sessions_of = sessions_of
        self._standing = standing
        self._coming: Counter[str] = Counter()  # by grant: who has it come in, and is not done

    def begin_coming(self, grant_id: str) -> None:
        """A grant's memory is on its way in, until end_coming() is called as often."""
        self._coming[grant_id] += 1

    def end_coming(self, grant_id: str) -> None:
        """It is in, or stays as it is."""
        self._coming -= Counter([grant_id])

    def is_coming(self, grant_id: str) -> bool:
        """Whether a grant's memory is on its way in."""
        return grant_id in self._coming

    def out_by_gpu(self, grant_id: str) -> dict[str, int]:
        """MiB of a grant that are in host memory, by the UUIDs of all its GPUs here."""
        found: Counter[str] = Counter()
        for session in self._sessions_of(grant_id):
            standing = self._standing.get(session.id) or Standing()
            out = standing.out or (0,) * len(session.places)
            for place, mib in zip(session.places, out, strict=False):
                found[session.vgpus[place].gpu_uuid] += mib if standing.state == OUT else 0
        return dict(found)

    def missing_by_gpu(self, grant_id: str) -> dict[str, int]:
        """MiB that a grant found too few on its GPUs when it was to come in, by their UUIDs."""
        found: Counter[str] = Counter()
        for session in self._sessions_of(grant_id):
            standing = self._standing.get(session.id) or Standing()
            for place, mib in zip(session.places, standing.missing, strict=False):
                vgpu = session.vgpus[place]
                found[vgpu.gpu_uuid] += min(mib, vgpu.memory_mib)
        return dict(found)

    def staying(self, grant_id: str, off: Callable[[Session], bool]) -> list[int]:
        """MiB that stay of each vGPU of a grant all of which is out.

        `off`: a session whose context has left, too; with it goes all but what others have open.
        """
        sessions = self._sessions_of(grant_id)
        found: Counter[int] = Counter()
        for session in sessions:
            standing = self._standing.get(session.id) or Standing()
            stays = standing.exported if off(session) else standing.staying_mib
            for place, mib in zip(session.places, stays, strict=False):
                found[place] += min(mib, session.vgpus[place].memory_mib)
        return [found[place] for place in range(len(sessions[0].vgpus) if sessions else 0)]

    def take_steps(self, grant_id: str) -> str:
        """What the steps of a grant's sessions took since this was asked, in words."""
        told = []
        for session in self._sessions_of(grant_id):
            if (standing := self._standing.get(session.id)) and standing.taken:
                told.append(f"session {session.id}: {', '.join(standing.taken)}")
                standing.taken.clear()
        return "; ".join(told)
