# SPDX-License-Identifier: Apache-2.0
"""Workers whose sessions run at once with others of their project: clients of its MPS daemon.

Used by sessions.opening and sessions.adoption, through workers.warm, which owns this. The share of
a GPU's multiprocessors is fixed when a worker starts, so one waits ready for the size that was
asked for last: a project's sessions are mostly alike. While a GPU's sessions run at once, no
ordinary worker waits ready on it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sluice.resources.ends import End, EndCause
from sluice.server.workers.mps import Daemon, MpsDaemons, MpsError
from sluice.server.workers.process import MpsClient
from sluice.server.workers.worker import Worker, WorkerError

log = logging.getLogger("sluice.server")

REFILL_DELAY_SECONDS = 0.5
EXIT_LOOK_SECONDS = 0.01
WHOLE = 100
#: MPS gives whole pairs of multiprocessors, rounded down: so much more is at least what is asked.
ROUNDED_DOWN_PERCENT = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where such a worker runs: GPUs, by UUID, and its percentage of their multiprocessors."""

    project: str
    gpus: tuple[str, ...]
    percent: int


Spawn = Callable[[Sequence[str], MpsClient], Worker]


class ConcurrentWorkers:
    """Of every project of this host."""

    def __init__(
        self,
        daemons: MpsDaemons,
        spawn: Spawn,
        occupied: Callable[[str, bool], None],
        *,
        keep_ready: bool,
        start_seconds: float,
        headroom: float = 1.0,
    ) -> None:
        """`occupied` is told when a GPU gets its first such worker, and when it loses its last.

        `headroom`: the multiprocessors that a worker may have, in times of its share.
        """
        self._headroom = headroom
        self.daemons = daemons
        self._spawn = spawn
        self._occupied = occupied
        self._keep_ready = keep_ready
        self._start_seconds = start_seconds
        self._ready: dict[Place, Worker] = {}
        self._refills: set[asyncio.Task[None]] = set()
        self._refilling: dict[Place, asyncio.Task[None]] = {}  # whose worker is being started
        self._on_gpu: Counter[str] = Counter()
        self._stopping = False
        daemons.on_end = self._daemon_ended

    async def take(self, place: Place) -> Worker:
        """A ready worker for a session; raises WorkerError."""
        if place not in self._ready and (making := self._refilling.get(place)):
            await asyncio.wait([making])  # sooner there than another
        worker = self._ready.pop(place, None)
        if worker is None or not worker.is_ready:
            worker = await self._start(place)
        worker.on_exit = None
        if self._keep_ready and len(place.gpus) == 1:
            # in a context of its own: it must not log the ids of this session
            task = asyncio.create_task(self._refill(place), context=contextvars.Context())
            self._refills.add(task)
            task.add_done_callback(self._refills.discard)
        return worker

    def adopt(self, worker: Worker) -> bool:
        """Takes in one of an earlier server; False: its daemon has ended."""
        daemon = self.daemons.known(worker.record.mps)
        if daemon is None or self.daemons.is_full(daemon):
            return False
        self.daemons.join(daemon, worker.id)
        self._follow(worker, daemon)
        return True

    async def let_go(self, uuid: str) -> list[Daemon]:
        """Nothing of these may hold the GPU; returns the daemons that still do."""
        ending = [self._ready.pop(place) for place in list(self._ready) if uuid in place.gpus]
        for worker in ending:
            self._end(worker, "its GPU is handed over")
        # an end that is not come to is a kill, soon: this waits for neither long
        while not all(worker.exited for worker in ending):
            await asyncio.sleep(EXIT_LOOK_SECONDS)
        return await self.daemons.end_idle()

    def stop(self) -> list[Worker]:
        """The server stops: those without a session end, and are returned."""
        self._stopping = True
        for task in self._refills:
            task.cancel()
        ending = list(self._ready.values())
        for worker in ending:
            self._end(worker, "the server stops")
        self._ready.clear()
        return ending

    # within

    async def _start(self, place: Place) -> Worker:
        try:
            daemon = await self.daemons.of(place.project)
            self._make_room(daemon)
            worker = self._join(place, daemon)
        except MpsError as error:
            raise WorkerError(str(error)) from error
        try:
            await worker.wait_ready(self._start_seconds)
        except (WorkerError, asyncio.CancelledError):
            self._end(worker, "it was not ready in time")
            if daemon.workers <= {worker.id}:
                # nobody runs on it: the next is to have a better one
                await self.daemons.end(daemon)
            raise
        return worker

    def _join(self, place: Place, daemon: Daemon) -> Worker:
        percent = min(WHOLE, round(place.percent * self._headroom) + ROUNDED_DOWN_PERCENT)
        limit = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)} if percent < WHOLE else {}
        environment = {**daemon.environment, **limit}
        client = MpsClient(daemon.record.id, daemon.user, environment)
        worker = self._spawn(place.gpus, client)
        try:
            self.daemons.join(daemon, worker.id)
        except MpsError:
            worker.kill()
            raise
        self._follow(worker, daemon)
        return worker

    def _follow(self, worker: Worker, daemon: Daemon) -> None:
        for uuid in worker.record.devices:
            self._on_gpu[uuid] += 1
            if self._on_gpu[uuid] == 1:
                self._occupied(uuid, True)
        worker.before_kill = partial(self.daemons.terminate, daemon, worker.record.pid)
        worker.at_exit.append(partial(self._gone, worker, daemon))

    def _gone(self, worker: Worker, daemon: Daemon) -> None:
        self.daemons.leave(daemon, worker.id)
        for place in [place for place, ready in self._ready.items() if ready is worker]:
            del self._ready[place]
        if worker.why and worker.why.cause is EndCause.CONCURRENT_FAULT:
            # the same has become of those that wait ready, and they keep others out
            self._end_ready(daemon, "its MPS server has failed")
        for uuid in worker.record.devices:
            self._on_gpu[uuid] -= 1
            if not self._on_gpu[uuid]:
                del self._on_gpu[uuid]
                self._occupied(uuid, False)
        if not self._has_sessions(daemon):
            self._end_ready(daemon, "its project has no session any more")

    def _has_sessions(self, daemon: Daemon) -> bool:
        waiting = {w.id for w in self._ready.values() if w.record.mps == daemon.record.id}
        return bool(daemon.workers - waiting)

    def _daemon_ended(self, daemon: Daemon) -> None:
        self._end_ready(daemon, "its MPS daemon has ended")

    def _end_ready(self, daemon: Daemon, why: str) -> None:
        for place, worker in list(self._ready.items()):
            if worker.record.mps == daemon.record.id:
                del self._ready[place]
                self._end(worker, why)

    def _make_room(self, daemon: Daemon) -> None:
        """One that waits ready gives its place among the daemon's clients up, if it has to."""
        if not self.daemons.is_full(daemon):
            return
        for place, worker in self._ready.items():
            if worker.record.mps == daemon.record.id:
                del self._ready[place]
                self._end(worker, "another takes its place")
                self.daemons.leave(daemon, worker.id)
                return

    async def _refill(self, place: Place) -> None:
        await asyncio.sleep(REFILL_DELAY_SECONDS)
        alike = [p for p in self._ready if (p.project, p.gpus) == (place.project, place.gpus)]
        if place in alike or place in self._refilling or self._stopping:
            return
        for other in alike:
            self._end(self._ready.pop(other), "sessions of another size are asked for")
        daemon = self.daemons.running(place.project)
        if daemon is None or not self._has_sessions(daemon) or self.daemons.is_full(daemon):
            return
        if task := asyncio.current_task():
            self._refilling[place] = task
        try:
            worker = await self._start(place)
        except WorkerError as error:
            log.error("project %s has no worker that waits ready: %s", place.project, error)
            return
        finally:
            self._refilling.pop(place, None)
        # counted among those that wait, it is no session: the last may have ended meanwhile
        self._ready[place] = worker
        if self._stopping or not self._has_sessions(daemon):
            del self._ready[place]
            self._end(worker, "it is not needed any more")

    def _end(self, worker: Worker, why: str) -> None:
        worker.end(End(EndCause.UNKNOWN, why))
