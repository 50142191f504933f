# SPDX-License-Identifier: Apache-2.0
"""How a granted session gets its worker: steps, each with its undoing.

Called by sessions.lifecycle. A step that takes something names at once how it is given back; when a
later one fails or the client goes away, all of it is given back, the last first. Once the registry
follows the session, the undoing is to end its worker, with which everything comes back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType

from sluice.config import log_ids
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.vgpu_request import DEFAULT_PROJECT
from sluice.server.controller.link import GrantedVgpu, LocalGrant
from sluice.server.sessions.code_cache import CodeCache, project_of
from sluice.server.sessions.grant_ledgers import LedgerFullError
from sluice.server.sessions.logs import SessionLog
from sluice.server.sessions.open_session import OpenSession, RefusalError
from sluice.server.sessions.records import (
    NOT_STARTED,
    WENT_AWAY,
    JobPart,
    Requester,
    Session,
    largest_share,
    run_at_once,
)
from sluice.server.sessions.registry import SessionRegistry
from sluice.server.workers.concurrent import Place
from sluice.server.workers.process import WorkerStarter
from sluice.server.workers.session_start import (
    Channel,
    ConnectedSocket,
    LedgerSlot,
    Named,
    SessionStart,
    TurnPage,
    WorkerVgpu,
)
from sluice.server.workers.users import NoUserLeftError, User
from sluice.server.workers.warm import WarmWorkers
from sluice.server.workers.worker import Worker, WorkerError

WHOLE_PERCENT = 100
#: What a step fails by; anything else is a mistake of ours, and is undone as well.
FAILURES = (WorkerError, LedgerFullError, NoUserLeftError, OSError)


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a client asks for, who it is, and the channel that its listener has made ready.

    The channel's descriptor and the client's pidfd stay the listener's; a session keeps copies.
    """

    asked: OpenSession
    requester: Requester
    channel: Channel


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """What a session was granted, on whose account, and as which part of a job."""

    granted: LocalGrant
    part: JobPart | None = None
    project: str = ""
    resume_key: str = ""  # with which its client goes on over another connection; "": it does not


class SessionOpener:
    """Gives granted sessions their workers."""

    def __init__(
        self,
        workers: WarmWorkers,
        starter: WorkerStarter,
        registry: SessionRegistry,
        log_dir: Path,
        *,
        throttle: bool,
        code_cache: CodeCache | None,
    ) -> None:
        self._workers = workers
        self._starter = starter
        self._registry = registry
        self._log_dir = log_dir
        self._throttle = throttle
        self._code_cache = code_cache

    async def open(self, request: SessionRequest, grant: SessionGrant) -> Session:
        """Gives a granted session its worker; raises RefusalError, the grant is the caller's."""
        began = time.monotonic()
        places = chosen_places(grant.part, grant.granted.vgpus)
        try:
            with ExitStack() as undo:
                session = await self._with_worker(request, grant, places, undo)
                try:
                    ledger = self._join_ledger(session, undo)
                    user = self._join_user(session, undo)
                    turns = self._make_turns(session, undo)
                    await self._give_compiled(session)
                    self._follow(session, undo)
                    self._registry.write(session)
                    await self._start(session, request, grant, ledger, turns, user)
                    self._registry.opened(session, time.monotonic() - began)
                except FAILURES as error:
                    session.log.write(f"did not start: {error}", logging.ERROR)
                    raise
                undo.pop_all()  # it is open
        except FAILURES as error:
            text = f"session {grant.granted.session_id} did not start: {error}"
            raise RefusalError(CudaStatus.OPERATING_SYSTEM, text) from error
        session.log.write(_started(session))
        return session

    async def _with_worker(
        self,
        request: SessionRequest,
        grant: SessionGrant,
        places: tuple[int, ...],
        undo: ExitStack,
    ) -> Session:
        """The session with a worker that is ready; raises WorkerError, OSError."""
        requester, granted = request.requester.copy(), grant.granted
        undo.callback(requester.close)
        worker = await self._take(grant, [granted.vgpus[place] for place in places])
        undo.callback(worker.end, NOT_STARTED, grace=0)
        if requester.channel == "rdma" and not worker.record.rdma:
            # It was started by a server that had no RDMA, or no word of it.
            requester.channel = "tcp"
        return new_session(self._log_dir, replace(request, requester=requester), grant, worker)

    async def _take(self, grant: SessionGrant, vgpus: list[GrantedVgpu]) -> Worker:
        """A worker for these vGPUs; raises WorkerError."""
        gpus = dict.fromkeys(vgpu.gpu_uuid for vgpu in vgpus)
        if not run_at_once(vgpus):
            return await self._workers.take(list(gpus))
        if self._workers.concurrent is None:
            raise WorkerError("sessions do not run at once (MPS) on this host; its log says why")
        # one number for all of its GPUs
        percent = largest_share(vgpus) if self._throttle else WHOLE_PERCENT
        place = Place(grant.project or DEFAULT_PROJECT, tuple(gpus), percent)
        return await self._workers.concurrent.take(place)

    def _join_ledger(self, session: Session, undo: ExitStack) -> LedgerSlot | None:
        if not session.part:
            return None
        page, session.ledger_slot = self._registry.ledgers.join(session.grant_id)
        undo.callback(self._registry.ledgers.leave, session.grant_id, session.ledger_slot)
        return LedgerSlot(page, session.ledger_slot)

    def _make_turns(self, session: Session, undo: ExitStack) -> TurnPage | None:
        pages = self._registry.turns
        if pages is None or run_at_once(session.vgpus):
            return None
        undo.callback(pages.leave, session.id)
        return pages.make(session)

    def _join_user(self, session: Session, undo: ExitStack) -> User | None:
        """The user that the worker becomes with its session."""
        users, record = self._starter.users, session.worker.record
        if not record.waits_for_user:
            return None
        user = users.join(record.id, users.key_of(session.grant_id, session.project))
        undo.callback(users.leave, record.id)
        record.uid = user.uid if user else None
        return user

    async def _give_compiled(self, session: Session) -> None:
        """What the driver compiled for the tenant before, into a folder of the worker's user."""
        cache, record = self._starter.compute_cache, session.worker.record
        if cache and record.uid is not None:  # else its folder would be open to other tenants'
            await cache.give(record.id, session.tenant, record.uid)

    def _follow(self, session: Session, undo: ExitStack) -> None:
        self._registry.follow(session)
        undo.pop_all()  # all of it comes back with the worker's end from now on
        undo.push(partial(end_unopened, session))

    async def _start(
        self,
        session: Session,
        request: SessionRequest,
        grant: SessionGrant,
        ledger: LedgerSlot | None,
        turns: TurnPage | None,
        user: User | None,
    ) -> None:
        """Has the worker serve the session; raises WorkerError."""
        with ExitStack() as folders:
            start = SessionStart(
                session_id=session.id,
                grant_id=session.grant_id,
                channel_name=session.requester.channel,
                channel=request.channel,
                request=request.asked.raw,
                vgpus=self._vgpus(session),
                ledger=ledger,
                turns=turns,
                user=user,
                grant_vgpus=self._starter.users.ranks_of_others(user, len(session.vgpus)),
                windows=grant.granted.all_vgpus,
                first_window=grant.granted.first_vgpu,
                code=self._code(session, request.channel, folders),
                client_pidfd=session.requester.pidfd,
                merge_launches=self._starter.merge_launches,
            )
            started = await session.worker.start_session(start)
        # One that was to be RDMA may be TCP.
        session.requester.channel = started.get("channel") or session.requester.channel

    def _vgpus(self, session: Session) -> tuple[WorkerVgpu, ...]:
        vgpus = [(place, session.vgpus[place]) for place in session.places]
        return tuple(
            WorkerVgpu(
                place,
                vgpu.gpu_uuid,
                vgpu.memory_mib,
                compute_percent=vgpu.compute_percent if self._throttle else 100,
            )
            for place, vgpu in vgpus
        )

    def _code(self, session: Session, channel: Channel, folders: ExitStack) -> tuple[Named, ...]:
        # where memory is shared, an upload is faster than hashing
        if self._code_cache is None or not isinstance(channel, ConnectedSocket):
            return ()
        found = self._code_cache.open_folders(project_of(session.requester))
        for _, folder in found:
            folders.callback(os.close, folder)
        return tuple(found)


def new_session(
    log_dir: Path,
    request: SessionRequest,
    grant: SessionGrant,
    worker: Worker,
    *,
    relayed_to: str = "",
) -> Session:
    """The session of a request and a grant, with its worker's log as its own; raises OSError."""
    granted = grant.granted
    log = SessionLog.take_over(
        log_dir, worker.record.log, granted.session_id, granted.grant_id, log_ids.request_id()
    )
    worker.record.log = str(log.path)
    return Session(
        id=granted.session_id,
        grant_id=granted.grant_id,
        request_id=granted.request_id,
        vgpus=granted.vgpus,
        priority=request.asked.request.priority,
        requester=request.requester,
        worker=worker,
        log=log,
        part=grant.part,
        project=grant.project,
        relayed_to=relayed_to,
        resume_key=grant.resume_key,
        first_vgpu=granted.first_vgpu,
        others=granted.others,
        grant_vgpus=granted.grant_vgpus,
        grant_places=granted.grant_places,
    )


def chosen_places(part: JobPart | None, vgpus: tuple[GrantedVgpu, ...]) -> tuple[int, ...]:
    """Which of a grant's vGPUs the session has; raises RefusalError."""
    if part is None or not part.chosen:
        return tuple(range(len(vgpus)))
    if max(part.chosen) >= len(vgpus):
        raise RefusalError(
            CudaStatus.INVALID_VALUE,
            f"this process chooses vGPU {max(part.chosen)} of its job, which has {len(vgpus)}, "
            "numbered from 0: set CUDA_VISIBLE_DEVICES, or start the job with "
            "`sluice run --share --vgpu N`",
        )
    return part.chosen


def end_unopened(
    session: Session,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Undoes what an ExitStack holds of a session that is followed: its worker ends."""
    went_away = isinstance(error, asyncio.CancelledError)
    session.worker.end(WENT_AWAY if went_away else NOT_STARTED, grace=0)


def _started(session: Session) -> str:
    requester, worker = session.requester, session.worker
    vgpus = [session.vgpus[place] for place in session.places]
    return (
        f"started: {requester.describe()} over {requester.channel}, worker {worker.id} pid "
        f"{worker.record.pid}, "
        + ", ".join(f"{v.gpu_uuid} {v.memory_mib} MiB {v.compute_percent} %" for v in vgpus)
        + (f", of job {session.part.job[:8]}" if session.part else "")
    )
