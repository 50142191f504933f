# SPDX-License-Identifier: Apache-2.0
"""The places of a door: nobody takes all of them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sluice.server.listener import Listener, _owner_of


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


async def served_of_one_and_of_another(most_of_address: int | None) -> list[bool]:
    release = asyncio.Event()

    async def serve(line: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(line, b"hello")
        await release.wait()

    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, "a door", 8, serve, most_of_address=most_of_address)
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
        ("::ffff:10.0.0.1", "::ffff:a00:1"),
    ],
)
def test_a_machine_of_ipv6_is_its_network(host: str, owner: str) -> None:
    assert _owner_of((host, 0)) == owner
