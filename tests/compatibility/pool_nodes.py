# SPDX-License-Identifier: Apache-2.0
"""Nodes of a pool with several controllers, of a release first and then of today; programs on them.

Used by test_rolling_upgrade.py. Real servers and workers on the software GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from control_plane import PYTHON_PATH, wait_for
from controllers import Controllers
from free_ports import free_port
from holder import Holder
from standing_processes import end_standing_processes

PROGRAM = Path(__file__).resolve().parent / "working_program.py"


class PoolNode:
    """One server and what it runs."""

    def __init__(self, folder: Path, name: str, pool: Controllers) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(mode=0o755)
        self.socket = self.folder / "run" / "server.sock"
        self.process: subprocess.Popen[bytes] | None = None
        (self.folder / "server.conf").write_text(
            f"[log]\nlog_dir = {self.folder}/log\n"
            f"[controller]\naddresses = {pool.addresses}\ngrpc_addresses = {','.join(pool.grpc)}\n"
            "wait_seconds = 60\n"
            f"[server]\nnode_name = {name}\nrun_dir = {self.folder}/run\n"
            f"listen_port = {free_port()}\ndriver = softgpu\nenable_kvm = false\n"
            f"region_dir = {self.folder}\n"
        )

    def start(self, environment: dict[str, str] | None = None) -> None:
        """The server of today, or of what the environment names; returns when it listens."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        with (self.folder / "server.out").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluice.server", "--config", self.folder / "server.conf"],
                stdout=out,
                stderr=out,
                env={**clean, "PYTHONPATH": str(PYTHON_PATH), **(environment or {})},
            )
        wait_for(self.socket.exists, 120, message=self.log)

    def stop(self) -> None:
        """As an upgrade stops it: the server alone."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.socket.unlink(missing_ok=True)

    def log(self) -> str:
        """What its servers said."""
        return (self.folder / "server.out").read_text()

    def workers(self) -> set[int]:
        """The processes of sessions, as the server wrote them down."""
        found = set()
        for path in (self.folder / "run" / "workers").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                record = json.loads(path.read_text())
                if record["session"]:
                    found.add(int(record["pid"]))
        return found

    def program(self, libraries: Path) -> Holder:
        """A CUDA program on this node, over shared memory."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_"))}
        return Holder(
            {
                **clean,
                "LD_LIBRARY_PATH": str(libraries),
                "SLUICE_SERVER_SOCKET": str(self.socket),
                "SLUICE_CHANNEL": "shm",
                "SLUICE_GMEM": "64",
            },
            program=PROGRAM,
        )

    def close(self) -> None:
        """Ends everything on it."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        for path in (self.folder / "run" / "workers").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
        end_standing_processes(self.folder / "run")


class Load:
    """Programs that work without a pause, in a thread of its own, until it is stopped.

    `rounds` counts how often all of them have worked; `wrong` has what was not as it should be.
    """

    def __init__(self, programs: Sequence[Holder]) -> None:
        self._programs = programs
        self._stop = threading.Event()
        self.rounds = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for program in self._programs:
                program.say()
            for number, program in enumerate(self._programs):
                if (answer := program.answer(60)) != 0:
                    self.wrong.append(f"program {number} in round {self.rounds}: {answer}")
                    return
            self.rounds += 1

    def goes_on(self, about: str) -> None:
        """Returns when all have worked since this was asked; fails where one has not."""
        since = self.rounds
        wait_for(
            lambda: self.wrong or self.rounds > since + 1,
            120,
            message=lambda: f"no program works {about}",
        )
        assert not self.wrong, f"{about}: {self.wrong}"

    def close(self) -> None:
        """Ends the programs."""
        self._stop.set()
        self._thread.join(120)
        for program in self._programs:
            program.kill()
