# SPDX-License-Identifier: Apache-2.0
"""Real members of an etcd cluster on loopback, for tests and for the benchmark.

A EtcdMembers owns its processes and folders. Members can be killed, paused and started again. Where
Debian's etcd-server is not installed, `is_there()` is False.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from free_ports import free_port
from places import HERE, Place


def is_there() -> bool:
    """Whether etcd can run here."""
    return shutil.which("etcd") is not None


class EtcdMembers:
    """A cluster; start() first."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        *options: str,
        scheme: str = "http",
        places: Sequence[Place] = (),
    ) -> None:
        self._scheme = scheme
        self._folder = folder
        self._options = options
        self._places = places or [HERE] * count
        self._clients = [free_port() for _ in range(count)]
        self._peers = [free_port() for _ in range(count)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self.endpoints = [f"{place.address}:{port}" for place, port in self._at(self._clients)]

    def start(self) -> None:
        """Starts every member and waits for a leader."""
        for number in range(len(self.processes)):
            self.start_member(number)
        self.wait_healthy()

    def start_member(self, number: int) -> None:
        """Starts a member, anew or again."""
        peers = [f"http://{place.address}:{port}" for place, port in self._at(self._peers)]
        client = f"{self._scheme}://{self.endpoints[number]}"
        cluster = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"m{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [
                    *self._places[number].enter,
                    "etcd",
                    *("--name", f"m{number}", "--data-dir", str(self._folder / f"m{number}")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peers[number]),
                    *("--initial-advertise-peer-urls", peers[number]),
                    *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
                    *self._options,
                ],
                stdout=log,
                stderr=log,
            )

    def _at(self, ports: Sequence[int]) -> Iterator[tuple[Place, int]]:
        return zip(self._places, ports, strict=True)

    def wait_healthy(self, seconds: float = 30.0, health: Sequence[str] = ()) -> None:
        """Returns once a member can write; asks at the client addresses unless told where."""
        addresses = health or [f"http://{endpoint}" for endpoint in self.endpoints]
        deadline = time.monotonic() + seconds
        while True:
            for address in addresses:
                try:
                    with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
                        if b'"true"' in answer.read():
                            return
                except OSError:
                    pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"etcd is not healthy; see {self._folder}/m0.log")
            time.sleep(0.05)

    def signal(self, number: int, what: signal.Signals) -> None:
        """Kills, pauses or continues a member."""
        process = self.processes[number]
        assert process
        process.send_signal(what)
        if what in (signal.SIGKILL, signal.SIGTERM):
            process.wait()
            self.processes[number] = None

    def close(self) -> None:
        """Ends every member."""
        for process in self.processes:
            if process:
                process.kill()
                process.wait()


@contextmanager
def etcd_members(folder: Path, count: int = 1, *options: str) -> Iterator[EtcdMembers]:
    """A running cluster for the time of a block."""
    members = EtcdMembers(folder, count, *options)
    try:
        members.start()
        yield members
    finally:
        members.close()
