# SPDX-License-Identifier: Apache-2.0
"""Whatever answers a look, the process that looks goes on: it sees what makes sense, or nothing."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import looker
import pytest

from sluice.config.native_files import find_native
from sluice.protocol import frames
from sluice.server.sessions.open_session import pack_open_reply, pack_view

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

CODE = """
n.nvmlInit()
shown = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    shown.append([
        refused(n.nvmlDeviceGetName, h), refused(n.nvmlDeviceGetUUID, h),
        refused(lambda h: n.nvmlDeviceGetMemoryInfo(h).total, h),
        refused(lambda h: n.nvmlDeviceGetMemoryInfo(h).used, h),
        refused(lambda h: len(n.nvmlDeviceGetComputeRunningProcesses(h)), h),
        refused(n.nvmlDeviceGetPowerUsage, h), refused(n.nvmlDeviceGetClockInfo, h, 3),
        refused(n.nvmlDeviceGetCudaComputeCapability, h), refused(lambda h: n.nvmlDeviceGetPciInfo(h).busId, h),
        refused(n.nvmlSystemGetDriverVersion), refused(n.nvmlSystemGetCudaDriverVersion),
    ])
print(json.dumps(shown))
"""  # noqa: E501
#: NVML_ERROR_DRIVER_NOT_LOADED, of the one that was asked for; no process computes there.
NOTHING = [[-9] * 4 + [0] + [-9] * 5 + [13000]]


@contextmanager
def answering(path: Path, answer: Callable[[], bytes]) -> Iterator[None]:
    """A server that says one thing to whoever asks."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                if reply := answer():
                    client.send(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def seen(folder: Path, answer: bytes) -> Any:
    path = folder / "s"
    with answering(path, lambda: answer):
        environment = {
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "SLUICE_SERVER_SOCKET": str(path),
            "SLUICE_CHANNEL": "shm",
            "LD_LIBRARY_PATH": str(find_native("libnvidia-ml.so.1").parent),
        }
        return looker.look(environment, CODE)


def with_size(size: int, behind: bytes = b"") -> bytes:
    """An OpenReply that says that it has this size."""
    reply = pack_open_reply(0, 0, "")
    return struct.pack("<I", size) + reply[4:] + behind


def view(vgpus: object) -> bytes:
    return pack_view(json.dumps({"vgpus": vgpus}))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0",
        b"\xff" * 4096,
        pack_open_reply(100, 0, "no vGPU for you"),
        pack_open_reply(0, 0, "a session, which was not asked for"),
        with_size(0),
        with_size(0xFFFFFFF8),
        with_size(frames.OpenReply.BYTES + 4096),
    ],
)
def test_what_is_no_view_is_none(short_path: Path, answer: bytes) -> None:
    assert seen(short_path, answer) == NOTHING


@pytest.mark.parametrize(
    "answer",
    [
        with_size(frames.OpenReply.BYTES + 16, b"{" * 16),
        with_size(frames.OpenReply.BYTES + 40000, b'{"vgpus":' + b"[" * 39991),
        with_size(frames.OpenReply.BYTES + 8, b"\0" * 8),
        pack_view("[]"),
        pack_view('{"vgpus": 7}'),
        view([7, "x", None]),
    ],
)
def test_what_is_no_list_of_vgpus_shows_none(short_path: Path, answer: bytes) -> None:
    assert seen(short_path, answer) == []


def test_numbers_that_make_no_sense_are_bounded(short_path: Path) -> None:
    huge = 1 << 80
    vgpu = {
        "uuid": "x" * 5000 + "GPU-zz0123456789abcdef" * 40,
        "name": "\x1b]0;t\x07" + "n" * 4000,
        "memory_mib": 512,
        "used_mib": (1 << 40) + 5,
        "pci_bus_id": "b" * 4000,
        "driver_name": "d" * 4000,
        "cuda_version": -5,
        "card": huge,
        "attributes": f"75={huge} 76=-1 999999=1 =  x=y 18446744073709551616=1 75=9",
        "figures": f"11={huge} 11=7 63=1 64=1 4294967295=1 -1=2",
        "processes": [{"pid": huge, "name": "p" * 9000, "used_mib": huge}, 5, {}],
    }
    [shown] = seen(short_path, view([vgpu]))
    name, uuid, total, used, processes, power, _, capability, bus, driver, cuda = shown
    assert name == -7, "NVML_ERROR_INSUFFICIENT_SIZE of NVML's 96 bytes"
    assert uuid.startswith("GPU-")
    assert len(uuid) == 40
    assert (total, used) == (512 << 20, 512 << 20), "no more than there is"
    assert (processes, power, capability[0]) == (2, 7, 9)
    assert len(bus) < 32
    assert driver == -7, "the same of 80"
    assert cuda == 13000


def test_of_too_many_the_first_are_shown(short_path: Path) -> None:
    many = [{"uuid": f"GPU-{n:08x}", "memory_mib": 1} for n in range(900)]
    assert len(seen(short_path, view(many))) == frames.MAX_DEVICES
