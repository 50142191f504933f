# SPDX-License-Identifier: Apache-2.0
"""The processes that serve guests' vhost-user vsock devices: vhost-device-vsock, one a domain.

Started by guests.vsock for domains whose host has no vhost-vsock. Each runs as QEMU's account in a
folder that only this account may enter, and turns what its guest says to our port into connections
to a Unix socket there: so the socket says which guest it is. They outlive the server, since a guest
cannot be given another one while it runs; the next server finds them by a record in a folder that
QEMU's account cannot write, since it says which process will be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.hypervisor.vsock_devices import UserSockets, cids_for
from sluice.server.guests.foreign_folders import given_folder, own_folder
from sluice.server.listeners.peers import PeerGone, open_process, start_time_of
from sluice.server.sessions.logs import end_of

log = logging.getLogger("sluice.server")

#: In the run folder: a file per domain, with the pid and start time of its process.
RECORDS = "vsock-backends"
START_SECONDS = 10.0
#: Before one that ended by itself is started again.
AGAIN_SECONDS = 1.0
#: For its guest to hear of the ends of connections, before it is ended itself: one that is paused
#: hears nothing.
HEARD_SECONDS = 10.0
#: Of its log, which its guest can drive; what is beyond is not written. As much again is kept of
#: the one before.
LOG_MIB = 8
#: Of it, what is looked at for its last line.
LAST_BYTES = 400
#: Starts a program that can make no file longer (`ulimit` counts in 512 bytes), and hears so by an
#: error in place of a signal.
BOUNDED = ("/bin/sh", "-c", f"trap '' XFSZ; ulimit -f {LOG_MIB << 11}; exec \"$@\"", "sh")


class BackendError(Exception):
    """There is no process for a guest's vsock device, and why."""


@dataclass(slots=True)
class _Running:
    pid: int
    pidfd: int


class VsockBackend:
    """One domain's; ends with `close`, and not with the server."""

    def __init__(
        self,
        program: str,
        sockets: UserSockets,
        uuid: str,
        account: tuple[int, int] | None,
        *,
        run_dir: Path,
        log_dir: Path,
    ) -> None:
        self._program = program
        self._sockets = sockets
        self._uuid = uuid
        self._account = account
        self._log = log_dir / "vsock" / f"{uuid}.log"
        self._record = run_dir / RECORDS / uuid
        self._running: _Running | None = None
        self._again: asyncio.TimerHandle | None = None
        #: Told of what went wrong when it could not be started again.
        self.on_trouble: Callable[[str], None] = log.error

    @property
    def pid(self) -> int:
        """Whose connections come from the guest; 0 while there is none."""
        return self._running.pid if self._running else 0

    def prepare(self) -> None:
        """Makes the folder; raises BackendError."""
        folder = self._sockets.folder
        try:
            own_folder(self._record.parent)
            own_folder(folder.parent, 0o755)
            given_folder(folder, self._account)
        except OSError as error:
            raise BackendError(f"{folder}: {error.strerror}") from error

    async def start(self) -> None:
        """Starts it, or finds the one that an earlier server started; raises BackendError."""
        if self._running is None and not self._find():
            await self._start()

    def sockets(self) -> int:
        """How many its process has open; 0 where that cannot be seen."""
        found = set()
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(str(descriptor.readlink()))
        return sum(name.startswith("socket:") for name in found)

    async def until_heard(self, most: int) -> None:
        """Waits until its process has at most so many sockets.

        It closes one when its guest has answered that the other end has gone; a guest whose device
        ends before would take the connection for a silent one.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + HEARD_SECONDS
        while self.sockets() > max(most, 0) and loop.time() < until:
            await asyncio.sleep(0.02)

    def let_go(self) -> None:
        """The server stops; the guest goes on."""
        if self._again:
            self._again.cancel()
        if self._running:
            asyncio.get_running_loop().remove_reader(self._running.pidfd)
            os.close(self._running.pidfd)
            self._running = None

    def close(self) -> None:
        """Ends it and removes its folder."""
        if self._running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._running.pidfd, signal.SIGKILL)
            _collect(self._running.pidfd, 0)
        self.let_go()
        self._record.unlink(missing_ok=True)
        shutil.rmtree(self._sockets.folder, ignore_errors=True)

    def _find(self) -> bool:
        try:
            try:
                text = self._record.read_text()
            except FileNotFoundError:
                text = self._record_of_0_1()
                if text:
                    self._write_record(text)
            pid, started = (int(word) for word in text.split())
            self._follow(pid, open_process(pid, started))
        except (OSError, ValueError, PeerGone):
            return False
        log.info("vsock of domain %s: process %d goes on", self._uuid, pid)
        return True

    def _record_of_0_1(self) -> str:
        """What 0.1.0's server left in the folder that QEMU's account may write; raises OSError.

        That account can move a record of another domain here, but make none that root owns.
        """
        path = self._sockets.folder / "backend"
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if not ours or found.st_nlink != 1 or found.st_mode & 0o022:
                log.warning("%s is not what a server wrote, and counts for nothing", path)
                return ""
            text = os.read(descriptor, 64).decode(errors="replace")
        finally:
            os.close(descriptor)
        pid = int(text.partition(" ")[0])
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return text if f"--uds-path={self._sockets.guest}".encode() in arguments else ""

    def _write_record(self, text: str) -> None:
        scratch = self._record.with_suffix(".tmp")
        scratch.write_text(text)
        scratch.rename(self._record)

    async def _start(self) -> None:
        command = [
            self._program,
            f"--guest-cid={next(cids_for(self._uuid))}",
            f"--socket={self._sockets.device}",
            f"--uds-path={self._sockets.guest}",
        ]
        try:
            for socket in (self._sockets.device, self._sockets.guest):
                socket.unlink(missing_ok=True)
            pid = await asyncio.to_thread(self._spawn, command)
            self._follow(pid, os.pidfd_open(pid))
            self._write_record(f"{pid} {start_time_of(pid)}\n")
        except (OSError, PeerGone) as error:
            raise BackendError(f"{self._program} cannot be started: {error}") from error
        await self._wait_ready()
        log.info("vsock of domain %s: served by process %d", self._uuid, pid)

    def _spawn(self, command: Sequence[str]) -> int:
        account: dict[str, Any] = {}
        if self._account and os.geteuid() == 0:
            account = {"user": self._account[0], "group": self._account[1], "extra_groups": []}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if self._log.exists() and self._log.stat().st_size >= LOG_MIB << 19:
            self._log.replace(self._log.with_suffix(".log.1"))
        with self._log.open("ab") as out:
            process = subprocess.Popen(
                [*BOUNDED, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd="/",
                env={"PATH": os.environ.get("PATH", ""), "RUST_LOG": "warn"},
                **account,
            )
        process.returncode = 0  # reaped by whoever holds its pidfd
        return process.pid

    async def _wait_ready(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + START_SECONDS
        while not (self._sockets.device.exists() and self._sockets.guest.exists()):
            if self._running is None or loop.time() > until:
                ended = f"has ended{self._said()}" if self._running is None else "does not listen"
                raise BackendError(f"{self._program} {ended}; its log is {self._log}")
            await asyncio.sleep(0.02)

    def _said(self) -> str:
        """The last line of its log, in brackets; "": it said nothing."""
        try:
            lines = end_of(self._log, LAST_BYTES).splitlines()
        except OSError:
            return ""
        return f" ({''.join(c if c.isprintable() else '?' for c in lines[-1])})" if lines else ""

    def _follow(self, pid: int, pidfd: int) -> None:
        self._running = _Running(pid, pidfd)
        asyncio.get_running_loop().add_reader(pidfd, self._ended)

    def _ended(self) -> None:
        running = self._running
        if running is None:
            return
        _collect(running.pidfd, os.WNOHANG)
        self.let_go()
        log.warning(
            "vsock of domain %s: process %d has ended; its log is %s",
            self._uuid,
            running.pid,
            self._log,
        )
        loop = asyncio.get_running_loop()
        self._again = loop.call_later(AGAIN_SECONDS, lambda: loop.create_task(self._restart()))

    async def _restart(self) -> None:
        try:
            await self.start()
        except BackendError as error:
            self.on_trouble(f"vsock of domain {self._uuid}: {error}")
            loop = asyncio.get_running_loop()
            later = AGAIN_SECONDS * 30
            self._again = loop.call_later(later, lambda: loop.create_task(self._restart()))


def _collect(pidfd: int, options: int) -> None:
    """Waits for a child that has ended or was just killed; does nothing about another's."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | options)
