# SPDX-License-Identifier: Apache-2.0
"""The sluice-relay processes of this host: how one comes to be, and what is left to clean up.

Used by sessions.relays, and by sessions.relayed_streams for clients with a connection of their own.
Which session one carries is theirs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from contextlib import ExitStack
from pathlib import Path

from sluice.config.native_files import NativeFileMissing
from sluice.protocol.control import RELAY_SENT
from sluice.resources.ends import End, EndCause
from sluice.server.sessions.open_session import FRAME_BYTES
from sluice.server.sessions.records import RelayedWay, Session, StreamWay
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerFiles, WorkerStarter
from sluice.server.workers.session_start import Channel, RelayStart, Resuming
from sluice.server.workers.worker import Worker, WorkerError

log = logging.getLogger("sluice.server")

READY_SECONDS = 10.0
#: For a relay that is told that another has taken its place.
REPLACED_SECONDS = 2.0


class RelayProcesses:
    """Starts relays and forgets them."""

    def __init__(
        self, starter: WorkerStarter, run_dir: Path, log_dir: Path, ca_file: Path | None = None
    ) -> None:
        """`ca_file`: whose certificates data ports show; None: the system's."""
        self._starter = starter
        self.files = WorkerFiles(run_dir, "relays", RELAY_SENT)
        self.log_dir = log_dir
        self.ca_file = ca_file

    async def start(self, log_path: Path | None = None) -> Worker:
        """One that is ready for a session, with this log or one of its own; raises WorkerError."""
        relay_id = secrets.token_hex(6)
        log_path = log_path or self.log_dir / "relay" / f"{relay_id}.log"
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

    def write(self, session: Session) -> None:
        """Has a later server find the session with its present relay."""
        session.worker.record.session = session.to_record()
        self.files.write(session.worker.record)

    async def go_on(
        self,
        session: Session,
        way: RelayedWay | StreamWay,
        channel: Channel,
        resuming: Resuming,
        seconds: float,
    ) -> None:
        """Has the session's present relay go on where another stopped; raises WorkerError, OSError.

        `channel` is its client's; it may take so many seconds.
        """
        with ExitStack() as opened:
            start = RelayStart(
                session_id=session.id,
                grant_id=session.grant_id,
                channel_name=session.requester.channel,
                channel=channel,
                request=bytes(FRAME_BYTES),
                node=session.relayed_to,
                address=way.address,
                port=way.port,
                tls=way.tls,
                ca=self.open_ca(opened) if way.tls else -1,
                client_pidfd=session.requester.pidfd,
                resuming=resuming,
            )
            await session.worker.start_session(start, seconds)

    def open_ca(self, opened: ExitStack) -> int:
        """A descriptor of the CA's file, closed with `opened`, -1: there is none; WorkerError."""
        if self.ca_file is None:
            return -1
        try:
            ca = os.open(self.ca_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            what = f"[tls] data_ca_file {self.ca_file}: {error.strerror}"
            raise WorkerError(what) from error
        opened.callback(os.close, ca)
        return ca

    def adopt(self, worker: Worker) -> None:
        """One that an earlier server started keeps its user."""
        record = worker.record
        if record.uid is not None:
            self._starter.users.adopt(record.id, f"relay {record.id}", record.uid)

    def forget(self, worker: Worker) -> None:
        """One has ended: its user and its cgroup are free."""
        self._starter.users.leave(worker.id)
        if self._starter.cgroups:
            self._starter.cgroups.remove(worker.id)

    def replace(self, worker: Worker) -> None:
        """Has one leave that another follows; its end is nobody's business from now on."""
        worker.on_exit = lambda one, _: self.forget(one)
        worker.follow_break(None)
        if not worker.exited:
            worker.tell(Message("replaced"))
            worker.kill_after(REPLACED_SECONDS)

    def _unused_one_ended(self, worker: Worker, why: End) -> None:
        log.warning("relay %s ended unused: %s; its log is %s", worker.id, why, worker.record.log)
        self.forget(worker)
