# SPDX-License-Identifier: Apache-2.0
"""A worker of this tree on the software GPU, for one recorded or replayed session."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from static_server import StaticWorker

from sluice.config.native_files import SOFTGPU, find_native

SESSION = "0123456789abcdef"
MEMORY_MIB = 256
REGION_BYTES = 4096 + (8 << 20)


@dataclass
class Host:
    """Where workers are started."""

    folder: Path
    libraries: str = ""  # folder of what stands in for NVIDIA's

    @contextlib.contextmanager
    def worker(self) -> Iterator[StaticWorker]:
        """A warm one; it is gone when the block is left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        started = StaticWorker(
            argparse.Namespace(
                run_dir=str(self.folder),
                worker=str(find_native("sluice-worker")),
                driver=str(find_native(SOFTGPU)),
                sandbox="off",
                libraries=self.libraries,
                visible_devices="",
                uid=0,
                log=str(self.folder / "worker.log"),
            )
        )
        try:
            started.wait_ready()
            yield started
        finally:
            started.process.kill()
            started.process.wait()
            started.control.close()

    def log(self) -> str:
        """What workers said."""
        path = self.folder / "worker.log"
        return path.read_text() if path.exists() else ""


def start_session(
    worker: StaticWorker, channel: str, named: Sequence[tuple[str, int]], slot: int | None = None
) -> None:
    """Gives a worker its session, with one vGPU."""
    fields: dict[str, object] = {"id": SESSION, "grant": "recorded", "channel": channel}
    if slot is not None:
        fields |= {"slot": slot, "slots": 1}
    fields |= {"vgpus": 1, "descriptors": ",".join(name for name, _ in named)}
    fields |= {"vgpu.0.place": 0, "vgpu.0.device": "", "vgpu.0.compute_percent": 100}
    fields |= {"vgpu.0.memory_mib": MEMORY_MIB}
    worker.start(fields, [descriptor for _, descriptor in named])


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
