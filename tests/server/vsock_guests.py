# SPDX-License-Identifier: Apache-2.0
"""The vsock sockets of one domain, with a stand-in for its device's process."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import UserSockets
from sluice.server.guests.vsock import VsockGuests
from sluice.server.guests.vsock_backends import RECORDS

UUID = "606ef660-97e7-4293-92c4-c8b7480e0c99"
OWNER = RegionOwner(UUID, "guest")
REQUEST = DomainRequest(memory_mib=64, compute_percent=10, channel="vsock")

#: Listens where the real one does, and connects to the socket for whoever connects to it.
DEVICE = """#!{python}
import socket, sys, threading
device, guest = (word.split("=", 1)[1] for word in sys.argv[2:4])
listening = [socket.socket(socket.AF_UNIX) for _ in range(2)]
for each, path in zip(listening, (device, guest)):
    each.bind(path)
    each.listen(8)

def carry(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass

def serve(near):
    with near, socket.socket(socket.AF_UNIX) as far:
        far.connect(guest + "_9960")
        back = threading.Thread(target=carry, args=(far, near))
        back.start()
        carry(near, far)
        back.join()

while True:
    threading.Thread(target=serve, args=listening[0].accept()[:1]).start()
"""


class Bells:
    """The connections of guests' bells, as the doorbell would get them."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, socket.socket]] = []

    def append_bell(self, uuid: str, connected: socket.socket) -> None:
        self.taken.append((uuid, connected.dup()))


rung = Bells()


class FakeManager:
    """No session ever opens here; what there are, a test says."""

    served: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.resumable: dict[str, Any] = {}
        self.ended: list[str] = []
        self.relayed: list[tuple[str, int]] = []

    def end(self, session: Any, _: Any) -> None:
        self.ended.append(session.id)

    def resume_relayed(self, session: Any, descriptor: int, epoch: int) -> None:
        os.fstat(descriptor)
        self.relayed.append((session.id, epoch))


def guests_of(folder: Path, program: Path | str, manager: FakeManager | None = None) -> VsockGuests:
    run, log = folder / "run", folder / "log"
    manager = manager or FakeManager()
    return VsockGuests(manager, run, log, str(program), add_bell=rung.append_bell)  # type: ignore[arg-type]


def sockets_in(folder: Path) -> UserSockets:
    return UserSockets.of(folder / "run", UUID)


def record_in(folder: Path) -> Path:
    return folder / "run" / RECORDS / UUID
