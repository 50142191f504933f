# SPDX-License-Identifier: Apache-2.0
"""The places of a listener: nobody takes all of them."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sluice.config.places import Full, Places, owner_of_address
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.listeners import unix_socket
from sluice.server.listeners.accepting import Listener, uid_of
from sluice.server.sessions.open_session import unpack_open_reply


async def connected(address: tuple[str, int], source: str) -> tuple[socket.socket, bool]:
    """A connection, and whether it is served: what is served is greeted."""
    loop = asyncio.get_running_loop()
    line = socket.socket()
    line.bind((source, 0))
    line.setblocking(False)
    await loop.sock_connect(line, address)
    try:
        return line, await asyncio.wait_for(loop.sock_recv(line, 5), 10) == b"hello"
    except ConnectionResetError:
        return line, False


async def served_of_one_and_of_another(most_of_owner: int | None) -> list[bool]:
    release = asyncio.Event()

    async def serve(line: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(line, b"hello")
        await release.wait()

    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, "a listener", 8, serve, most_of_owner=most_of_owner)
    where = listening.getsockname()
    lines = [await connected(where, "127.0.0.2") for _ in range(4)]
    lines.append(await connected(where, "127.0.0.3"))
    release.set()
    for line, _ in lines:
        line.close()
    while listener._tasks:
        await asyncio.sleep(0.01)
    lines.append(await connected(where, "127.0.0.2"))
    lines[-1][0].close()
    await listener.close()
    return [greeted for _, greeted in lines]


def test_an_address_has_its_places_and_leaves_the_others() -> None:
    served = asyncio.run(served_of_one_and_of_another(3))
    assert served == [True, True, True, False, True, True]


def test_without_a_limit_whoever_comes_first_is_served() -> None:
    assert asyncio.run(served_of_one_and_of_another(None)) == [True] * 6


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_machine_of_ipv6_is_its_network(host: str, owner: str) -> None:
    assert owner_of_address(host) == owner


def test_greedy_owners_leave_places_for_the_next_one() -> None:
    places = Places(256, 64)
    owners = [f"10.0.0.{number}" for number in range(20)]
    for owner in owners:
        while places.take(owner) is None:
            pass
        assert places.of(owner) >= 1, "there was a place for it, whoever came before"
        assert places.of(owner) <= 64
    assert len(places) <= places.most - 10
    assert places.take("a late one") is None


def test_the_last_places_are_kept() -> None:
    places = Places(8, 8, kept=2)
    for number in range(6):
        assert places.take(f"uid {number}") is None
    assert places.take("uid 6") is Full.ALL
    assert places.take("uid 0", privileged=True) is None


def test_a_place_that_is_given_back_is_forgotten() -> None:
    places = Places(8, 4)
    for number in range(1000):
        assert places.take(f"10.0.0.{number}") is None
        places.give_back(f"10.0.0.{number}")
    assert (len(places), places.owners) == (0, 0)


def test_whose_a_local_connection_is_the_kernel_says() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        assert uid_of(one) == f"uid {os.getuid()}"


def test_a_user_has_some_places_of_the_unix_socket_and_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_socket, "MOST_OF_USER", 3)
    no_manager: Any = None

    async def run() -> None:
        path = tmp_path / "server.sock"
        listener = unix_socket.UnixListener(path, no_manager, 256, "host")
        listener.open()
        lines = []
        for _ in range(4):
            lines.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            lines[-1].setblocking(False)
            await asyncio.get_running_loop().sock_connect(lines[-1], str(path))
        told = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(lines[3], 512), 10)
        status, _, message = unpack_open_reply(told)
        assert status == CudaStatus.SYSTEM_NOT_READY
        assert f"uid {os.getuid()} has 3 of the 4096 places" in message
        assert await asyncio.get_running_loop().sock_recv(lines[3], 512) == b""
        assert listener._listener
        assert len(listener._listener._places) == 3
        for line in lines:
            line.close()
        await listener.close()

    asyncio.run(run())
