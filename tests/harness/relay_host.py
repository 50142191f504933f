# SPDX-License-Identifier: Apache-2.0
"""A second host of a pool, without a GPU: a server whose clients' sessions are relayed.

Used by tests that have a ControlPlane already, whose server has the GPU. It owns its server and the
relays, and ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control_plane import PYTHON_PATH, ControlPlane, wait_for
from free_ports import free_port
from standing_processes import end_standing_processes


class RelayHost:
    """One sluice-server with `driver = none`, as node-b of a pool."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        server_tls: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.plane = plane
        self.folder = folder
        self.node = "node-b"
        folder.mkdir(exist_ok=True)
        self.socket_path = folder / "run" / "server.sock"
        sections: dict[str, dict[str, Any]] = {
            "log": {"log_dir": folder / "log", "log_to_screen": "true", "log_level": "INFO"},
            "controller": {
                "controller_addr": f"127.0.0.1:{plane.rest_port}",
                "grpc_addr": f"127.0.0.1:{plane.grpc_port}",
                "wait_seconds": 1,
            },
            "tls": server_tls or {},
            "server": {
                "node_name": self.node,
                "run_dir": folder / "run",
                "state_dir": folder / "state",
                "listen_port": free_port(),
                "driver": "none",
                "enable_kvm": "false",
                "region_dir": folder,
                "arena_mib": 16,
                **settings,
            },
        }
        lines = []
        for section, keys in sections.items():
            lines += [f"[{section}]", *(f"    {key} = {value}" for key, value in keys.items())]
        (folder / "server.conf").write_text("\n".join(lines) + "\n")
        self.server: subprocess.Popen[bytes] | None = None

    def start(self, environment: dict[str, str] | None = None) -> None:
        """Starts the server (with `environment`: another one) and waits until it has joined."""
        settings = str(self.folder / "server.conf")
        with (self.folder / "server.out").open("ab") as out:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "sluice.server", "--config", settings],
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(PYTHON_PATH), **(environment or {})},
            )
        wait_for(self.is_up, message="the host without a GPU to join")

    def is_up(self) -> bool:
        """Whether the server listens and its node is up."""
        answer = self.plane.rest.get(f"/nodes/{self.node}")
        joined = answer.status_code == 200 and answer.json()["state"] == "up"
        return joined and self.socket_path.exists()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the server; relays go on."""
        assert self.server
        self.server.send_signal(number)
        self.server.wait(60)
        self.socket_path.unlink(missing_ok=True)

    def relays(self) -> list[dict[str, Any]]:
        """The records of relays whose processes live."""
        records = []
        for path in (self.folder / "run" / "relays").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                record = json.loads(path.read_text())
                if record["session"] and Path(f"/proc/{record['pid']}").exists():
                    records.append(record)
        return records

    def environment(self, **more: str) -> dict[str, str]:
        """Of a CUDA program on this host."""
        return self.plane.program_environment(
            SLUICE_SERVER_SOCKET=str(self.socket_path), SLUICE_CONTROLLER="", **more
        )

    def log(self) -> str:
        """What the server said."""
        return (self.folder / "server.out").read_text()

    def close(self) -> None:
        """Ends everything."""
        if self.server and self.server.poll() is None:
            self.server.terminate()
            try:
                self.server.wait(5)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        for relay in self.relays():
            with contextlib.suppress(ProcessLookupError):
                os.kill(relay["pid"], signal.SIGKILL)
        end_standing_processes(self.folder / "run")


@contextlib.contextmanager
def relay_host(plane: ControlPlane, folder: Path, **options: Any) -> Iterator[RelayHost]:
    """A host without a GPU that has joined the plane's pool."""
    host = RelayHost(plane, folder, **options)
    try:
        host.start()
        yield host
    finally:
        host.close()
