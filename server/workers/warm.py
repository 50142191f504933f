# SPDX-License-Identifier: Apache-2.0
"""Workers that wait ready, one or more per GPU, so that a client need not wait for a driver.

Used by sessions.opening (take) and service (start, stop). It owns every worker that has no session.
A taken worker is replaced in the background, a little later, so that the new session has the CPU
first. A GPU that was let go is held by no worker of these until it is served again. Where sessions
may move ([suspend] movable) a worker of one GPU sees those of its model beside it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from sluice.config.native_files import NativeFileMissing
from sluice.resources.ends import End, EndCause
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.discovery import Driver
from sluice.server.workers.concurrent import ConcurrentWorkers
from sluice.server.workers.mps import MpsDaemons
from sluice.server.workers.process import MpsClient, WorkerStarter
from sluice.server.workers.worker import Worker, WorkerDevice, WorkerError

log = logging.getLogger("sluice.server")

REFILL_DELAY_SECONDS = 0.5
RETRY_SECONDS = 10.0
STOP_SECONDS = 1.0
LET_GO_SECONDS = 10.0


class WarmWorkers:
    """Ready workers by GPU UUID."""

    def __init__(
        self,
        starter: WorkerStarter,
        driver: Driver,
        log_dir: Path,
        *,
        per_gpu: int,
        start_seconds: float,
        movable: bool = False,
    ) -> None:
        self._starter = starter
        self._movable = movable
        self._alike: dict[str, tuple[str, ...]] = {}  # GPUs of one model, by each of them
        self._driver = driver
        self._log_dir = log_dir
        self._per_gpu = per_gpu
        self._start_seconds = start_seconds
        self._warm: dict[str, list[Worker]] = {}
        self._refills: dict[str, asyncio.Task[None]] = {}
        self._let_go: set[str] = set()
        self._resting: set[str] = set()
        self._looking: list[Worker] = []  # at every GPU of the host
        self._stopping = False
        self._at_once: set[str] = set()  # GPUs whose sessions run at once: none wait ready there
        self.concurrent: ConcurrentWorkers | None = None

    def serve_concurrent(self, daemons: MpsDaemons, headroom: float = 1.0) -> None:
        """From now on sessions of a project may run at once."""
        self.concurrent = ConcurrentWorkers(
            daemons,
            lambda gpus, client: self._spawn(list(gpus), client),
            self._occupied_at_once,
            keep_ready=self._per_gpu > 0,
            start_seconds=self._start_seconds,
            headroom=headroom,
        )

    def know(self, models: Mapping[str, str]) -> None:
        """These are the host's GPUs, with their models."""
        self._alike = {
            uuid: tuple(other for other, its in models.items() if its == model and other != uuid)
            for uuid, model in models.items()
        }
        self._see_anew()

    def _beside(self, uuid: str) -> list[str]:
        """What a worker of this GPU sees beside it."""
        if not self._movable:
            return []
        return [other for other in self._alike.get(uuid, ()) if other not in self._let_go]

    def _see_anew(self) -> None:
        """Replaces the workers that see other GPUs than they should."""
        for uuid, warm in self._warm.items():
            for worker in [w for w in warm if w.record.beside != self._beside(uuid)]:
                warm.remove(worker)
                worker.on_exit = self._unused_one_ended
                worker.end(_unused("it does not see what a worker is to see now"))
                self._refill(uuid, 0)

    async def see_devices(self) -> list[WorkerDevice]:
        """Starts a worker that sees every GPU, asks it what they are, and lets it end."""
        worker = self._spawn([])
        self._looking = [w for w in self._looking if not w.exited] + [worker]
        try:
            await worker.wait_ready(self._start_seconds)
            return worker.devices
        finally:
            worker.end(_unused("it was started to look at the GPUs"))

    def serve(self, gpus: Sequence[str]) -> None:
        """Keeps workers warm for these GPUs from now on."""
        for uuid in gpus:
            self._let_go.discard(uuid)
            self._warm.setdefault(uuid, [])
            self._refill(uuid, 0)
        self._see_anew()

    def ready(self, uuid: str) -> int:
        """How many workers wait ready for a GPU."""
        return sum(1 for worker in self._warm.get(uuid, ()) if worker.is_ready)

    @property
    def lets_go(self) -> bool:
        """Whether there is a GPU that nobody here may hold."""
        return bool(self._let_go)

    def has_let_go(self, uuid: str) -> bool:
        """Whether none of these workers may hold the GPU."""
        return uuid in self._let_go

    async def let_go(self, uuid: str) -> None:
        """Ends the GPU's warm workers and waits until they are gone. Raises OrderRefused."""
        self._let_go.add(uuid)
        if task := self._refills.pop(uuid, None):
            task.cancel()
        others = [w for warm in self._warm.values() for w in warm if uuid in w.record.beside]
        self._see_anew()
        holding = [*self._warm.get(uuid, []), *others, *self._looking]
        for worker in holding:
            worker.end(_unused("its GPU is handed over"))
        if not await _exited(holding, LET_GO_SECONDS):
            pids = ", ".join(str(w.record.pid) for w in holding if not w.exited)
            raise OrderRefused(f"worker process {pids} still holds it after {LET_GO_SECONDS:g} s")
        if self.concurrent and (left := await self.concurrent.let_go(uuid)):
            projects = ", ".join(sorted(daemon.record.project for daemon in left))
            raise OrderRefused(
                f"the MPS daemon of project {projects} may hold it, whose sessions run at once on "
                "other GPUs of the host; end them first"
            )
        if uuid not in self._let_go:
            raise OrderRefused("it was taken back meanwhile")
        log.info("GPU %s is let go: %d warm worker(s) ended", uuid, len(holding))

    def rest(self, uuid: str) -> None:
        """Keeps none for this GPU while it is unfit or being checked, whoever has it."""
        self._resting.add(uuid)
        if task := self._refills.pop(uuid, None):
            task.cancel()
        for worker in self._warm.get(uuid, []):
            worker.end(_unused("its GPU is not given out for now"))

    def wake(self, uuid: str) -> None:
        """It is fit: workers are kept for it again, unless it is let go."""
        self._resting.discard(uuid)
        self._warm.setdefault(uuid, [])
        self._refill(uuid, 0)

    def _occupied_at_once(self, uuid: str, is_so: bool) -> None:
        if is_so:
            self._at_once.add(uuid)
            if task := self._refills.pop(uuid, None):
                task.cancel()
            for worker in self._warm.get(uuid, []):
                worker.end(_unused("sessions run at once on its GPU"))
        else:
            self._at_once.discard(uuid)
            if uuid in self._warm:
                self._refill(uuid, REFILL_DELAY_SECONDS)

    def adopt(self, worker: Worker) -> bool:
        """Takes in a worker of an earlier server that has no session; False if it is of no use."""
        record = worker.record
        if (
            record.mps
            or self._per_gpu == 0
            or record.driver != self._driver.path
            or len(record.devices) != 1
        ):
            return False
        if record.libraries != self._starter.libraries:
            return False
        if record.waits_for_user != bool(self._starter.users.ids):
            return False  # it is of another configuration, or release
        warm = self._warm.setdefault(record.devices[0], [])
        if len(warm) >= self._per_gpu:
            return False
        worker.on_exit = self._warm_one_ended
        warm.append(worker)
        return True

    async def take(self, gpus: Sequence[str]) -> Worker:
        """Returns a ready worker that sees exactly these GPUs; raises WorkerError.

        The caller owns it from then on; until it sets on_exit, an end is that of an unused worker.
        A GPU that several vGPUs are on may be named several times.
        """
        gpus = list(dict.fromkeys(gpus))
        warm = self._taken(gpus[0]) if len(gpus) == 1 else None
        worker = warm or self._spawn(gpus)
        try:
            await worker.wait_ready(self._start_seconds)
        except (WorkerError, asyncio.CancelledError):
            worker.end(_unused("it was not ready in time"))
            raise
        return worker

    async def stop(self) -> None:
        """Ends the warm workers: without a session nothing is lost with them."""
        self._stopping = True
        for task in self._refills.values():
            task.cancel()
        ending = [worker for warm in self._warm.values() for worker in warm]
        at_once = self.concurrent.stop() if self.concurrent else []
        for worker in ending:
            worker.on_exit = self._unused_one_ended
            worker.end(_unused("the server stops"), grace=0)
        await _exited([*ending, *at_once], STOP_SECONDS)

    def _taken(self, uuid: str) -> Worker | None:
        """One of the GPU's warm workers, a ready one if there is; it is replaced a little later."""
        warm = self._warm.get(uuid, [])
        worker = next((w for w in warm if w.is_ready), warm[0] if warm else None)
        if worker:
            warm.remove(worker)
            worker.on_exit = self._unused_one_ended
            self._refill(uuid, REFILL_DELAY_SECONDS)
        return worker

    def _spawn(self, gpus: list[str], mps: MpsClient | None = None) -> Worker:
        worker_id = secrets.token_hex(6)
        log_path = self._log_dir / "worker" / f"{worker_id}.log"
        try:
            record, pidfd = self._starter.start(
                worker_id,
                self._driver.path,
                gpus,
                log_path,
                software=self._driver.software,
                mps=mps,
                beside=self._beside(gpus[0]) if len(gpus) == 1 and not mps else (),
            )
        except (OSError, NativeFileMissing) as error:
            raise WorkerError(f"no worker can be started: {error}") from error
        worker = Worker(record, pidfd, self._starter.files)
        worker.on_exit = self._unused_one_ended
        if cache := self._starter.compute_cache:
            worker.at_exit.append(partial(cache.forget, worker_id))
        try:
            worker.connect()
        except OSError as error:
            worker.kill()
            raise WorkerError(f"worker {worker_id} cannot be reached: {error}") from error
        return worker

    def _refill(self, uuid: str, delay: float) -> None:
        if self._stopping or uuid in self._let_go | self._resting | self._at_once:
            return
        if (task := self._refills.get(uuid)) and not task.done():
            return
        # in a context of its own: the next session's worker must not log the ids of this one
        filling = asyncio.create_task(self._fill(uuid, delay), context=contextvars.Context())
        self._refills[uuid] = filling

    async def _fill(self, uuid: str, delay: float) -> None:
        await asyncio.sleep(delay)
        while len(self._warm[uuid]) < self._per_gpu:
            try:
                worker = self._spawn([uuid])
                worker.on_exit = self._warm_one_ended
                self._warm[uuid].append(worker)
                await worker.wait_ready(self._start_seconds)
            except WorkerError as error:
                log.error("GPU %s has no warm worker: %s", uuid, error)
                await asyncio.sleep(RETRY_SECONDS)

    def _warm_one_ended(self, worker: Worker, why: End) -> None:
        uuid = worker.record.devices[0]
        warm = self._warm.get(uuid, [])
        if worker in warm:
            warm.remove(worker)
            if uuid in self._let_go | self._resting | self._at_once:
                self._clean(worker)
                return
            log.warning("the warm worker %s of GPU %s ended: %s", worker.id, uuid, why)
            self._clean(worker)
            self._refill(uuid, RETRY_SECONDS)

    def _unused_one_ended(self, worker: Worker, why: End) -> None:
        log.debug("worker %s ended unused: %s", worker.id, why)
        self._clean(worker)

    def _clean(self, worker: Worker) -> None:
        if self._starter.cgroups:
            self._starter.cgroups.remove(worker.id)
        path = Path(worker.record.log)
        # an unused worker's log matters only if it said something
        if path.exists() and path.stat().st_size == 0:
            path.unlink()


def _unused(text: str) -> End:
    """Of a worker that no session has: nobody is told."""
    return End(EndCause.UNKNOWN, text)


async def _exited(workers: Sequence[Worker], seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while any(not worker.exited for worker in workers) and loop.time() < deadline:
        await asyncio.sleep(0.01)
    return all(worker.exited for worker in workers)
