# SPDX-License-Identifier: Apache-2.0
"""Opens sessions and ends them: grant, worker and channel on the way in, all of it back at the end.

Called by the doors (listeners.unix_socket, listeners.data_port, regions), by sessions.adoption and
by the controller's orders. It owns every session of this server. It promises that a session's end,
however it came, leaves no process, no descriptor, no cgroup and no grant, within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sluice.config import log_ids
from sluice.config.peer_lines import OFTEN
from sluice.config.peer_lines import SERVER as PEERS
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, GrantedVgpu
from sluice.server.controller.orders import OrderRefused
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.code_cache import CodeCache, project_of
from sluice.server.sessions.figures import SessionFigures
from sluice.server.sessions.grant_ledgers import GrantLedgers, LedgerFullError
from sluice.server.sessions.job_holds import JobHolds
from sluice.server.sessions.logs import SessionLog
from sluice.server.sessions.open_session import OpenSession, RefusalError
from sluice.server.sessions.records import (
    CLIENT_ENDED,
    ENDED_UNSEEN,
    NOT_STARTED,
    WENT_AWAY,
    JobPart,
    Requester,
    Session,
    close_descriptor,
    grant_request,
    trust_domain,
)
from sluice.server.sessions.relays import Relays
from sluice.server.sessions.sharing import Sharing
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerStarter
from sluice.server.workers.users import NoUserLeftError
from sluice.server.workers.warm import WarmWorkers
from sluice.server.workers.worker import WorkerError

OUT_OF_HOST_MEMORY = (
    "the kernel ended the worker: the session used more host memory than [server] "
    "session_memory_mib of its node allows"
)


class SessionManager:
    """Every session of this server."""

    def __init__(
        self,
        node: str,
        controller: ControllerLink,
        workers: WarmWorkers,
        starter: WorkerStarter,
        log_dir: Path,
        *,
        throttle: bool = True,
        accounts: Accounts | None = None,
        code_cache: CodeCache | None = None,
    ) -> None:
        self._code_cache = code_cache
        self._throttle = throttle
        self._accounts = accounts or Accounts()
        self._node = node
        self._controller = controller
        self._workers = workers
        self._starter = starter
        self._log_dir = log_dir
        self.sessions: dict[str, Session] = {}
        self.sharing = Sharing()
        self.ledgers = GrantLedgers()
        self.holds = JobHolds(controller.report)
        self.figures = SessionFigures()
        self.on_end: list[Callable[[Session, End], None]] = []
        self.relays: Relays | None = None

    def relay_by(self, run_dir: Path, ca_file: Path | None) -> None:
        """From now on what this host's GPUs can never serve is relayed to other hosts'."""
        self.relays = Relays(self._starter, run_dir, self._log_dir, self._tell_end, ca_file)

    @property
    def served(self) -> list[Session]:
        """The sessions whose clients are served from here, wherever their GPUs are."""
        relayed = self.relays.sessions.values() if self.relays else ()
        return [*self.sessions.values(), *relayed]

    async def open(
        self,
        wish: OpenSession,
        requester: Requester,
        channel_fields: dict[str, str],
        descriptor: int,
        tell: Callable[[str], None],
    ) -> Session:
        """Gets a grant from the controller and opens the session; raises RefusalError.

        Descriptors stay the caller's: the session keeps copies. Cancelling it, as a door does when
        its client is gone, takes everything back.
        """
        request_id = log_ids.new_request_id()
        with log_ids.bound(request_id=request_id):
            who, text = requester.describe(), "open: %s asks for %s"
            PEERS.info("open", requester.owner, text, who, _wanted(wish), often=OFTEN)
            try:
                return await self._open(
                    request_id, wish, requester, channel_fields, descriptor, tell
                )
            except RefusalError as refusal:
                self.figures.refused(refusal.status)
                PEERS.warning(
                    "open: refused",
                    requester.owner,
                    "refused: %s: %s (status %d)",
                    *(who, refusal.message, refusal.status),
                )
                raise

    async def _open(
        self,
        request_id: str,
        wish: OpenSession,
        requester: Requester,
        channel_fields: dict[str, str],
        descriptor: int,
        tell: Callable[[str], None],
    ) -> Session:
        part = self.part_of(wish, requester)
        account = self._accounts.of(requester)
        project = account.project(wish.request.project, requester.describe())
        request = grant_request(
            self._node,
            wish,
            requester,
            part,
            project=project,
            owner_label=account.label,
            # a relay carries a slot
            relay=self.relays is not None and wish.takes_relay and requester.channel != "vsock",
        )
        request.request_id = request_id
        async with self._controller.grant(request, tell) as grant:
            if self.relays and grant.relay:
                return await self.relays.open(
                    wish,
                    requester,
                    channel_fields,
                    descriptor,
                    grant=grant,
                    target=grant.relay,
                    part=part,
                    project=project,
                )
            return await self.attach(
                wish,
                requester,
                channel_fields,
                descriptor,
                ids=(grant.session_id, grant.grant_id, grant.request_id),
                vgpus=grant.vgpus,
                part=part,
                project=project,
            )

    def part_of(self, wish: OpenSession, requester: Requester) -> JobPart | None:
        """The part in a job that a client of this host asks for."""
        if not wish.job:
            return None
        domain = trust_domain(self._node, requester)
        return JobPart(wish.job, domain, wish.job_processes, wish.chosen)

    async def attach(
        self,
        wish: OpenSession,
        requester: Requester,
        channel_fields: dict[str, str],
        descriptor: int,
        *,
        ids: tuple[str, str, str],
        vgpus: tuple[GrantedVgpu, ...],
        part: JobPart | None = None,
        project: str = "",
    ) -> Session:
        """Gives a granted session its worker; raises RefusalError, the grant is the caller's."""
        began = time.monotonic()
        session_id, grant_id, request_id = ids
        places = _places(part, vgpus)
        if requester.pidfd >= 0:
            requester = replace(requester, pidfd=os.dup(requester.pidfd))
        try:
            worker = await self._workers.take([vgpus[place].gpu_uuid for place in places])
        except BaseException as error:
            close_descriptor(requester.pidfd)
            if not isinstance(error, WorkerError):
                raise
            raise RefusalError(
                CudaStatus.OPERATING_SYSTEM, f"session {session_id}: {error}"
            ) from error
        session = Session(
            id=session_id,
            grant_id=grant_id,
            request_id=request_id,
            vgpus=vgpus,
            priority=wish.request.priority,
            requester=requester,
            worker=worker,
            log=SessionLog.take_over(
                self._log_dir, worker.record.log, session_id, grant_id, log_ids.request_id()
            ),
            part=part,
            project=project,
        )
        ledger = self._join_ledger(session)
        becomes = self._join_user(session)
        worker.record.log = str(session.log.path)
        worker.record.session = session.to_record()
        self._starter.files.write(worker.record)
        self._follow(session)
        by_socket = requester.channel in ("tcp", "vsock")
        region = "socket" if by_socket else "region"
        descriptors = [(region, descriptor), *ledger]
        # where memory is shared, an upload is faster than hashing
        keeps_code = self._code_cache if by_socket else None
        folders = keeps_code.open_folders(project_of(requester)) if keeps_code else []
        descriptors += folders
        if requester.pidfd >= 0:
            descriptors.append(("client_pidfd", requester.pidfd))
        fields = {
            "id": session_id,
            "grant": grant_id,
            "channel": requester.channel,
            "vgpus": str(len(places)),
            "request": wish.raw.hex(),
            **becomes,
            **channel_fields,
        }
        if ledger:
            fields["ledger_slot"] = str(session.ledger_slot)
        for index, place in enumerate(places):
            vgpu = vgpus[place]
            fields[f"vgpu.{index}.place"] = str(place)
            fields[f"vgpu.{index}.device"] = vgpu.gpu_uuid
            fields[f"vgpu.{index}.memory_mib"] = str(vgpu.memory_mib)
            percent = vgpu.compute_percent if self._throttle else 100
            fields[f"vgpu.{index}.compute_percent"] = str(percent)
        try:
            await worker.start_session(fields, descriptors)
        except WorkerError as error:
            session.log.write(f"did not start: {error}", logging.ERROR)
            worker.end(NOT_STARTED, grace=0)
            raise RefusalError(
                CudaStatus.OPERATING_SYSTEM, f"session {session_id} did not start: {error}"
            ) from error
        except asyncio.CancelledError:
            worker.end(WENT_AWAY, grace=0)
            raise
        finally:
            for _, folder in folders:
                os.close(folder)
        session.opening = False
        self.figures.begin(session)
        self.figures.started(requester.channel, time.monotonic() - began)
        worker.record.session = session.to_record()
        self._starter.files.write(worker.record)
        self._controller.report(rpc.NodeReport(session_started=session.report()))
        session.log.write(
            f"started: {requester.describe()} over {requester.channel}, worker {worker.id} pid "
            f"{worker.record.pid}, "
            + ", ".join(
                f"{v.gpu_uuid} {v.memory_mib} MiB {v.compute_percent} %"
                for v in (vgpus[place] for place in places)
            )
            + (f", of job {part.job[:8]}" if part else "")
        )
        return session

    def adopt(self, session: Session, status: Message) -> None:
        """Takes over a session that an earlier server opened, and whose worker says how it is."""
        self.figures.begin(session, status)
        if session.part:
            self.ledgers.adopt(session.grant_id, session.ledger_slot, session.worker.take_ledger())
        record = session.worker.record
        if record.uid is not None:
            users = self._starter.users
            users.adopt(record.id, users.key_of(session.grant_id, session.project), record.uid)
        self._follow(session)
        session.log.write(f"adopted: {session.requester.describe()}, worker {session.worker.id}")
        if session.requester.channel == "shm" and session.requester.pidfd < 0:
            self.end(session, ENDED_UNSEEN)

    def end(self, session: Session, why: End) -> None:
        """Ends a session; its client gets a sticky CUDA error."""
        session.log.write(f"ending: {why}")
        session.worker.end(why)

    def end_grant(self, grant_id: str, why: End) -> bool:
        """Ends every session of a grant; False if there is none."""
        sessions = [s for s in self.sessions.values() if s.grant_id == grant_id]
        for session in sessions:
            self.end(session, why)
        return bool(sessions)

    def on_gpu(self, uuid: str) -> list[Session]:
        """The sessions that use a GPU."""
        return [
            session
            for session in self.sessions.values()
            if any(
                session.vgpus[place].gpu_uuid == uuid
                for place in _places(session.part, session.vgpus)
            )
        ]

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        """Changes the compute of what runs for a grant. Raises OrderRefused: all stays as it is.

        A worker and its client share out a vGPU's memory from the session's beginning, and neither
        can be told of another size while it runs.
        """
        sessions = [s for s in self.sessions.values() if s.grant_id == grant_id]
        for session in sessions:
            if [v.memory_mib for v in session.vgpus] != [v.memory_mib for v in vgpus]:
                raise OrderRefused(
                    f"session {session.id} runs, and memory can be changed only while none does; "
                    "change compute alone, or end its process first"
                )
        done: list[Session] = []
        try:
            for session in sessions:
                await self._set_compute(session, [v.compute_percent for v in vgpus])
                done.append(session)
        except WorkerError as problem:
            for session in done:
                with contextlib.suppress(WorkerError):
                    await self._set_compute(session, [v.compute_percent for v in session.vgpus])
            raise OrderRefused(str(problem)) from problem
        for session in done:
            session.vgpus = tuple(
                GrantedVgpu(v.gpu_uuid, v.memory_mib, v.compute_percent) for v in vgpus
            )
            session.worker.record.session = session.to_record()
            self._starter.files.write(session.worker.record)
            session.log.write(
                "resized: " + ", ".join(f"{v.memory_mib} MiB {v.compute_percent} %" for v in vgpus)
            )

    async def hand_over(self, gpu_uuid: str, *, back: bool) -> None:
        """Ends what of this server holds a GPU without a session, or has it held again.

        Raises OrderRefused where the GPU is not free.
        """
        if back:
            self._workers.serve([gpu_uuid])
            return
        sessions = [
            session.id
            for session in self.sessions.values()
            if any(vgpu.gpu_uuid == gpu_uuid for vgpu in session.vgpus)
        ]
        if sessions:
            raise OrderRefused(f"session {', '.join(sessions)} still runs on it")
        await self._workers.let_go(gpu_uuid)

    async def _set_compute(self, session: Session, percents: Sequence[int]) -> None:
        places = _places(session.part, session.vgpus)
        shares = [percents[place] if self._throttle else 100 for place in places]
        await session.worker.set_compute(shares)

    def of_process(self, pid: int, start_time: int) -> list[Session]:
        """The sessions of one client process."""
        return [
            s
            for s in self.served
            if s.requester.pid == pid
            and s.requester.start_time == start_time
            and s.requester.pidfd >= 0
        ]

    def let_go(self) -> None:
        """The server stops: sessions go on without it."""
        for session in self.sessions.values():
            self._unwatch_client(session)
            session.worker.let_go()
        if self.relays:
            self.relays.let_go()

    def _join_ledger(self, session: Session) -> list[tuple[str, int]]:
        if not session.part:
            return []
        try:
            page, session.ledger_slot = self.ledgers.join(session.grant_id)
        except (LedgerFullError, OSError) as error:
            session.worker.end(End(EndCause.NOT_TAKEN, "its grant has no ledger for it"), grace=0)
            close_descriptor(session.requester.pidfd)
            raise RefusalError(
                CudaStatus.OPERATING_SYSTEM, f"session {session.id}: {error}"
            ) from error
        return [("ledger", page)]

    def _join_user(self, session: Session) -> dict[str, str]:
        """What the worker is told of the user that it becomes with its session."""
        users, record = self._starter.users, session.worker.record
        if not record.waits_for_user:
            return {}
        try:
            user = users.join(record.id, users.key_of(session.grant_id, session.project))
        except NoUserLeftError as error:
            self.ledgers.leave(session.grant_id, session.ledger_slot)
            session.worker.end(End(EndCause.NOT_TAKEN, "there is no user for it"), grace=0)
            close_descriptor(session.requester.pidfd)
            raise RefusalError(
                CudaStatus.OPERATING_SYSTEM, f"session {session.id}: {error}"
            ) from error
        record.uid = user.uid if user else None
        return users.told(user, len(session.vgpus))

    def _follow(self, session: Session) -> None:
        self.sessions[session.id] = session
        session.worker.on_ended = lambda _, message: self._worker_says_ended(session, message)
        session.worker.on_exit = lambda _, why: self._ended(session, why)
        session.worker.on_code = lambda message, descriptor: self._code(
            session, message, descriptor
        )
        self.sharing.join(session.id, session.sharing_domains(), session.worker)
        session.worker.follow_sharing(lambda message: self.sharing.take(session.id, message))
        if session.requester.pidfd >= 0:
            loop = asyncio.get_running_loop()
            loop.add_reader(session.requester.pidfd, self._client_ended, session)

    def _code(self, session: Session, message: Message, descriptor: int) -> None:
        project = project_of(session.requester)
        if self._code_cache is None:
            close_descriptor(descriptor)
        elif descriptor >= 0:
            self._code_cache.keep(project, descriptor)
        elif message.verb == "code_used":
            self._code_cache.used(project, message.get("name"))
        else:
            self._code_cache.damaged(project, message.get("name"))

    def _client_ended(self, session: Session) -> None:
        asyncio.get_running_loop().remove_reader(session.requester.pidfd)
        # the worker sees the same pidfd and ends by itself; this is for one that cannot
        session.worker.end(CLIENT_ENDED)

    def _worker_says_ended(self, session: Session, message: Message) -> None:
        self.figures.hear(session.id, message)
        figures = " ".join(
            f"{key}={value}"
            for key, value in message.fields.items()
            if key not in ("reason", "cause")
        )
        session.log.write(f"the worker ends: {message.get('reason')} {figures}".rstrip())

    def _ended(self, session: Session, why: End) -> None:
        self.sessions.pop(session.id, None)
        self.figures.end(session.id)
        self.sharing.leave(session.id)
        self.ledgers.leave(session.grant_id, session.ledger_slot)
        self._starter.users.leave(session.worker.id)
        self._unwatch_client(session)
        close_descriptor(session.requester.pidfd)
        session.requester.pidfd = -1
        if self._starter.cgroups:
            if session.worker.why is None and self._starter.cgroups.ran_out_of_memory(
                session.worker.id
            ):
                why = End(EndCause.HOST_MEMORY, OUT_OF_HOST_MEMORY)
            self._starter.cgroups.remove(session.worker.id)
        session.log.write(f"ended: {why}")
        self._controller.report_end(session.id, session.grant_id, why)
        session.gone.set()
        self._tell_end(session, why)

    def _tell_end(self, session: Session, why: End) -> None:
        for told in self.on_end:
            told(session, why)

    def _unwatch_client(self, session: Session) -> None:
        if session.requester.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(session.requester.pidfd)


def _places(part: JobPart | None, vgpus: tuple[GrantedVgpu, ...]) -> tuple[int, ...]:
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


def _wanted(wish: OpenSession) -> str:
    asked = wish.request
    memory = f"{asked.memory_mib} MiB" if asked.memory_mib else "default memory"
    compute = f"{asked.compute_percent} %" if asked.compute_percent else "default compute"
    return f"{asked.count or 1} vGPU of {memory} and {compute}"
