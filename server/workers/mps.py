# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's MPS on this host: a control daemon for each project whose sessions run at once.

Used by workers.concurrent; made by service where problem_here() finds nothing in the way. A daemon
is a user's own (workers.users), and so are its folder and its clients: no two projects have one in
common. It outlives the server, is found again by its record, and ends when it has had no client for
a while. It promises that a client is ended by MPS before it is killed: one that is killed with work
under way takes its neighbours with it (docs/decisions/0005).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sluice.config.server_gpus import ThrottleSection
from sluice.protocol.frames import MAX_CONCURRENT_SESSIONS
from sluice.server.gpus.discovery import Driver
from sluice.server.listeners.peers import PeerGone, open_process, start_time_of
from sluice.server.workers.process import WorkerStarter, becoming, reap
from sluice.server.workers.users import NoUserLeftError, User, WorkerUsers

log = logging.getLogger("sluice.server")

CONTROL = "nvidia-cuda-mps-control"
START_SECONDS = 10.0
ANSWER_SECONDS = 10.0  # of a control daemon on a host that has much to do
LOOK_SECONDS = 0.02
#: Of MPS's own logs, which its clients can make grow.
MOST_LOG_BYTES = 4 << 20


class MpsError(Exception):
    """There is no daemon to be had, or it has no room; the text says why."""


@dataclass(slots=True)
class DaemonRecord:
    """What a later server needs to find a daemon."""

    id: str
    project: str
    uid: int
    gid: int
    pid: int = 0
    start_time: int = 0


@dataclass(slots=True, eq=False)
class Daemon:
    """A control daemon that lives, and the workers that are its clients."""

    record: DaemonRecord
    folder: Path
    pidfd: int = -1
    workers: set[str] = field(default_factory=set)
    over: bool = False

    @property
    def user(self) -> User:
        """Whose it is, and whom its clients have to be."""
        return User(self.record.uid, self.record.gid, own=True)

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process where it is."""
        folder = str(self.folder)
        return {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}


def problem_here(section: ThrottleSection, driver: Driver, users: WorkerUsers) -> str:
    """Why sessions cannot run at once on this host; empty: they can."""
    if not section.allow_concurrent:
        return "[throttle] allow_concurrent is false"
    if driver.is_none:
        return "this host gives no GPU"
    if driver.software and section.mps_control is None:
        return "the software GPU has no MPS"
    if control_program(section) is None:
        return (
            f"{section.mps_control or CONTROL} is not there: install it (it comes with the "
            "driver), or set [throttle] mps_control"
        )
    if os.geteuid() != 0:
        return "sluice-server is not root, and each project's MPS needs a user of its own"
    if not users.ids:
        return "[server] worker_uids gives no users, and each project's MPS needs one"
    return ""


def control_program(section: ThrottleSection) -> Path | None:
    """MPS's control program; None: there is none."""
    found = shutil.which(section.mps_control or CONTROL)
    return Path(found) if found else None


class MpsDaemons:
    """The daemons of this host, by project."""

    def __init__(
        self, control: Path, starter: WorkerStarter, run_dir: Path, log_dir: Path, idle: float
    ) -> None:
        """`idle`: after so many seconds without a client a daemon ends."""
        self._control = control
        self._starter = starter
        self._folder = run_dir / "mps"
        self._log_dir = log_dir
        self._idle = idle
        self._daemons: dict[str, Daemon] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Told of a daemon that is there no more: its clients have nothing to run on.
        self.on_end: Callable[[Daemon], None] = lambda daemon: None

    async def of(self, project: str) -> Daemon:
        """The project's daemon, started where there is none; raises MpsError."""
        async with self._starting.setdefault(project, asyncio.Lock()):
            daemon = self._daemons.get(project)
            if daemon is None:
                daemon = await self._start(project)
            return daemon

    def running(self, project: str) -> Daemon | None:
        """The project's daemon; None: there is none now."""
        return self._daemons.get(project)

    def is_full(self, daemon: Daemon) -> bool:
        """Whether MPS takes no more of its project's sessions."""
        return len(daemon.workers) >= MAX_CONCURRENT_SESSIONS

    def join(self, daemon: Daemon, worker_id: str) -> None:
        """A worker is to be its client; raises MpsError. It leaves when its process has ended."""
        if daemon.over:
            raise MpsError(f"the MPS daemon of project {daemon.record.project} has just ended")
        if self.is_full(daemon):
            raise MpsError(
                f"project {daemon.record.project} has {len(daemon.workers)} sessions that run at "
                "once on this host, and NVIDIA's MPS takes no more: end some, or ask for turns "
                "(SLUICE_SHARING=turns)"
            )
        daemon.workers.add(worker_id)
        self._starter.users.adopt(worker_id, key_of(daemon.record.project), daemon.record.uid)
        if timer := self._timers.pop(daemon.record.project, None):
            timer.cancel()
        self._bound_logs(daemon)

    def leave(self, daemon: Daemon, worker_id: str) -> None:
        """The worker's process has ended."""
        daemon.workers.discard(worker_id)
        self._starter.users.leave(worker_id)
        self._end_when_idle(daemon)

    def adopt(self) -> None:
        """Finds the daemons of an earlier server."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o711)
        for path in self._folder.glob("*.json"):
            try:
                record = DaemonRecord(**json.loads(path.read_text()))
                pidfd = open_process(record.pid, record.start_time)
            except (OSError, ValueError, TypeError, PeerGone):
                self._forget_files(path.stem)
                continue
            daemon = Daemon(record, self._folder / record.id, pidfd)
            self._starter.users.adopt(_member(record.id), key_of(record.project), record.uid)
            self._follow(daemon)
            self._end_when_idle(daemon)
            log.info("adopted the MPS daemon of project %s, pid %d", record.project, record.pid)

    def known(self, daemon_id: str) -> Daemon | None:
        """A daemon that lives, by its id."""
        return next((d for d in self._daemons.values() if d.record.id == daemon_id), None)

    async def terminate(self, daemon: Daemon, pid: int) -> None:
        """Has MPS end a client and what it has under way: it may be killed after that."""
        if daemon.over:
            return
        servers = (await self._say(daemon, "get_server_list") or "").split()
        for server in servers:
            if server.isdecimal():
                await self._say(daemon, f"terminate_client {server} {pid}")

    async def end_idle(self) -> list[Daemon]:
        """Ends the daemons that have no client now; returns those that have."""
        for daemon in list(self._daemons.values()):
            if not daemon.workers:
                await self.end(daemon)
        return list(self._daemons.values())

    def let_go(self) -> None:
        """The server stops: daemons and their clients go on."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for daemon in self._daemons.values():
            asyncio.get_running_loop().remove_reader(daemon.pidfd)
            os.close(daemon.pidfd)
        self._daemons.clear()

    # within

    async def _start(self, project: str) -> Daemon:
        record = DaemonRecord(secrets.token_hex(4), project, 0, 0)
        try:
            user = self._starter.users.join(_member(record.id), key_of(project))
        except NoUserLeftError as error:
            raise MpsError(str(error)) from error
        assert user, "problem_here() has seen that there are users"
        record.uid, record.gid = user.uid, user.gid
        daemon = Daemon(record, self._folder / record.id)
        try:
            daemon.folder.mkdir(mode=0o700)
            os.chown(daemon.folder, user.uid, user.gid)
            record.pid = self._starter.start_for_user(
                f"mps-{record.id}",
                [str(self._control), "-f"],
                self._log_dir / "mps" / f"{record.id}.log",
                user,
                daemon.environment,
            )
            record.start_time = start_time_of(record.pid)
            daemon.pidfd = open_process(record.pid, record.start_time)
            (self._folder / f"{record.id}.json").write_text(json.dumps(asdict(record)))
        except (OSError, PeerGone) as error:
            self._forget(daemon)
            raise MpsError(f"{self._control} cannot be started: {error}") from error
        self._follow(daemon)
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while await self._say(daemon, "get_server_list") is None:
            if daemon.over or asyncio.get_running_loop().time() > deadline:
                await self.end(daemon)
                raise MpsError(
                    f"{self._control} does not answer; its log is in {self._log_dir}/mps"
                )
            await asyncio.sleep(LOOK_SECONDS)
        log.info("MPS daemon of project %s: pid %d, uid %d", project, record.pid, record.uid)
        return daemon

    def _follow(self, daemon: Daemon) -> None:
        self._daemons[daemon.record.project] = daemon
        loop = asyncio.get_running_loop()
        loop.add_reader(daemon.pidfd, self._process_ended, daemon)

    def _process_ended(self, daemon: Daemon) -> None:
        asyncio.get_running_loop().remove_reader(daemon.pidfd)
        os.close(daemon.pidfd)
        reap(daemon.record.pid)
        daemon.over = True
        if self._daemons.get(daemon.record.project) is daemon:
            del self._daemons[daemon.record.project]
        if daemon.workers:
            log.warning(
                "the MPS daemon of project %s ended with %d client(s)",
                *(daemon.record.project, len(daemon.workers)),
            )
        self._forget(daemon)
        self.on_end(daemon)

    def _end_when_idle(self, daemon: Daemon) -> None:
        project = daemon.record.project
        if daemon.workers or daemon.over or project in self._timers:
            return

        def end() -> None:
            self._timers.pop(project, None)
            if not daemon.workers and not daemon.over:
                task = asyncio.create_task(self.end(daemon))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self._timers[project] = asyncio.get_running_loop().call_later(self._idle, end)

    async def end(self, daemon: Daemon) -> None:
        """Ends one that has no clients."""
        if daemon.over:
            return
        if self._daemons.get(daemon.record.project) is daemon:
            del self._daemons[daemon.record.project]  # whoever comes now has another started
        await self._say(daemon, "quit")
        if not daemon.over:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(daemon.pidfd, signal.SIGKILL)

    async def _say(self, daemon: Daemon, command: str) -> str | None:
        """What it answers; None: it does not."""
        try:
            asked = await asyncio.create_subprocess_exec(
                *becoming(daemon.user),
                str(self._control),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd="/",
                env={**self._starter.environment(), **daemon.environment},
            )
        except OSError as error:
            log.error("%s: %s", self._control, error)
            return None
        try:
            words = asked.communicate(f"{command}\n".encode())
            said, _ = await asyncio.wait_for(words, ANSWER_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                asked.kill()
            await asked.wait()
            log.warning("MPS daemon %s did not answer `%s`", daemon.record.id, command)
            return None
        return said.decode(errors="replace").strip() if asked.returncode == 0 else None

    def _bound_logs(self, daemon: Daemon) -> None:
        for name in ("control.log", "server.log"):
            path = daemon.folder / name
            with contextlib.suppress(OSError):
                if path.stat().st_size > MOST_LOG_BYTES:
                    os.truncate(path, 0)

    def _forget(self, daemon: Daemon) -> None:
        self._starter.users.leave(_member(daemon.record.id))
        self._forget_files(daemon.record.id)

    def _forget_files(self, daemon_id: str) -> None:
        (self._folder / f"{daemon_id}.json").unlink(missing_ok=True)
        shutil.rmtree(self._folder / daemon_id, ignore_errors=True)


def key_of(project: str) -> str:
    """Whose user a project's daemon and its clients are."""
    return f"concurrent {project}"


def _member(daemon_id: str) -> str:
    return f"mps {daemon_id}"
