# SPDX-License-Identifier: Apache-2.0
"""Real controller and server processes for tests, each in a folder of its own.

Used by tests/controller, tests/server and tests/cli, and free for others. A ControlPlane owns its
processes and ends them, workers included. Workers are real where the native part is built, and
FakeWorker elsewhere or where a test asks for it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from forks import OTHER_CODE, Service, start_service
from forks import PYTHON_PATH as PYTHON_PATH
from free_ports import free_port
from standing_processes import end_standing_processes

from sluice.config.native_files import SOFTGPU, NativeFileMissing, find_native

HARNESS = Path(__file__).resolve().parent


def wait_for(
    what: Callable[[], Any],
    seconds: float = 60.0,
    message: str | Callable[[], str] = "",
    *,
    longest_pause: float = 0.02,
) -> Any:
    """Returns what() once it is true; fails the test when that takes too long.

    The bound is for a machine that stands still at times: what is waited for is there at once.
    A message that is to tell how things stand at the end is a function. A longer pause is for what
    costs others something to be asked: a tenth of what was waited for up to now, at most.
    """
    began = time.monotonic()
    deadline = began + seconds
    while True:
        if result := what():
            return result
        if time.monotonic() > deadline:
            said = message() if callable(message) else message
            pytest.fail(f"not within {seconds} s: {said or what}")
        time.sleep(min(longest_pause, max(0.02, (time.monotonic() - began) / 10)))


def native_worker() -> Path | None:
    """The built worker, if it and the software GPU are there."""
    try:
        find_native(SOFTGPU)
        return find_native("sluice-worker")
    except NativeFileMissing:
        return None


def make_fake_native(folder: Path) -> Path:
    """A folder for SLUICE_NATIVE_DIR that holds FakeWorker in the place of sluice-worker."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "sluice-worker"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HARNESS}/fake_worker.py" "$@"\n')
    script.chmod(0o755)
    (folder / SOFTGPU).touch()
    return folder


@dataclass
class Client:
    """A process of its own that opens a session over the Unix socket and holds it."""

    process: subprocess.Popen[str]
    first: dict[str, Any] = field(default_factory=dict)

    @property
    def session_id(self) -> str:
        return f"{self.first['session_id']:016x}"

    def read(self) -> dict[str, Any]:
        """The client's next line: one OpenReply."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the client ended without a reply"
        result: dict[str, Any] = json.loads(line)
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class ControlPlane:
    """One controller and one server."""

    def __init__(
        self,
        folder: Path,
        *,
        fake: bool = False,
        server: dict[str, Any] | None = None,
        health: dict[str, Any] | None = None,
        pool: dict[str, Any] | None = None,
        auth: dict[str, Any] | None = None,
        tls: dict[str, Any] | None = None,
        server_tls: dict[str, Any] | None = None,
        projects: dict[str, Any] | None = None,
        containers: dict[str, Any] | None = None,
        nova: dict[str, Any] | None = None,
        native: dict[str, Any] | None = None,
        throttle: dict[str, Any] | None = None,
        suspend: dict[str, Any] | None = None,
        token_file: Path | None = None,
        log: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        openstack: dict[str, Any] | None = None,
        alerts: dict[str, Any] | None = None,
        oidc: dict[str, Any] | None = None,
        console: dict[str, Any] | None = None,
        rest_port: int = 0,
        environment: dict[str, str] | None = None,
        patience: float = 1,
        pool_of: ControlPlane | None = None,
    ) -> None:
        """With `pool_of` its server joins another's controller. A key that is None is left out."""
        self.folder = folder
        self.rest_port, self.grpc_port = rest_port or free_port(), free_port()
        if pool_of:
            self.rest_port, self.grpc_port = pool_of.rest_port, pool_of.grpc_port
        self.data_port = free_port()
        metrics_scheme = "https" if server_tls and "cert_file" in server_tls else "http"
        self.metrics_url = f"{metrics_scheme}://127.0.0.1:{free_port()}"
        self.node = (server or {}).get("node_name", "node-a")
        self.fake = fake or native_worker() is None
        self._told = environment or {}
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(PYTHON_PATH),
            **self._told,
        }
        if self.fake:
            self._environment["SLUICE_NATIVE_DIR"] = str(make_fake_native(folder / "native"))
        self.socket_path = folder / "run" / "server.sock"
        common = {"log_dir": folder / "log", "log_to_screen": "true", **(log or {})}
        self._write(
            "controller.conf",
            log={**common, "log_level": "DEBUG"},
            controller={
                "rest_port": self.rest_port,
                "grpc_port": self.grpc_port,
                "store": folder / "controller.db",
            },
            # so long that nobody is given up who restarts, or stands still with the machine
            pool={"heartbeat_seconds": 1, "node_timeout_seconds": 60, **(pool or {})},
            auth={"local": "operator", **(auth or {})},
            tls=tls or {},
            openstack=openstack or {},
            **({"alerts": alerts} if alerts else {}),
            **({"oidc": oidc} if oidc else {}),
            **({"console": console} if console else {}),
        )
        self._write(
            "server.conf",
            log={**common, "log_level": "INFO"},
            controller={
                "controller_addr": f"127.0.0.1:{self.rest_port}",
                "grpc_addr": f"127.0.0.1:{self.grpc_port}",
                "wait_seconds": patience,
                **({"token_file": token_file} if token_file else {}),
            },
            tls=server_tls or {},
            projects=projects or {},
            **({"containers": containers} if containers else {}),
            **({"nova": nova} if nova else {}),
            native=native or {},
            health=health or {},
            server={
                "node_name": self.node,
                "run_dir": folder / "run",
                "state_dir": folder / "state",
                "listen_port": self.data_port,
                "driver": "softgpu",
                "enable_kvm": "false",
                "region_dir": folder,
                "closed_grace_seconds": 5,  # each test that kills a client over TCP waits for it
                **(server or {}),
            },
            metrics=(
                {}
                if metrics is None
                else {"listen": self.metrics_url.partition("//")[2], **metrics}
            ),
            # Tenants of the software GPU cost each other nothing: no share could be counted.
            # {}: for a server of before, which does not know it.
            **({"suspend": suspend} if suspend else {}),
            throttle={} if throttle == {} else {"run_together": False, **(throttle or {})},
        )
        self.controller: Service | None = None
        self.server: Service | None = None
        self.clients: list[Client] = []
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.rest_port}"
        self.rest = self.rest_as("")

    def rest_as(self, token: str, **options: Any) -> httpx.Client:
        """REST as the owner of a token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        ca = self.folder / "ca" / "ca.crt"
        if self.url.startswith("https:") and ca.exists():
            options.setdefault("verify", ssl.create_default_context(cafile=ca))
        return httpx.Client(base_url=f"{self.url}/v1", timeout=15, headers=headers, **options)

    def first_token(self) -> str:
        """The admin token that the controller printed when it first started."""
        printed = re.search(r"^ +(sluice_\S+)$", self.log("controller"), re.MULTILINE)
        assert printed
        return printed[1]

    def _write(self, name: str, **sections: dict[str, Any]) -> None:
        lines = []
        for section, keys in sections.items():
            told = {key: value for key, value in keys.items() if value is not None}
            lines += [f"[{section}]", *(f"    {key} = {value}" for key, value in told.items())]
        (self.folder / name).write_text("\n".join(lines) + "\n")

    # processes

    def start_controller(self) -> None:
        self.controller = self._run("controller")
        wait_for(self._rest_answers, message="the controller's REST")

    def start_server(self, joined: bool = True, environment: dict[str, str] | None = None) -> None:
        """With `environment` it is another one, such as an older release's."""
        self.server = self._run("server", environment)
        wait_for(self._server_listens, message="the server's socket")
        if joined:
            wait_for(lambda: self.node_state() == "up", message="the node to join")

    def _run(self, service: str, environment: dict[str, str] | None = None) -> Service:
        return start_service(
            service,
            ["--config", str(self.folder / f"{service}.conf")],
            self.folder / f"{service}.out",
            {**self._environment, **(environment or {})},
            anew=bool(OTHER_CODE & {*self._told, *(environment or {})}),
        )

    def stop(self, service: str, number: signal.Signals = signal.SIGTERM) -> None:
        process: Service | None = getattr(self, service)
        assert process
        process.send_signal(number)
        process.wait(60)

    def end_clients(self) -> None:
        for client in self.clients:
            client.kill()
        self.clients.clear()

    def close(self) -> None:
        self.end_clients()
        for service in ("server", "controller"):
            process: Service | None = getattr(self, service)
            if process and process.poll() is None:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for pid in self.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_standing_processes(self.folder / "run")
        self.rest.close()

    # what there is

    def _rest_answers(self) -> bool:
        try:
            return self.rest.get("/pool").status_code in (200, 401)
        except httpx.TransportError:
            return False

    def _server_listens(self) -> bool:
        try:
            self.connect_unix().close()
        except OSError:
            return False
        return True

    def node_state(self) -> str:
        answer = self.rest.get(f"/nodes/{self.node}")
        return str(answer.json()["state"]) if answer.status_code == 200 else ""

    def grants(self) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.rest.get("/grants").json()["grants"]
        return result

    def sessions(self, state: str = "live") -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.rest.get("/sessions", params={"state": state}).json()[
            "sessions"
        ]
        return result

    def worker_records(self) -> list[dict[str, Any]]:
        records = []
        for path in (self.folder / "run" / "workers").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                records.append(json.loads(path.read_text()))
        return records

    def worker_pids(self) -> list[int]:
        return [record["pid"] for record in self.worker_records() if _is_alive(record["pid"])]

    def session_worker_pids(self) -> list[int]:
        return [r["pid"] for r in self.worker_records() if r["session"] and _is_alive(r["pid"])]

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.out").read_text()

    # clients

    def client(self, **wanted: Any) -> Client:
        """Starts a client process and reads its first reply."""
        command = [sys.executable, str(HARNESS / "unix_client.py"), str(self.socket_path)]
        process = subprocess.Popen(
            [*command, json.dumps(wanted)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        client = Client(process)
        self.clients.append(client)
        client.first = client.read()
        return client

    def program_environment(self, **more: str) -> dict[str, str]:
        """Of a CUDA program on this host, with nothing of Sluice's or CUDA's but what is said."""
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_"))}
        return {
            **mine,
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            "SLUICE_SERVER_SOCKET": str(self.socket_path),
            "SLUICE_CONTROLLER": f"127.0.0.1:{self.rest_port}",
            **more,
        }

    def connect_unix(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connected.settimeout(10)
        connected.connect(str(self.socket_path))
        return connected

    def connect_data(self, source: str = "127.0.0.1") -> socket.socket:
        """A connection to the data port, from an address of this host."""
        connected = socket.create_connection(
            ("127.0.0.1", self.data_port), timeout=10, source_address=(source, 0)
        )
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected


def receive_reply(connected: socket.socket) -> tuple[bytes, list[int]]:
    """One OpenReply packet and the descriptors beside it."""
    descriptors = array.array("i")
    packet, ancillary, _, _ = connected.recvmsg(4096, socket.CMSG_SPACE(16))
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return packet, list(descriptors)


def read_stream(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connected.recv(count - len(data))
        if not part:
            break
        data += part
    return data


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


@contextlib.contextmanager
def running(
    folder: Path, *, as_admin: bool = False, with_server: bool = True, **options: Any
) -> Iterator[ControlPlane]:
    """A controller and a server that has joined it; `as_admin` we have the first token."""
    plane = ControlPlane(folder, **options)
    try:
        plane.start_controller()
        if as_admin:
            plane.rest = plane.rest_as(plane.first_token())
        if with_server:
            plane.start_server()
        yield plane
    finally:
        plane.close()


@contextlib.contextmanager
def guarded(folder: Path, **auth: Any) -> Iterator[ControlPlane]:
    """A controller that wants tokens of everybody (ours is the first, an admin's), and a server.

    `auth` are further settings of its section; what runs on the server's workers is not real.
    """
    token_file = folder / "node.token"
    settings = {"required": "yes", **auth}
    plane = ControlPlane(folder, fake=True, auth=settings, token_file=token_file)
    try:
        plane.start_controller()
        plane.rest = plane.rest_as(plane.first_token())
        node = plane.rest.post("/tokens", json={"role": "node", "node": plane.node})
        token_file.write_text(node.json()["secret"] + "\n")
        plane.start_server()
        yield plane
    finally:
        plane.close()
