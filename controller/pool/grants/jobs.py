# SPDX-License-Identifier: Apache-2.0
"""Jobs: grants that several sessions share, and for how long one without sessions is kept.

Called by the parts of pool.Pool only. A job is the hash of its token and who presents it. It is
held by its launchers (`sluice run --share`), as their nodes report them or as their open requests
show. The rule: a job's grant goes back when it has no session and nobody holds it, at once when its
launcher was seen to end, else after a grace, in which a launcher that lost its server or its
controller comes back, and in which a job without launcher starts its next process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import Clock, Grant, Session, Vgpu
from sluice.resources.ends import End, EndCause

#: How the domains begin that the controller itself gives, to who comes over the network; servers
#: name their users, VMs and claims.
PROJECT_DOMAIN, ADDRESS_DOMAIN = "project ", "net "


def network_domain(project: str | None, address: str) -> str:
    """Who may join a job over the network: its project's clients, or else those of its address."""
    return f"{PROJECT_DOMAIN}{project}" if project else f"{ADDRESS_DOMAIN}{address}"


@dataclass(frozen=True, slots=True)
class JobKey:
    """A job; `domain` is empty for what is none."""

    job: str
    domain: str


def key_of(asked: GrantRequest | Grant) -> JobKey | None:
    """The job of a request or a grant; None if it has none."""
    return JobKey(asked.job, asked.job_domain) if asked.job else None


class Jobs:
    """Live grants of jobs, and who holds them."""

    def __init__(self, clock: Clock, linger_seconds: float) -> None:
        self._clock = clock
        self._linger = linger_seconds
        self._grants: dict[JobKey, Grant] = {}
        #: By id: those whose job got another while they were given up for lost.
        self._replaced: dict[str, Grant] = {}
        self._holders: dict[JobKey, set[str]] = {}
        self._released: set[JobKey] = set()
        self._idle_since: dict[JobKey, float] = {}
        self._ending: dict[str, End] = {}  # by the grant's id

    # grants

    def add(self, grant: Grant) -> None:
        """A job's grant lives; one that is adopted does not take a newer one's place."""
        if (key := key_of(grant)) and self._grants.setdefault(key, grant) is not grant:
            self._replaced[grant.id] = grant

    def remove(self, grant: Grant) -> None:
        """It has ended."""
        self._ending.pop(grant.id, None)
        self._replaced.pop(grant.id, None)
        if (key := key_of(grant)) and self._grants.get(key) is grant:
            del self._grants[key]
            self._released.discard(key)
            self._idle_since.pop(key, None)

    def grants(self) -> list[Grant]:
        """Every live grant of a job."""
        return [*self._grants.values(), *self._replaced.values()]

    @property
    def are_none(self) -> bool:
        """Whether no live grant is a job's."""
        return not self._grants and not self._replaced

    def grant_of(self, request: GrantRequest) -> Grant | None:
        """The live grant that the request belongs to."""
        key = key_of(request)
        return self._grants.get(key) if key else None

    def foreign(self, request: GrantRequest) -> bool:
        """Whether the token's job is somebody else's."""
        return bool(request.job) and any(
            key.job == request.job and key.domain != request.job_domain for key in self._grants
        )

    # holds

    def hold(self, key: JobKey, holder: str) -> None:
        """A launcher lives; `holder` is the node that sees it, or its own name."""
        self._holders.setdefault(key, set()).add(holder)
        self._released.discard(key)

    def is_held(self, grant: Grant) -> bool:
        """Whether a launcher lives for whom a grant is kept."""
        key = key_of(grant)
        return key in self._holders and grant.id not in self._ending | self._replaced.keys()

    def release(self, key: JobKey, holder: str) -> None:
        """The last launcher there has been seen to end."""
        if self._drop(key, holder) and key in self._grants and key not in self._holders:
            self._released.add(key)

    def replace(self, holder: str, keys: Iterable[JobKey]) -> None:
        """A node came back and says what is held there."""
        held = set(keys)
        for key in [key for key, holders in self._holders.items() if holder in holders]:
            if key not in held:
                self._drop(key, holder)
        for key in held:
            self.hold(key, holder)

    def _drop(self, key: JobKey, holder: str) -> bool:
        holders = self._holders.get(key, set())
        if holder not in holders:
            return False
        holders.discard(holder)
        if not holders:
            del self._holders[key]
        return True

    # ends

    def end_soon(self, grant_id: str, why: End) -> None:
        """The operator ends it: with its last session, whoever holds it."""
        self._ending[grant_id] = why

    def is_ending(self, grant: Grant) -> bool:
        """Whether nobody may join it any more."""
        return grant.id in self._ending

    def why_ending(self, grant: Grant) -> End | None:
        """The operator's reason, or that of whoever it gives way to; None while it may live on."""
        return self._ending.get(grant.id)

    def over(self, grant: Grant, live_sessions: int) -> End | None:
        """Why the grant goes back now; None while it is kept."""
        key = key_of(grant)
        if key is None:
            return None if live_sessions else End(EndCause.CLIENT_ENDED, "its session has ended")
        if grant.id in self._replaced:
            # whoever holds the job keeps that grant, which its next process joins
            replaced = End(EndCause.JOB_OVER, "its job has another grant since its node was lost")
            return None if live_sessions else self._ending.get(grant.id, replaced)
        if live_sessions:
            self._idle_since.pop(key, None)
            return None
        if why := self._ending.get(grant.id):
            return why
        if key in self._holders:
            self._idle_since.pop(key, None)
            return None
        since = self._idle_since.setdefault(key, self._clock.monotonic())
        if key in self._released:
            return End(EndCause.JOB_OVER, "its job is over")
        if self._clock.monotonic() - since >= self._linger:
            text = f"its job has had no process for {self._linger:g} s"
            return End(EndCause.JOB_OVER, text)
        return None


def with_contexts(
    grant: Grant, sessions: Sequence[Session], per_context: Sequence[int]
) -> tuple[Vgpu, ...]:
    """The grant's vGPUs, each charged for the contexts on it.

    These are at least those that the job asked for, and one for each live session that has the
    vGPU. `per_context` is the MiB of one, vGPU by vGPU.
    """
    counts = [
        max(1, grant.job_processes, sum(1 for s in sessions if not s.chosen or index in s.chosen))
        for index in range(len(grant.vgpus))
    ]
    return tuple(
        replace(vgpu, overhead_mib=count * each)
        for vgpu, count, each in zip(grant.vgpus, counts, per_context, strict=True)
    )
