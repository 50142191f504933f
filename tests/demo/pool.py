# SPDX-License-Identifier: Apache-2.0
"""A controller and a server of this checkout, running in a folder of their own.

Used by the demo, the benchmark and the GPU tests. Owns the two processes and, through them, the
workers; close() ends all and says whether anything was left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from free_ports import free_port
from short_folder import LONGEST_SOCKET_PATH, ShortFolder
from standing_processes import end_standing_processes

ROOT = Path(__file__).resolve().parents[2]
#: Below run_dir: the relays' and workers' sockets have the longest names.
LONGEST_SOCKET_NAME = len("/workers/") + 40


class Pool:
    """The control plane with its one node."""

    def __init__(
        self, folder: Path, *, libvirt_uri: str = "", server: dict[str, object] | None = None
    ) -> None:
        self.folder = folder
        self.rest = f"127.0.0.1:{free_port()}"
        run = folder / "run"
        self._short: ShortFolder | None = None
        if len(os.fsencode(run)) + LONGEST_SOCKET_NAME > LONGEST_SOCKET_PATH:
            self._short = ShortFolder(run)
            run = self._short.path
        self._run = run
        self.socket = run / "server.sock"
        grpc, data = free_port(), free_port()
        (folder / "run").mkdir(parents=True, exist_ok=True)
        rest_port = self.rest.rpartition(":")[2]
        settings: dict[str, object] = {
            "run_dir": run,
            "listen_port": data,
            "node_name": "demo-node",
            "enable_kvm": str(bool(libvirt_uri)).lower(),
            **(server or {}),
        }
        if libvirt_uri:
            settings["libvirt_uri"] = libvirt_uri
        (folder / "controller.conf").write_text(
            f"[log]\nlog_to_screen = false\nlog_dir = {folder}/log\n"
            f"[controller]\nrest_port = {rest_port}\ngrpc_port = {grpc}\n"
            f"store = {folder}/controller.db\n"
        )
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        (folder / "server.conf").write_text(
            f"[log]\nlog_to_screen = false\nlog_dir = {folder}/log\n"
            f"[controller]\ncontroller_addr = {self.rest}\ngrpc_addr = 127.0.0.1:{grpc}\n"
            f"[server]\n{lines}"
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, seconds: float = 60) -> None:
        """Starts both and waits until the pool has a GPU."""
        for part in ("controller", "server"):
            self.start_part(part)
        deadline = time.monotonic() + seconds
        while True:
            for part, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"sluice-{part} ended: {self._tail(part)}")
            try:
                if self.get("/v1/gpus")["gpus"]:
                    return
            except (OSError, KeyError):
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(f"no GPU in the pool after {seconds} s: {self._tail('server')}")
            time.sleep(0.05)

    def start_part(self, part: str) -> None:
        """Starts sluice-controller or sluice-server."""
        paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in paths if p))
        with (self.folder / f"{part}.out").open("ab") as out:
            self._processes[part] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    f"sluice.{part}",
                    "--config",
                    str(self.folder / f"{part}.conf"),
                ],
                env=environment,
                stdout=out,
                stderr=out,
            )

    def get(self, path: str) -> Any:
        """A REST resource."""
        with urllib.request.urlopen(f"http://{self.rest}{path}", timeout=10) as answer:
            return json.load(answer)

    def grants(self) -> list[dict[str, Any]]:
        """The grants that are held now."""
        held: list[dict[str, Any]] = [
            g
            for g in self.get("/v1/grants")["grants"]
            if g.get("state") not in ("ended", "released")
        ]
        return held

    def wait_empty(self, seconds: float = 10) -> float:
        """Waits until no grant is held; returns how long it took."""
        began = time.monotonic()
        while self.grants():
            if time.monotonic() - began > seconds:
                raise RuntimeError(f"grants are still held after {seconds} s: {self.grants()}")
            time.sleep(0.02)
        return time.monotonic() - began

    def _tail(self, part: str) -> str:
        texts = [self.folder / f"{part}.out", self.folder / "log" / f"{part}.log"]
        return "\n".join(p.read_text(errors="replace")[-2000:] for p in texts if p.exists())

    def close(self) -> None:
        """Ends server, then controller."""
        for part in ("server", "controller"):
            process = self._processes.get(part)
            if process and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        end_standing_processes(self._run)
        if self._short is not None:
            self._short.close()

    def __enter__(self) -> Pool:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
