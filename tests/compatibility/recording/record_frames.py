# SPDX-License-Identifier: Apache-2.0
"""Records sessions of this tree's client libraries with this tree's worker, on each channel.

Called by record.py. What is recorded is what a client sent and what it was answered; replay.py
plays the client's part of it again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import lzma
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.config.native_files import find_native

from .. import slots, workers
from ..slots import Slot, format_region
from ..streams import mailbox_opening, memory_file, read_opening, receive_exactly
from ..workers import REGION_BYTES, Host
from .stand_ins import stand_in_libraries, vsock_preload
from .taps import Recording, SlotTap, StreamTap, ended, runs_of

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
PROGRAMS = ROOT / "build" / "programs"
SECONDS = 120

#: Program and arguments. Shared memory carries the broad part; the others what differs with them.
BROAD = (
    ("vector_add", "1000"),
    ("streams_events", "2048"),
    ("host_callback",),
    ("module_launch", "500"),
    ("symbols",),
    ("memcpy2d",),
    ("pinned_mapped",),
    ("device_printf",),
    ("pools",),
    ("virtual_memory",),
    ("graphs",),
    ("graph_host",),
    ("graph_params",),
    ("graph_memory",),
    ("conditional",),
    ("attributes",),
    ("launch_error",),
    ("corner_cases",),
    ("library_calls",),
)
NARROW = (
    ("vector_add", "1000"),
    ("streams_events", "2048"),
    ("host_callback",),
    ("module_launch", "500"),
    ("memcpy2d",),
    ("graphs",),
    ("library_calls",),
)
SESSIONS = {"shm": BROAD, "ivshmem": NARROW, "tcp": NARROW, "vsock": NARROW, "relay": NARROW}


class Tape:
    """One recorded session."""

    def __init__(self) -> None:
        self.request = self.opening = b""
        self.recording = Recording()


def command_of(program: tuple[str, ...]) -> list[str]:
    """How a recorded program is started."""
    if program[0] == "library_calls":
        return [sys.executable, str(HERE / "library_calls.py")]
    return [str(PROGRAMS / program[0]), *program[1:]]


@contextlib.contextmanager
def client(
    folder: Path, program: tuple[str, ...], **said: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A running program with this tree's client libraries."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_"))}
    environment = {"HOME": str(folder), "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent)}
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            command_of(program), env={**clean, **environment, **said}, stdout=out, stderr=out
        )
    try:
        yield process
        if code := process.wait(SECONDS):
            raise SystemExit(f"{program} ended with {code}:\n{(folder / 'out').read_text()}")
    finally:
        process.kill()
        process.wait()


def unix_door(path: Path) -> socket.socket:
    """A listening socket of packets."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.settimeout(SECONDS)
    door.bind(str(path))
    door.listen(4)
    return door


def accepted(door: socket.socket) -> socket.socket:
    """The next connection."""
    connection, _ = door.accept()
    connection.settimeout(SECONDS)
    return connection


def record_shm(host: Host, folder: Path, program: tuple[str, ...], tape: Tape) -> None:
    """Over shared memory."""
    door = unix_door(folder / "s")
    said = {"SLUICE_CHANNEL": "shm", "SLUICE_SERVER_SOCKET": str(folder / "s")}
    with host.worker() as worker, client(folder, program, **said) as process:
        connection = accepted(door)
        tape.request = connection.recv(4096)
        region = memory_file(REGION_BYTES)
        named = [("region", region), ("client_pidfd", workers.own_pidfd())]
        workers.start_session(worker, "shm", named)
        far = Slot(region)
        tape.opening = mailbox_opening(far)
        near = memory_file(REGION_BYTES)
        os.pwrite(near, far.memory[:], 0)
        socket.send_fds(connection, [workers.OPENED], [near, os.pidfd_open(worker.process.pid)])
        connection.close()
        tap = SlotTap(Slot(near), far)
        tape.recording = tap.recording
        tap.run(ended(process))


def record_ivshmem(host: Host, folder: Path, program: tuple[str, ...], tape: Tape) -> None:
    """Over a guest's region, whose file its program maps as a guest maps its device."""
    path = Path("/dev/shm") / f"sluice-recording-{os.getpid()}"
    try:
        with path.open("w+b") as file:
            format_region(file.fileno(), REGION_BYTES, slots.FREE)
            near = Slot(file.fileno())
        said = {"SLUICE_CHANNEL": "ivshmem", "SLUICE_IVSHMEM": str(path)}
        said["SLUICE_WATCH"] = str(find_native("sluice-watch"))
        with host.worker() as worker, client(folder, program, **said) as process:
            while near.u32(slots.STATE) != slots.OPENING:
                if process.poll() is not None:
                    raise SystemExit((folder / "out").read_text())
                time.sleep(0.001)
            head = near.read(near.layout.mailbox, 4)
            tape.request = near.read(near.layout.mailbox, int.from_bytes(head, "little"))
            region = memory_file(REGION_BYTES)
            format_region(region, REGION_BYTES, slots.OPENING)
            far = Slot(region)
            far.write(far.layout.mailbox, tape.request)
            workers.start_session(worker, "ivshmem", [("region", region)], slot=0)
            tape.opening = mailbox_opening(far)
            near.write(near.layout.mailbox, tape.opening)
            tap = SlotTap(near, far)
            tape.recording = tap.recording
            near.set_u32(slots.STATE, slots.READY)
            tap.run(ended(process))
    finally:
        path.unlink()


def record_tcp(host: Host, folder: Path, program: tuple[str, ...], tape: Tape) -> None:
    """Over a network's connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as rest,
        socket.create_server(("127.0.0.1", 0)) as door,
        host.worker() as worker,
    ):
        rest.settimeout(SECONDS)
        door.settimeout(SECONDS)
        address = f"127.0.0.1:{rest.getsockname()[1]}"
        with client(folder, program, SLUICE_CHANNEL="tcp", SLUICE_CONTROLLER=address):
            with accepted(rest) as asked:
                asked.recv(65536)
                ticket = {"address": "127.0.0.1", "port": door.getsockname()[1], "key": "static"}
                body = json.dumps(ticket, separators=(",", ":"))
                head = f"HTTP/1.1 201 Created\r\nContent-Length: {len(body)}\r\n\r\n"
                asked.sendall((head + body).encode())
            with accepted(door) as connection:
                tape.request = receive_exactly(connection, 512)
                record_stream(worker, "tcp", connection, tape)


def record_vsock(host: Host, folder: Path, program: tuple[str, ...], tape: Tape) -> None:
    """Over vsock: the client's own code, with a Unix socket in the place of its device."""
    with socket.socket(socket.AF_UNIX) as door, host.worker() as worker:
        door.settimeout(SECONDS)
        door.bind(str(folder / "v"))
        door.listen(4)
        said = {"SLUICE_CHANNEL": "vsock", "SLUICE_TEST_VSOCK": str(folder / "v")}
        said["LD_PRELOAD"] = vsock_preload(folder)
        with client(folder, program, **said), accepted(door) as connection:
            tape.request = receive_exactly(connection, 512)
            record_stream(worker, "vsock", connection, tape)


def record_relay(host: Host, folder: Path, program: tuple[str, ...], tape: Tape) -> None:
    """Through a relay of this tree: the client has a slot that carries a connection's bytes."""
    door = unix_door(folder / "s")
    with socket.create_server(("127.0.0.1", 0)) as network, host.worker() as worker:
        network.settimeout(SECONDS)
        said = {"SLUICE_CHANNEL": "shm", "SLUICE_SERVER_SOCKET": str(folder / "s")}
        with client(folder, program, **said):
            connection = accepted(door)
            tape.request = connection.recv(4096, socket.MSG_PEEK)
            with (
                host.relay(connection, network.getsockname()[1]) as relay,
                accepted(network) as relayed,
            ):
                receive_exactly(relayed, 512)
                record_stream(worker, "tcp", relayed, tape, relay.answer)


def record_stream(
    worker: Any, channel: str, connection: socket.socket, tape: Tape, opened: Any = lambda: None
) -> None:
    """A session over a connection, from its first frame on."""
    ours, theirs = workers.connection_pair(channel)
    workers.start_session(worker, channel, [("socket", theirs.fileno())])
    theirs.close()
    tape.opening = read_opening(ours)
    connection.sendall(tape.opening)
    opened()
    tap = StreamTap(connection, ours)
    tape.recording = tap.recording
    tap.run()


def plain(value: Any) -> Any:
    """With bytes as JSON has them."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if each not in ([], {})}
    return [plain(each) for each in value] if isinstance(value, list) else value


def last_of_each(memory: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What lies there in the end, word by word, as runs."""
    words: dict[int, bytes] = {}
    for each in memory:
        data = each["data"]
        words |= {each["at"] + n: data[n : n + 8] for n in range(0, len(data), 8)}
    return [{"at": at, "data": data} for at, data in runs_of(words)]


def record_all(out: Path, only: str = "") -> None:
    """Writes every recording into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for channel, programs in SESSIONS.items():
        for program in programs:
            name = f"{channel}-{program[0]}"
            if not name.startswith(only):
                continue
            tape = Tape()
            with tempfile.TemporaryDirectory(prefix="rec-") as scratch:
                folder = Path(scratch)
                libraries = stand_in_libraries(folder) if program[0] == "library_calls" else ""
                began = time.monotonic()
                globals()[f"record_{channel}"](Host(folder, libraries), folder, program, tape)
            steps = tape.recording.steps
            for step in steps:
                step["then"]["memory"] = last_of_each(step["then"]["memory"])
            whole = {
                "channel": channel,
                "program": list(program),
                "request": tape.request,
                "opening": tape.opening,
                "steps": steps,
            }
            text = json.dumps(plain(whole), separators=(",", ":"))
            packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
            (out / f"{name}.json.xz").write_bytes(packed)
            seconds = time.monotonic() - began
            print(f"{name}: {len(steps)} steps, {len(packed)} bytes, {seconds:.1f} s", flush=True)
