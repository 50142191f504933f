# SPDX-License-Identifier: Apache-2.0
"""Starts sluice-worker, the doorbell and the arbiter so that they outlive this server.

Called by workers.warm and workers.standing_process. Where systemd runs, the process gets a scope of
its own; elsewhere a session of its own (setsid) and a cgroup. Beside each worker's control socket
lies a JSON file with what a restarted server needs to adopt it: this module owns both files' names
and their removal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sluice.config.native_files import find_native
from sluice.config.server import ServerConfig
from sluice.protocol.control import WORKER_SENT, Spec
from sluice.server.listeners.peers import PeerGone, open_process, start_time_of
from sluice.server.workers.cgroups import SessionCgroups
from sluice.server.workers.compute_cache import ComputeCache
from sluice.server.workers.memory_limit import session_memory_mib
from sluice.server.workers.users import NoUserLeftError, User, worker_users

log = logging.getLogger("sluice.server")

SYSTEMD_RUNS = Path("/run/systemd/system")
#: Of a Unix socket's path (unix(7)).
MOST_ADDRESS_BYTES = 107
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_DEVICE_ORDER", "TZ")
KEPT_PREFIXES = ("SLUICE_", "NCCL_", "ASAN_", "UBSAN_", "TSAN_")


@dataclass(slots=True)
class WorkerRecord:
    """What is known of a worker process across a restart of the server."""

    id: str
    pid: int
    start_time: int
    driver: str
    devices: list[str]
    log: str
    session: dict[str, Any] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    #: Whether it waits for its session to learn which user it becomes, and which that was.
    waits_for_user: bool = False
    uid: int | None = None
    #: The MPS daemon that it is a client of; empty: of none.
    mps: str = ""
    #: The RDMA port that it was started with; empty: it knows of none.
    rdma: str = ""
    #: GPUs that it sees beside its own, so that its session may come back on one of them.
    beside: list[str] = field(default_factory=list)

    @property
    def sees(self) -> list[str]:
        """The GPUs that its driver shows it, those that it began on first."""
        return [*self.devices, *self.beside]


@dataclass(frozen=True, slots=True)
class MpsClient:
    """What makes a worker a client of an MPS daemon (workers.mps)."""

    daemon: str
    user: User
    environment: Mapping[str, str]


class WorkerFiles:
    """The folder of control sockets and records, one pair per worker (or relay)."""

    def __init__(
        self, run_dir: Path, folder: str = "workers", says: Mapping[str, Spec] = WORKER_SENT
    ) -> None:
        """`says`: what may come from the folder's processes."""
        self.says = says
        self.folder = run_dir / folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    def socket_path(self, worker_id: str) -> Path:
        """Where the worker listens."""
        return self.folder / f"{worker_id}.sock"

    def write(self, record: WorkerRecord) -> None:
        """Stores a record so that a crash leaves the old or the new one, never half of it."""
        path = self.folder / f"{record.id}.json"
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(record)))
        scratch.rename(path)

    def read(self, worker_id: str) -> WorkerRecord | None:
        """A worker's record; None if there is none that can be read."""
        try:
            return WorkerRecord(**json.loads((self.folder / f"{worker_id}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def remove(self, worker_id: str) -> None:
        """Forgets a worker that has ended."""
        for suffix in (".sock", ".json", ".tmp"):
            with contextlib.suppress(FileNotFoundError):
                (self.folder / f"{worker_id}{suffix}").unlink()

    def worker_ids(self) -> list[str]:
        """Every worker that left a socket or a record."""
        return sorted({path.stem for path in self.folder.iterdir()})


class WorkerStarter:
    """Starts workers as the configuration says."""

    def __init__(
        self, config: ServerConfig, files: WorkerFiles, libraries: Sequence[Path] = ()
    ) -> None:
        self._config = config
        self.files = files
        self.libraries = [str(folder) for folder in libraries]
        #: Where drivers keep what they compile; None: each compiles again.
        self.compute_cache: ComputeCache | None = None
        #: The RDMA port that workers open, NAME:PORT:GID; empty: none.
        self.rdma = ""
        self.merge_launches = False
        self._systemd = SYSTEMD_RUNS.is_dir() and shutil.which("systemd-run") is not None
        section = config.server
        self.cgroups = None if self._systemd else SessionCgroups(section.session_pids)
        first, last = section.worker_uids or (0, -1)
        self.users = worker_users(
            range(first, last + 1),
            section.worker_user,
            per_project=section.worker_uid_for == "project",
        )

    def start(
        self,
        worker_id: str,
        driver: str,
        devices: Sequence[str],
        log_path: Path,
        *,
        software: bool = False,
        mps: MpsClient | None = None,
        beside: Sequence[str] = (),
    ) -> tuple[WorkerRecord, int]:
        """Starts a worker that sees these GPUs (none named: all); returns its record and pidfd.

        `beside`: GPUs that it sees, too, and does not use, as its session may move there.
        `software`: the driver's GPUs have their memory in the host's. `mps`: it has been that user
        before its driver began; it leaves `users` when its process has ended.
        Raises OSError or NativeFileMissing.
        """
        options = ["--driver", driver]
        if self.libraries:
            options += ["--libraries", ":".join(self.libraries)]
        if devices:
            options += ["--visible-devices", ",".join(devices)]
        if beside:
            options += ["--beside", ",".join(beside)]
        if not self._config.server.charge_libraries:
            options += ["--meter", "off"]
        record = WorkerRecord(
            worker_id, 0, 0, driver, list(devices), str(log_path), libraries=self.libraries
        )
        record.beside = list(beside)
        if self.rdma:
            options += ["--rdma", self.rdma]
            record.rdma = self.rdma
        environment: dict[str, str] = {}
        if self.compute_cache:
            environment |= self.compute_cache.environment(worker_id)
        if mps:
            record.mps, record.uid = mps.daemon, mps.user.uid
            environment |= mps.environment
            options += ["--concurrent", "on", *_become(mps.user)]
        elif self.users.ids:
            record.waits_for_user = True
            options += ["--confine", "session"]
        elif shared := self.users.shared:
            options += _become(shared)
        memory = self.memory_mib(len(devices), software=software)
        files = self.files
        pidfd = self._start("sluice-worker", record, files, options, memory, environment)
        return record, pidfd

    def start_relay(
        self, relay_id: str, files: WorkerFiles, log_path: Path
    ) -> tuple[WorkerRecord, int]:
        """Starts a relay; returns its record and pidfd. Raises OSError or NativeFileMissing.

        Whoever owns it has it leave `users` when its process has ended.
        """
        record = WorkerRecord(relay_id, 0, 0, "", [], str(log_path))
        try:
            user = self.users.join(relay_id, f"relay {relay_id}")
        except NoUserLeftError as error:
            raise OSError(str(error)) from error
        if user and user.own:
            record.uid = user.uid
        try:
            memory = self.memory_mib(1, software=False)
            options = _become(user) if user else []
            if self.rdma:
                options += ["--rdma", self.rdma]
                record.rdma = self.rdma
            return record, self._start("sluice-relay", record, files, options, memory)
        except BaseException:
            self.users.leave(relay_id)
            raise

    def memory_mib(self, gpus: int, *, software: bool) -> int:
        """MiB of host memory of a worker that sees so many GPUs (0: no limit)."""
        section = self._config.server
        if section.session_memory_mib != "auto":
            return section.session_memory_mib
        return session_memory_mib(arena_mib=section.arena_mib, gpus=gpus, software=software)

    def _start(
        self,
        name: str,
        record: WorkerRecord,
        files: WorkerFiles,
        options: Sequence[str],
        memory_mib: int,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Starts a process that listens on a control socket; completes and writes its record."""
        program = find_native(name)
        worker_id, log_path = record.id, Path(record.log)
        socket_path = files.socket_path(worker_id)
        if (length := len(os.fsencode(socket_path))) > MOST_ADDRESS_BYTES:
            raise OSError(
                f"{socket_path} has {length} bytes, and the address of a socket has room for "
                f"{MOST_ADDRESS_BYTES}: set a shorter [server] run_dir"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(socket_path))
            listener.listen(4)
            command = [str(program), "--id", worker_id, "--control", str(listener.fileno())]
            command += options
            command += ["--sandbox", "on" if self._config.server.worker_sandbox else "off"]
            try:
                pid = self._spawn(
                    worker_id,
                    command,
                    log_path,
                    (listener.fileno(),),
                    memory_mib,
                    environment=environment,
                )
            except OSError:
                socket_path.unlink(missing_ok=True)
                raise
        try:
            record.pid, record.start_time = pid, start_time_of(pid)
            pidfd = open_process(pid, record.start_time)
        except PeerGone as error:
            files.remove(worker_id)
            raise OSError(f"{program} ended at once; its log is {log_path}") from error
        files.write(record)
        if self.cgroups:
            self.cgroups.add(worker_id, pid, memory_mib)
        return pidfd

    def start_standing(self, name: str, socket_path: Path, log_path: Path) -> int:
        """Starts sluice-NAME, of which there is one; returns its pid.

        Raises OSError or NativeFileMissing.
        """
        program = find_native(f"sluice-{name}")
        return self._spawn(name, [str(program), "--control", str(socket_path)], log_path, ())

    def start_for_user(
        self,
        name: str,
        command: list[str],
        log_path: Path,
        user: User,
        environment: Mapping[str, str],
    ) -> int:
        """Starts a program that is not ours as a user; returns its pid. Raises OSError."""
        command = [*becoming(user), *command]
        return self._spawn(name, command, log_path, (), environment=environment)

    def environment(self) -> dict[str, str]:
        """Of this server's environment and [server-nccl], for the processes that it starts."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if key in KEPT_VARIABLES or key.startswith(KEPT_PREFIXES)
        }
        return {**kept, **self._config.server_nccl.environment()}

    def _spawn(
        self,
        name: str,
        command: list[str],
        log_path: Path,
        descriptors: tuple[int, ...],
        memory_mib: int = 0,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        if self._systemd:
            section = self._config.server
            scope = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit=sluice-{name}"]
            if memory_mib:
                scope += ["-p", f"MemoryMax={memory_mib}M"]
            if section.session_pids:
                scope += ["-p", f"TasksMax={section.session_pids}"]
            command = [*scope, "--", *command]  # it execs the command: the pid stays
        # what a session does is nobody's but its owner's and the operator's
        with open(log_path, "ab", opener=_open_privately) as log_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_file,
                pass_fds=descriptors,
                start_new_session=True,
                cwd="/",
                env={**self.environment(), **(environment or {})},
            )
        # reaped by whoever holds its pidfd; this object must not try to
        process.returncode = 0
        return process.pid


def _open_privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)


def reap(pid: int) -> None:
    """Collects an ended child; does nothing if it is not ours (adopted, or reaped already)."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def becoming(user: User) -> list[str]:
    """Before a command that a user is to run.

    subprocess's own way forks this process with gRPC's threads in it, which a child does not always
    survive; without it the child is made by vfork.
    """
    return ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--"]


def _become(user: User) -> list[str]:
    return ["--uid", str(user.uid), "--gid", str(user.gid)]
