# SPDX-License-Identifier: Apache-2.0
"""Clients that send rubbish get a clear refusal or nothing; the server serves the next one."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest
from control_plane import ControlPlane, read_stream, receive_reply, wait_for
from open_files import file_of, has_open

from sluice.protocol.frames import ChannelKind
from sluice.server.sessions.open_session import (
    BadOpen,
    pack_open_session,
    parse_open_session,
    unpack_open_reply,
)

GOOD = pack_open_session(gmem_mib=64)
WRONG_FRAMES = [
    pytest.param(b"\0", "has 1 bytes", id="one byte"),
    pytest.param(GOOD[:511], "has 511 bytes", id="short"),
    pytest.param(GOOD + b"\0", "has 513 bytes", id="long"),
    pytest.param(GOOD * 7, "has 3584 bytes", id="several"),
    pytest.param(b"\xff" * 512, "first frame has size", id="ones"),
    pytest.param(bytes(512), "first frame has size 0", id="zeros"),
    pytest.param(
        pack_open_session(magic=0xDEADBEEF), "0xdeadbeef instead of 0x43494c53", id="magic"
    ),
    pytest.param(
        pack_open_session(version=(2, 3)),
        "speaks protocol 2.3; this server speaks version 1",
        id="version",
    ),
    pytest.param(pack_open_session(wait_seconds=-2), "SLUICE_WAIT is -2", id="wait"),
    pytest.param(pack_open_session(vgpu_count=65), "wanted 65 vGPUs", id="count"),
    pytest.param(pack_open_session(ratio_percent=101), "101 %", id="ratio"),
    pytest.param(pack_open_session(gmem_mib=0xFFFFFFFF), "4294967295 MiB", id="memory"),
]


@pytest.mark.parametrize(("frame", "message"), WRONG_FRAMES)
def test_a_wrong_frame_names_what_is_wrong(frame: bytes, message: str) -> None:
    with pytest.raises(BadOpen) as refusal:
        parse_open_session(frame)
    assert message in refusal.value.message


def test_a_client_cannot_change_the_size_of_its_sessions_memory(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=64)
    descriptors = Path(f"/proc/{client.process.pid}/fd").iterdir()
    [memory] = [d for d in descriptors if "memfd:sluice-" in str(d.readlink())]
    size = memory.stat().st_size
    with memory.open("r+b") as file:
        for wanted in (0, size - 4096, size + 4096):
            with pytest.raises(PermissionError):
                file.truncate(wanted)
    assert memory.stat().st_size == size


def test_control_characters_of_a_client_do_not_reach_logs() -> None:
    asked = parse_open_session(pack_open_session(program="a\x1b[2J\nb", host="h\r"))
    assert asked.program == "a�[2J�b"
    assert asked.host == "h�"


def test_rubbish_on_the_unix_socket_is_refused_and_the_next_client_served(
    plane: ControlPlane,
) -> None:
    source = random.Random(20261121)
    frames = [parameter.values[0] for parameter in WRONG_FRAMES]
    frames += [source.randbytes(source.randrange(1, 2000)) for _ in range(50)]
    frames += [GOOD[:at] + source.randbytes(8) + GOOD[at + 8 : 512] for at in (0, 16, 24)]
    for frame in frames:
        with plane.connect_unix() as connected:
            assert isinstance(frame, bytes)
            connected.send(frame)
            packet, descriptors = receive_reply(connected)
            status, _, message = unpack_open_reply(packet)
            assert status not in (0, 600), frame
            assert message
            assert descriptors == []
    with plane.connect_unix():
        pass  # connects and leaves
    with plane.connect_unix() as silent:
        assert plane.client().first["status"] == 0
        silent.close()
    assert len(plane.grants()) == 1


def test_the_unix_socket_carries_no_other_channel(plane: ControlPlane) -> None:
    with plane.connect_unix() as connected:
        connected.send(pack_open_session(channel=ChannelKind.IVSHMEM))
        status, _, message = unpack_open_reply(receive_reply(connected)[0])
    assert status == 801
    assert "carries shm" in message


def test_descriptors_that_a_client_sends_are_closed(plane: ControlPlane) -> None:
    assert plane.server
    server = plane.server.pid
    given = set()
    for _ in range(20):
        with plane.connect_unix() as connected, socket.socket() as extra:
            given.add(file_of(extra.fileno()))
            socket.send_fds(connected, [b"rubbish"], [extra.fileno()] * 5)
            receive_reply(connected)
    wait_for(lambda: not has_open(server, given), message="the descriptors to be closed")


def test_rubbish_on_the_data_port_is_refused_and_the_next_client_served(
    plane: ControlPlane,
) -> None:
    source = random.Random(20261122)
    for frame in [
        bytes(16),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        source.randbytes(5000),
        pack_open_session(magic=1),
        pack_open_session(version=(9, 0), key="k"),
        pack_open_session(),
        pack_open_session(key="0123456789abcdef"),
        pack_open_session(key="ü" * 20),
    ]:
        with plane.connect_data() as connected:
            connected.sendall(frame)
            status, _, message = unpack_open_reply(read_stream(connected, 512))
            assert status not in (0, 600)
            assert message
    with plane.connect_data() as connected:
        connected.sendall(GOOD[:100])  # and leaves in the middle
    assert plane.grants() == []
    assert plane.client().first["status"] == 0


def test_running_out_of_connections_pauses_and_recovers(plane: ControlPlane) -> None:
    # twenty addresses that take all they get have not enough places
    silent = [plane.connect_data(f"127.0.1.{number % 20 + 1}") for number in range(400)]
    with plane.connect_data("127.0.3.1") as connected:
        connected.sendall(pack_open_session(key="wrong"))
        assert unpack_open_reply(read_stream(connected, 512))[0] == 800, "another still has one"
    silent += [plane.connect_data(f"127.0.2.{number + 1}") for number in range(150)]
    wait_for(lambda: "takes no connection" in plane.log("server"))
    assert plane.client().first["status"] == 0, "local clients have a socket of their own"
    assert plane.log("server").count("takes no connection") < 20, "it does not spin"
    for connected in silent:
        connected.close()

    def served() -> bool:
        with plane.connect_data() as connected:
            connected.sendall(pack_open_session(key="wrong"))
            return unpack_open_reply(read_stream(connected, 512).ljust(512, b"\0"))[0] == 800

    wait_for(served)


def test_keyless_tries_and_rubbish_do_not_fill_the_log(plane: ControlPlane) -> None:
    def size() -> int:
        return (plane.folder / "log" / "server.log").stat().st_size

    for number in range(2):  # what is written of each kind is written by the first round
        for _ in range(40):
            with plane.connect_data("127.0.4.1") as connected:
                connected.sendall(pack_open_session(key="wrong"))
                assert unpack_open_reply(read_stream(connected, 512))[0] == 800
            with plane.connect_unix() as connected:
                connected.send(b"rubbish")
                receive_reply(connected)
        if number == 0:
            before = size()
    written = plane.log("server").count("127.0.4.1 on the data port: unknown")
    assert 0 < written <= 5
    assert plane.log("server").count("refused pid") <= 25, "of each of this module's minutes"
    assert size() - before < 2000, "80 more tries are a line or two"
