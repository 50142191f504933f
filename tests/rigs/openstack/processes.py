# SPDX-License-Identifier: Apache-2.0
"""Background processes of a rig: started in sessions of their own, found again by their pid files.

Used by rig.py. A pid file holds the number and when that process began, so that a later run never
takes another process of the same number for its own, and ends nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Processes:
    """Those of one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._run, self._log = root / "run", root / "log"
        for folder in (self._run, self._log):
            folder.mkdir(parents=True, exist_ok=True)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts it unless it runs; its output goes to log/NAME.log."""
        if self.running(name):
            return
        with (self._log / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._file(name).write_text(f"{process.pid} {_began(process.pid)}")

    def stop(self, name: str, seconds: float = 15) -> None:
        """Ends it and all that it started."""
        if (pid := self._pid(name)) is not None:
            self._signal(pid, signal.SIGTERM)
            deadline = time.monotonic() + seconds
            while self._pid(name) is not None:
                if time.monotonic() > deadline:
                    self._signal(pid, signal.SIGKILL)
                    deadline += seconds
                time.sleep(0.05)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            self._signal(pid, signal.SIGKILL)  # whoever of its group is left
        self._file(name).unlink(missing_ok=True)

    def running(self, name: str) -> bool:
        return self._pid(name) is not None

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._run.glob("*.pid"))

    def resident_mib(self, name: str) -> int:
        """The memory of it and of its children; 0 if it does not run."""
        if (leader := self._pid(name)) is None:
            return 0
        total = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) == leader:
                    total += int((folder / "statm").read_text().split()[1])
            except (OSError, ValueError):
                continue
        return total * os.sysconf("SC_PAGE_SIZE") >> 20

    def tail(self, name: str, characters: int = 2000) -> str:
        path = self._log / f"{name}.log"
        return path.read_text(errors="replace")[-characters:] if path.exists() else ""

    def wait_port(self, name: str, port: int, seconds: float = 120) -> None:
        """Waits until that process listens."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            if not self.running(name):
                raise RuntimeError(f"{name} ended before it listened: {self.tail(name)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name}: port {port} not open after {seconds:.0f} s")
            time.sleep(0.1)

    def _file(self, name: str) -> Path:
        return self._run / f"{name}.pid"

    def _pid(self, name: str) -> int | None:
        try:
            pid, began = (int(word) for word in self._file(name).read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if began != -1 and _began(pid) == began else None

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def _began(pid: int) -> int:
    """When a process began, in ticks since boot; -1 where there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])
