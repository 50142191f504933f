# SPDX-License-Identifier: Apache-2.0
"""Sessions of this host whose GPUs are another host's: each has a sluice-relay process here.

Used by sessions.manager, which asks the controller, and by sessions.adoption. The books of such a
session are kept by the GPU node's server; here it is a client's slot and the process that carries
its bytes. It promises what the manager promises: that a session's end leaves no process, no
descriptor, no cgroup.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sluice.config import log_ids
from sluice.config.native_files import NativeFileMissing
from sluice.protocol.control import RELAY_SENT
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import LocalGrant
from sluice.server.sessions.logs import SessionLog
from sluice.server.sessions.open_session import OpenSession, RefusalError, with_key
from sluice.server.sessions.records import (
    CLIENT_ENDED,
    ENDED_UNSEEN,
    NOT_STARTED,
    WENT_AWAY,
    JobPart,
    Requester,
    Session,
    close_descriptor,
)
from sluice.server.workers.process import WorkerFiles, WorkerStarter
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
        self,
        wish: OpenSession,
        requester: Requester,
        channel_fields: dict[str, str],
        descriptor: int,
        *,
        grant: LocalGrant,
        target: rpc.RelayTarget,
        part: JobPart | None,
        project: str,
    ) -> Session:
        """Has a granted session carried to its node; raises RefusalError.

        The grant and the descriptors are the caller's: the session keeps copies.
        """
        if requester.pidfd >= 0:
            requester = replace(requester, pidfd=os.dup(requester.pidfd))
        try:
            worker = await self._start()
        except BaseException as error:
            close_descriptor(requester.pidfd)
            if not isinstance(error, WorkerError):
                raise
            raise RefusalError(CudaStatus.OPERATING_SYSTEM, str(error)) from error
        session = Session(
            id=grant.session_id,
            grant_id=grant.grant_id,
            request_id=grant.request_id,
            vgpus=grant.vgpus,
            priority=wish.request.priority,
            requester=requester,
            worker=worker,
            log=SessionLog.take_over(
                self._log_dir,
                worker.record.log,
                grant.session_id,
                grant.grant_id,
                log_ids.request_id(),
            ),
            part=part,
            project=project,
            relayed_to=target.node,
        )
        worker.record.log = str(session.log.path)
        self._write(session)
        self._follow(session)
        fields = {
            "id": session.id,
            "grant": session.grant_id,
            "channel": requester.channel,
            "node": target.node,
            "address": target.address,
            "port": str(target.port),
            "tls": "1" if target.tls else "0",
            "tls_name": target.node if target.tls else "",
            "request": with_key(wish, target.key).hex(),
            **channel_fields,
        }
        try:
            await self._begin(session, fields, descriptor, tls=target.tls)
        except WorkerError as error:
            session.log.write(f"did not start: {error}", logging.ERROR)
            worker.end(NOT_STARTED, grace=0)
            status = error.status or CudaStatus.OPERATING_SYSTEM
            raise RefusalError(status, f"session {session.id} on {target.node}: {error}") from error
        except asyncio.CancelledError:
            worker.end(WENT_AWAY, grace=0)
            raise
        session.opening = False
        self._write(session)
        session.log.write(
            f"started: {requester.describe()} over {requester.channel}, relay {worker.id} pid "
            f"{worker.record.pid} to node {target.node} at {target.address}:{target.port}"
        )
        return session

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
            self._unwatch_client(session)
            session.worker.let_go()

    async def _start(self) -> Worker:
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

    async def _begin(
        self, session: Session, fields: dict[str, str], region: int, *, tls: bool
    ) -> None:
        descriptors = [("region", region)]
        if session.requester.pidfd >= 0:
            descriptors.append(("client_pidfd", session.requester.pidfd))
        ca = -1
        if tls and self._ca_file:
            try:
                ca = os.open(self._ca_file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                what = f"[tls] data_ca_file {self._ca_file}: {error.strerror}"
                raise WorkerError(what) from error
            descriptors.append(("ca", ca))
        try:
            await session.worker.start_session(fields, descriptors, OPEN_SECONDS)
        finally:
            close_descriptor(ca)

    def _write(self, session: Session) -> None:
        session.worker.record.session = session.to_record()
        self.files.write(session.worker.record)

    def _follow(self, session: Session) -> None:
        self.sessions[session.id] = session
        session.worker.on_exit = lambda _, why: self._ended(session, why)
        if session.requester.pidfd >= 0:
            loop = asyncio.get_running_loop()
            loop.add_reader(session.requester.pidfd, self._client_ended, session)

    def _client_ended(self, session: Session) -> None:
        self._unwatch_client(session)
        # the relay sees the same pidfd and ends by itself; this is for one that cannot
        session.worker.end(CLIENT_ENDED)

    def _unwatch_client(self, session: Session) -> None:
        if session.requester.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(session.requester.pidfd)

    def _ended(self, session: Session, why: End) -> None:
        self.sessions.pop(session.id, None)
        self._unwatch_client(session)
        close_descriptor(session.requester.pidfd)
        session.requester.pidfd = -1
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
