# SPDX-License-Identifier: Apache-2.0
"""What each vGPU of this host has had of its GPU's time, and how long it waited: sums and shares.

Owned by sessions.figures, which tells of sessions and of what their workers say; read by it for
/metrics, by sessions.time_reports for the controller and by sessions.use_watch. No I/O, and the
clock is injected. The time that a vGPU used is what its workers measured, never more than passed
meanwhile: a worker that was taken over may say what it likes and spoils its own vGPU's figures
only. How long it waited is the arbiter's figure. It promises that sums never fall while a grant has
sessions here. Seconds, shares of one GPU from 0 to 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

SHORT_SECONDS = 1.0
LONG_SECONDS = 60.0


class UseWindow:
    """How a sum grew in the last minute."""

    def __init__(self, now: float, used: float) -> None:
        self._samples: deque[tuple[float, float]] = deque([(now, used)])

    def add(self, now: float, used: float) -> None:
        """The sum stands so now; what is said twice at a time counts once."""
        if now <= self._samples[-1][0]:
            now, _ = self._samples.pop()
        self._samples.append((now, used))
        while len(self._samples) > 2 and self._samples[1][0] <= now - LONG_SECONDS:
            self._samples.popleft()

    def share(self, seconds: float) -> float:
        """Its growth per second over so long before the last sample, or since the first."""
        now, used = self._samples[-1]
        later, used_later = now, used
        for time, before in reversed(self._samples):
            if time <= now - seconds:
                # between two samples it is taken to have grown evenly
                part = (now - seconds - time) / (later - time) if later > time else 0.0
                return _ratio(used - before - part * (used_later - before), seconds)
            later, used_later = time, before
        return _ratio(used - used_later, now - later)


@dataclass(slots=True)
class VgpuTime:
    """One vGPU: which of its grant's it is, and what it has had."""

    grant_id: str
    place: int  # in the grant
    gpu: str  # UUID
    began: float  # its oldest session
    before: float  # what it had used when this server first heard of it
    used: float
    window: UseWindow
    sessions: set[str] = field(default_factory=set)
    waited: float = 0.0
    waited_before: float = 0.0  # as `before`
    turns: int = 0
    turns_before: int = 0
    held: float = 0.0  # its turns, also while nobody else wanted the GPU
    together: float = 0.0  # of those held: at once with others
    together_before: float = 0.0
    in_turns: bool = False  # the arbiter knows it, and answered the last time
    adopted: bool = False  # of an earlier server: how long it had waited, the arbiter says
    waited_known: bool = True
    heard: bool = False  # since the last look
    share_1s: float = 0.0
    share_60s: float = 0.0
    elsewhere: dict[str, float] = field(default_factory=dict)  # counted on a GPU before this one

    def count(self, seconds: float, now: float) -> None:
        """It used so much more, as far as there was time for it."""
        self.used = max(self.used, min(self.used + seconds, now - self.began))
        self.heard = True


@dataclass(frozen=True, slots=True)
class TenantTime:
    """What the arbiter says of a grant, since the grant's first session joined it."""

    held: float
    waited: float
    turns: int
    overdue: float = 0.0  # since its last turn was over, while it has not given that back
    together: float = 0.0  # of those held: at once with others


@dataclass(slots=True)
class _Session:
    vgpus: dict[int, VgpuTime]  # by its own index of them
    said: dict[int, float]  # what its worker has measured of each so far


class VgpuTimes:
    """Every vGPU that has a session here."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic."""
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._tenants: dict[str, TenantTime] = {}
        self.vgpus: dict[tuple[str, int], VgpuTime] = {}  # by grant and place

    def begin(
        self,
        session_id: str,
        grant_id: str,
        gpus: Mapping[int, str],
        said: Mapping[int, float] | None = None,
        age: float = 0.0,
    ) -> None:
        """A session has vGPUs, by their places in its grant.

        One that ran before, for `age` seconds, had used what its worker `said` of each of them, by
        its own index.
        """
        now = self._clock()
        session = _Session({}, dict(said or {}))
        for index, (place, gpu) in enumerate(gpus.items()):
            used = min(max(0.0, session.said.get(index, 0.0)), max(0.0, age))
            key = grant_id, place
            if vgpu := self.vgpus.get(key):  # another of its job
                vgpu.began = min(vgpu.began, now - age)
                vgpu.before, vgpu.used = vgpu.before + used, vgpu.used + used
                if used:
                    vgpu.window = UseWindow(now, vgpu.used)
            else:
                window = UseWindow(now, used)
                self.vgpus[key] = VgpuTime(grant_id, place, gpu, now - age, used, used, window)
            if said is not None:
                self.vgpus[key].adopted, self.vgpus[key].waited_known = True, False
            session.vgpus[index] = self.vgpus[key]
            self.vgpus[key].sessions.add(session_id)
        self._sessions[session_id] = session

    def hear(self, session_id: str, said: Mapping[int, float]) -> None:
        """Its worker has measured so many seconds of each of its vGPUs, since the session began."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        now = self._clock()
        for index, seconds in said.items():
            if vgpu := session.vgpus.get(index):
                last = session.said.get(index, 0.0)
                vgpu.count(max(0.0, seconds - last), now)
                session.said[index] = max(last, seconds)

    def hear_arbiter(self, tenants: Mapping[str, TenantTime]) -> None:
        """What the arbiter says of every grant; one that was started anew begins at nothing."""
        now = self._clock()
        for vgpu in self.vgpus.values():
            said = tenants.get(vgpu.grant_id)
            vgpu.in_turns = said is not None
            if said is None:
                continue
            last = self._tenants.get(vgpu.grant_id)
            fell = last is not None and (said.waited < last.waited or said.turns < last.turns)
            since = TenantTime(0.0, 0.0, 0) if last is None or fell else last
            waited = min(vgpu.waited + said.waited - since.waited, now - vgpu.began)
            vgpu.waited = max(vgpu.waited, waited)
            vgpu.held += max(0.0, said.held - since.held)
            vgpu.turns += said.turns - since.turns
            vgpu.together += max(0.0, said.together - since.together)
            if last is None and vgpu.adopted:
                vgpu.waited_before, vgpu.turns_before = vgpu.waited, vgpu.turns
                vgpu.together_before = vgpu.together
            vgpu.waited_known = True
        here = {grant_id for grant_id, _ in self.vgpus}
        self._tenants = {name: time for name, time in tenants.items() if name in here}

    def arbiter_is_silent(self) -> None:
        """It did not answer: everybody may run without turns by now."""
        for vgpu in self.vgpus.values():
            vgpu.in_turns = False

    def look(self) -> list[VgpuTime]:
        """Reckons the shares of those that were heard of since the last time; returns them."""
        now = self._clock()
        found = [vgpu for vgpu in self.vgpus.values() if vgpu.heard]
        for vgpu in found:
            vgpu.heard = False
            vgpu.window.add(now, vgpu.used)
            vgpu.share_1s = vgpu.window.share(SHORT_SECONDS)
            vgpu.share_60s = vgpu.window.share(LONG_SECONDS)
        return found

    def of(self, session_id: str) -> Iterable[VgpuTime]:
        """A session's vGPUs."""
        session = self._sessions.get(session_id)
        return session.vgpus.values() if session else ()

    def said_by(self, session_id: str) -> list[tuple[VgpuTime, float]]:
        """A session's vGPUs, with the seconds that its worker says it used of each."""
        session = self._sessions.get(session_id)
        found = session.vgpus.items() if session else ()
        return [(vgpu, session.said.get(index, 0.0)) for index, vgpu in found if session]

    def end(self, session_id: str) -> list[VgpuTime]:
        """A session is over; returns those of its vGPUs that no other session has."""
        session = self._sessions.pop(session_id, None)
        gone = []
        for vgpu in session.vgpus.values() if session else ():
            vgpu.sessions.discard(session_id)
            if not vgpu.sessions:
                gone.append(self.vgpus.pop((vgpu.grant_id, vgpu.place)))
        return gone


def _ratio(used: float, seconds: float) -> float:
    return min(1.0, max(0.0, used / seconds)) if seconds > 0 else 0.0
