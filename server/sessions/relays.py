# SPDX-License-Identifier: Apache-2.0
"""Sessions of this host whose GPUs are another host's: each has a sluice-relay process here.

Used by sessions.lifecycle, which asks the controller, and by sessions.adoption. Such a session is
the GPU node's server's to account for; here it is a client's slot and the process that carries its
bytes. It promises that a session's end, however it came, leaves no process, no descriptor and no
cgroup.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from sluice.config.native_files import NativeFileMissing
from sluice.protocol.control import RELAY_SENT
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.sessions.client_watch import forget_client, unwatch_client, watch_client
from sluice.server.sessions.open_session import RefusalError, with_key
from sluice.server.sessions.opening import (
    SessionGrant,
    SessionRequest,
    end_unopened,
    new_session,
)
from sluice.server.sessions.records import ENDED_UNSEEN, NOT_STARTED, Session
from sluice.server.workers.process import WorkerFiles, WorkerStarter
from sluice.server.workers.session_start import RelayStart, SharedRegion
from sluice.server.workers.worker import Worker, WorkerError

log = logging.getLogger("sluice.server")

READY_SECONDS = 10.0
#: For the connection, the handshake, and a worker that has to be started there.
OPEN_SECONDS = 150.0


class Relays:
    """Every relayed session whose client is on this host."""

    def __init__(
        self,
        starter: WorkerStarter,
        run_dir: Path,
        log_dir: Path,
        ended: Callable[[Session, End], None],
        ca_file: Path | None = None,
    ) -> None:
        """`ended` is told of each session's end; `ca_file`: whose certificates data ports show."""
        self._starter = starter
        self.files = WorkerFiles(run_dir, "relays", RELAY_SENT)
        self._log_dir = log_dir
        self._told = ended
        self._ca_file = ca_file
        self.sessions: dict[str, Session] = {}

    async def open(
        self, request: SessionRequest, grant: SessionGrant, target: rpc.RelayTarget
    ) -> Session:
        """Has a granted session carried to its node; raises RefusalError.

        The grant and the descriptors are the caller's: the session keeps copies.
        """
        try:
            with ExitStack() as undo:
                session = await self._with_relay(request, grant, target, undo)
                try:
                    await self._start(session, request, target)
                    session.opening = False
                    self._write(session)
                except (WorkerError, OSError) as error:
                    session.log.write(f"did not start: {error}", logging.ERROR)
                    raise
                undo.pop_all()  # it is open
        except (WorkerError, OSError) as error:
            said = error.status if isinstance(error, WorkerError) else 0
            status = said or CudaStatus.OPERATING_SYSTEM
            text = f"session {grant.granted.session_id} on {target.node}: {error}"
            raise RefusalError(status, text) from error
        requester, relay = session.requester, session.worker
        session.log.write(
            f"started: {requester.describe()} over {requester.channel}, relay {relay.id} pid "
            f"{relay.record.pid} to node {target.node} at {target.address}:{target.port}"
        )
        return session

    async def _with_relay(
        self,
        request: SessionRequest,
        grant: SessionGrant,
        target: rpc.RelayTarget,
        undo: ExitStack,
    ) -> Session:
        """The session with a relay that is ready and followed; raises WorkerError, OSError."""
        requester = request.requester.copy()
        undo.callback(requester.close)
        relay = await self._start_process()
        undo.callback(relay.end, NOT_STARTED, grace=0)
        own = replace(request, requester=requester)
        session = new_session(self._log_dir, own, grant, relay, relayed_to=target.node)
        self._write(session)
        self._follow(session)
        undo.pop_all()  # all of it comes back with the relay's end from now on
        undo.push(partial(end_unopened, session))
        return session

    async def _start(
        self, session: Session, request: SessionRequest, target: rpc.RelayTarget
    ) -> None:
        """Has the relay carry the session; raises WorkerError."""
        channel = request.channel
        if not isinstance(channel, SharedRegion):
            raise WorkerError(f"channel {session.requester.channel} has no slot to relay")
        with ExitStack() as opened:
            start = RelayStart(
                session_id=session.id,
                grant_id=session.grant_id,
                channel_name=session.requester.channel,
                channel=channel,
                request=with_key(request.asked, target.key),
                node=target.node,
                address=target.address,
                port=target.port,
                tls=target.tls,
                ca=self._open_ca(opened) if target.tls else -1,
                client_pidfd=session.requester.pidfd,
            )
            await session.worker.start_session(start, OPEN_SECONDS)

    def _open_ca(self, opened: ExitStack) -> int:
        if self._ca_file is None:
            return -1
        try:
            ca = os.open(self._ca_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            what = f"[tls] data_ca_file {self._ca_file}: {error.strerror}"
            raise WorkerError(what) from error
        opened.callback(os.close, ca)
        return ca

    def adopt(self, session: Session) -> None:
        """Takes over a session that an earlier server opened."""
        record = session.worker.record
        if record.uid is not None:
            self._starter.users.adopt(record.id, f"relay {record.id}", record.uid)
        self._follow(session)
        session.log.write(f"adopted: {session.requester.describe()}, relay {session.worker.id}")
        if session.requester.channel == "shm" and session.requester.pidfd < 0:
            session.worker.end(ENDED_UNSEEN)

    def let_go(self) -> None:
        """The server stops: sessions go on without it."""
        for session in self.sessions.values():
            unwatch_client(session)
            session.worker.let_go()

    async def _start_process(self) -> Worker:
        relay_id = secrets.token_hex(6)
        log_path = self._log_dir / "relay" / f"{relay_id}.log"
        try:
            record, pidfd = self._starter.start_relay(relay_id, self.files, log_path)
        except (OSError, NativeFileMissing) as error:
            raise WorkerError(f"no relay can be started: {error}") from error
        worker = Worker(record, pidfd, self.files)
        worker.on_exit = self._unused_one_ended
        try:
            worker.connect()
            await worker.wait_ready(READY_SECONDS)
        except OSError as error:
            worker.kill()
            raise WorkerError(f"relay {relay_id} cannot be reached: {error}") from error
        except (WorkerError, asyncio.CancelledError):
            worker.end(End(EndCause.NOT_TAKEN, "it was not ready in time"), grace=0)
            raise
        return worker

    def _write(self, session: Session) -> None:
        session.worker.record.session = session.to_record()
        self.files.write(session.worker.record)

    def _follow(self, session: Session) -> None:
        self.sessions[session.id] = session
        session.worker.on_exit = lambda _, why: self._ended(session, why)
        watch_client(session)

    def _ended(self, session: Session, why: End) -> None:
        self.sessions.pop(session.id, None)
        forget_client(session)
        self._clean(session.worker)
        session.log.write(f"ended: {why}")
        session.gone.set()
        self._told(session, why)

    def _unused_one_ended(self, worker: Worker, why: End) -> None:
        log.warning("relay %s ended unused: %s; its log is %s", worker.id, why, worker.record.log)
        self._clean(worker)

    def _clean(self, worker: Worker) -> None:
        self._starter.users.leave(worker.id)
        if self._starter.cgroups:
            self._starter.cgroups.remove(worker.id)
