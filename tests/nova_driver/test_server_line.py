# SPDX-License-Identifier: Apache-2.0
"""What Nova's driver makes of a server that is new, old, away or about to come back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.nova_driver.compute import server_line
from sluice.nova_driver.compute.extra_specs import VgpuSpecs
from sluice.nova_driver.compute.server_line import ServerAway, ServerRefused

UUID = "11111111-2222-3333-4444-555555555555"
SPECS = VgpuSpecs(memory_mib=4096, compute=25, mode="on-demand")
RELEASES = Path(__file__).resolve().parents[1] / "compatibility"
#: None hangs up.
Answer = dict[str, Any] | None


class FakeServer:
    """Answers at a socket, in turn and then always the last one."""

    def __init__(self, path: Path, *answers: Answer) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answers = list(answers)
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self.asked.append(json.loads(connection.makefile().readline()))
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if answer is not None:
                    connection.sendall(json.dumps(answer).encode() + b"\n")

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vms.sock"


@pytest.fixture
def answering(path: Path) -> Iterator[Callable[..., FakeServer]]:
    started: list[FakeServer] = []

    def start(*answers: Answer) -> FakeServer:
        started.append(FakeServer(path, *answers))
        return started[-1]

    yield start
    for server in started:
        server.close()


def test_it_asks_for_the_metadata_alone(path: Path, answering: Callable[..., FakeServer]) -> None:
    server = answering({"devices": [], "metadata": "<vgpu/>"})
    channel = server_line.prepare_channel(str(path), UUID, SPECS, 5)
    assert (channel.devices, channel.metadata) == ((), "<vgpu/>")
    assert server.asked[0]["prepare"]["metadata_only"] is True


def test_a_server_of_0_1_0_gives_the_device_all_the_same(
    path: Path, answering: Callable[..., FakeServer]
) -> None:
    recorded = json.loads((RELEASES / "0.1.0/domains/nova.requests.json").read_text())
    answering(recorded["on-demand"]["answer"])
    [device] = server_line.prepare_channel(str(path), UUID, SPECS, 5).devices
    assert "<shmem" in device


def test_a_server_that_starts_anew_is_waited_for(
    path: Path, answering: Callable[..., FakeServer]
) -> None:
    def start_later() -> None:
        time.sleep(0.6)
        answering(None, {"ready": True})

    starting = threading.Thread(target=start_later)
    starting.start()
    server_line.make_ready(str(path), UUID, 30)
    starting.join()


def test_one_that_stays_away_is_named_with_the_remedy(path: Path) -> None:
    with pytest.raises(ServerAway, match="start it on this host, or set"):
        server_line.make_ready(str(path), UUID, 0.6)
    with pytest.raises(ServerAway, match=str(path)):
        server_line.prepare_channel(str(path), UUID, SPECS, 30)


def test_what_the_server_refuses_is_not_asked_again(
    path: Path, answering: Callable[..., FakeServer]
) -> None:
    server = answering({"error": "web: every slot of PCI bus 0 is used"}, {"ready": True})
    with pytest.raises(ServerRefused, match="every slot of PCI bus 0"):
        server_line.make_ready(str(path), UUID, 30)
    assert server.asked == [{"ready": {"uuid": UUID}}]


def test_an_answer_to_something_else_is_none(
    path: Path, answering: Callable[..., FakeServer]
) -> None:
    answering({"sessions": []})
    with pytest.raises(ServerRefused, match="lacks ready"):
        server_line.make_ready(str(path), UUID, 5)
