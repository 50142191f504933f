# SPDX-License-Identifier: Apache-2.0
"""Which programs of a guest use its channel: the server's word, or the slots where none runs."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.guest_sessions import SOCKET_NAME, sessions_of
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import REGION_HEADER_BYTES, slot_bytes_of

from .domain_texts import UUID

SIZE = 64 << 20


@pytest.fixture
def files(tmp_path: Path) -> RegionFiles:
    (tmp_path / "run").mkdir()
    return RegionFiles("here", tmp_path, tmp_path / "run")


@contextmanager
def server(files: RegionFiles, answer: bytes) -> Iterator[list[bytes]]:
    """Gives one answer, to whatever is asked."""
    asked: list[bytes] = []
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(files.run_folder / SOCKET_NAME))
    listening.listen(1)

    def serve() -> None:
        line, _ = listening.accept()
        with line:
            asked.append(line.recv(65536))
            line.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield asked
    thread.join()
    listening.close()


def test_the_server_is_asked(files: RegionFiles) -> None:
    with server(files, b'{"sessions": ["train in domain web slot 0 has a session"]}\n') as asked:
        assert sessions_of(files, UUID, 4) == ["train in domain web slot 0 has a session"]
    assert json.loads(asked[0]) == {"sessions": {"uuid": UUID}}


@pytest.mark.parametrize(
    "answer", [b"", b"[]\n", b"nonsense\n", b'{"error": "it is busy"}\n', b'{"sessions": 3}\n']
)
def test_a_server_that_does_not_say_is_no_permission(files: RegionFiles, answer: bytes) -> None:
    with server(files, answer), pytest.raises(HypervisorError, match="does not say"):
        sessions_of(files, UUID, 4)


def test_without_a_server_the_slots_say_it(files: RegionFiles) -> None:
    assert sessions_of(files, UUID, 4) == [], "no region, no session"
    files.ensure(UUID, SIZE)
    assert sessions_of(files, UUID, 4) == []
    slot_bytes = slot_bytes_of(SIZE, 4)
    states = {0: 3, 1: 0, 2: 2, 3: 0xFFFFFFFF}
    with files.path(UUID).open("r+b") as file:
        for slot, state in states.items():
            file.seek(REGION_HEADER_BYTES + slot * slot_bytes + 128)
            file.write(struct.pack("<I", state))
    found = sessions_of(files, UUID, 4)
    assert [line.split(" (")[0] for line in found] == [
        "a program in slot 0 has a session",
        "a program in slot 2 opens a session",
    ]
    assert sessions_of(files, UUID, 64), "more slots than there are end in no error"


def test_a_link_in_the_place_of_a_region_is_an_error(files: RegionFiles, tmp_path: Path) -> None:
    files.path(UUID).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HypervisorError, match=str(files.path(UUID))):
        sessions_of(files, UUID, 4)
