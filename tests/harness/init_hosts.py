# SPDX-License-Identifier: Apache-2.0
"""Hosts that `sluice init` sets up, each in a folder of its own, with real services.

Used by tests/cli/test_init.py. What a folder's files say beforehand is what a test needs to run
several hosts on one machine: ports, folders, no libvirt.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from control_plane import PYTHON_PATH, wait_for
from forks import Service, run_command, start_service
from free_ports import free_port
from standing_processes import end_standing_processes


def sluice(
    *words: str | Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command, with nothing of this machine's environment."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    environment = {**clean, "PYTHONPATH": str(PYTHON_PATH), "COLUMNS": "200", **variables}
    return run_command(*words, environment=environment, stdin=stdin)


class InitHost:
    """One host: /etc/sluice is `etc` of its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etc = folder / "etc"
        self.etc.mkdir(parents=True)
        self.rest_port, self.grpc_port = free_port(), free_port()
        self.processes: dict[str, Service] = {}
        log = f"[log]\nlog_dir = {folder}/log\n"
        self.controller_settings = (
            f"{log}[controller]\nrest_port = {self.rest_port}\ngrpc_port = {self.grpc_port}\n"
            f"store = {folder}/controller.db\n[pool]\nheartbeat_seconds = 1\n"
        )
        self.server_settings = (
            f"{log}[server]\nlisten_port = {free_port()}\nrun_dir = {folder}/run\n"
            f"state_dir = {folder}/state\nregion_dir = {folder}\nenable_kvm = false ; none here\n"
        )
        (self.etc / "controller.conf").write_text(self.controller_settings)
        (self.etc / "server.conf").write_text(self.server_settings)

    @property
    def socket(self) -> Path:
        """Of local programs."""
        return self.folder / "run" / "server.sock"

    def init(self, *words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """`sluice init` here."""
        return sluice("init", "--config-dir", self.etc, *words, stdin=stdin)

    def must_init(self, *words: str | Path) -> str:
        """The same, where it has to succeed; what it printed."""
        done = self.init(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def files(self) -> dict[str, bytes]:
        """Everything below etc."""
        found = (path for path in sorted(self.etc.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.etc)): path.read_bytes() for path in found}

    def start(self, service: str) -> None:
        """The controller or the server, by the configuration that is there."""
        self.processes[service] = start_service(
            service,
            ["--config", str(self.etc / f"{service}.conf")],
            self.folder / f"{service}.out",
            {**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
        )

    def said(self, service: str) -> str:
        """What it wrote to its standard output."""
        return (self.folder / f"{service}.out").read_text()

    def ask(self, *words: str, account: str = "admin", of: InitHost | None = None) -> str:
        """A command of `sluice` to this pool, once it succeeds."""
        etc = (of or self).etc
        https = "cert_file" in (etc / "controller.conf").read_text()
        address = f"{'https' if https else 'http'}://127.0.0.1:{(of or self).rest_port}"
        token = etc / "accounts" / f"{account}.token"
        before: list[str | Path] = ["--token-file", token]
        if https:
            before += ["--ca", etc / "ca/ca.crt"]

        def answered() -> subprocess.CompletedProcess[str] | None:
            done = sluice(*before, *words, SLUICE_CONTROLLER=address)
            return done if done.returncode == 0 else None

        done = wait_for(answered, message=lambda: sluice(*before, *words).stderr)
        assert isinstance(done, subprocess.CompletedProcess)
        return str(done.stdout)

    def close(self) -> None:
        """Ends what runs."""
        for process in self.processes.values():
            process.terminate()
            process.wait(30)
        end_standing_processes(self.folder / "run")
