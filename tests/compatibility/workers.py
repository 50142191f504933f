# SPDX-License-Identifier: Apache-2.0
"""Worker and relay of this tree on the software GPU, for one recorded or replayed session.

They are started without a server: what is recorded and replayed is what comes after one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config.native_files import SOFTGPU, find_native

SESSION = "0123456789abcdef"
MEMORY_MIB = 256
REGION_BYTES = 4096 + (8 << 20)
RELAYED_BYTES = 4096 + (16 << 20)
#: An OpenReply that says yes.
OPENED = (512).to_bytes(4, "little") + (2).to_bytes(2, "little") + bytes(506)


class LoneProcess:
    """A sluice-worker or sluice-relay that is ready for its session."""

    def __init__(self, program: str, folder: Path, log: Any, *options: str) -> None:
        name = secrets.token_hex(4)
        path = folder / f"{name}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(2)
            command = [find_native(program), "--id", name, "--control", str(listener.fileno())]
            self.process = subprocess.Popen(
                [*command, "--sandbox", "off", *options],
                pass_fds=[listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.connect(str(path))
        path.unlink()
        self.wait_for("ready")

    def start(self, fields: dict[str, object], descriptors: Sequence[int]) -> None:
        """Gives it its session."""
        text = "session\n" + "".join(f"{key}={value}\n" for key, value in fields.items())
        socket.send_fds(self.control, [text.encode()], descriptors)

    def wait_for(self, verb: str) -> None:
        """What it offers meanwhile is nobody's here."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self.control, 65536, 8)
            for descriptor in descriptors:
                os.close(descriptor)
            if packet.startswith(verb.encode()):
                return
            if packet.startswith((b"error", b"ended")) or not packet:
                raise RuntimeError(f"{self.process.args}: {packet.decode()!r} in place of {verb}")

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()
        self.control.close()


class LoneRelay(LoneProcess):
    """A relay between a client, whose Unix connection this is, and a port of this host."""

    def __init__(self, folder: Path, connection: socket.socket, port: int) -> None:
        super().__init__("sluice-relay", folder, None)
        self._connection = connection
        request = connection.recv(4096)
        self._memory = os.memfd_create("sluice", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, RELAYED_BYTES)
        tcp = request[:68] + (3).to_bytes(4, "little") + request[72:512]
        fields = {"id": SESSION, "grant": "recorded", "channel": "shm", "node": "recorded"}
        fields |= {"address": "127.0.0.1", "port": str(port), "request": tcp.hex()}
        fields |= {"descriptors": "region,client_pidfd"}
        client = own_pidfd()
        self.start({**fields}, [self._memory, client])
        os.close(client)

    def answer(self) -> None:
        """Tells the client that its session is open, once it is."""
        self.wait_for("started")
        process = os.pidfd_open(self.process.pid)
        with self._connection:
            socket.send_fds(self._connection, [OPENED], [self._memory, process])
        for descriptor in (self._memory, process):
            os.close(descriptor)


@dataclass
class Host:
    """Where workers are started."""

    folder: Path
    libraries: str = ""  # folder of what stands in for NVIDIA's

    @contextlib.contextmanager
    def worker(self) -> Iterator[LoneProcess]:
        """A warm one; it is gone when the block is left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ["--driver", str(find_native(SOFTGPU))]
        if self.libraries:
            options += ["--libraries", self.libraries]
        with (self.folder / "worker.log").open("ab") as log:
            started = LoneProcess("sluice-worker", self.folder, log, *options)
        try:
            yield started
        finally:
            started.close()

    @contextlib.contextmanager
    def relay(self, connection: socket.socket, port: int) -> Iterator[LoneRelay]:
        """One for a client that has asked for its session."""
        started = LoneRelay(self.folder, connection, port)
        try:
            yield started
        finally:
            started.close()

    def log(self) -> str:
        """What workers said."""
        path = self.folder / "worker.log"
        return path.read_text() if path.exists() else ""


def start_session(
    worker: LoneProcess, channel: str, named: Sequence[tuple[str, int]], slot: int | None = None
) -> None:
    """Gives a worker its session, with one vGPU."""
    fields: dict[str, object] = {"id": SESSION, "grant": "recorded", "channel": channel}
    if slot is not None:
        fields |= {"slot": slot, "slots": 1}
    fields |= {"vgpus": 1, "descriptors": ",".join(name for name, _ in named)}
    fields |= {"vgpu.0.place": 0, "vgpu.0.device": "", "vgpu.0.compute_percent": 100}
    fields |= {"vgpu.0.memory_mib": MEMORY_MIB}
    worker.start(fields, [descriptor for _, descriptor in named])
    worker.wait_for("started")


def connection_pair(channel: str) -> tuple[socket.socket, socket.socket]:
    """What lies between a client and a worker: ours and the worker's end."""
    if channel == "vsock":  # as it comes from the process of a guest's device
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = socket.create_connection(door.getsockname())
        theirs, _ = door.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def own_pidfd() -> int:
    """For a worker that is to end with us."""
    return os.pidfd_open(os.getpid())
