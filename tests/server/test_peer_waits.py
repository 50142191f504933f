# SPDX-License-Identifier: Apache-2.0
"""Work for a peer ends with the peer, and only with it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from open_files import open_descriptors

from sluice.server.listeners.peer_waits import unless_gone
from sluice.server.listeners.peers import PeerGone


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, peers = socket.socketpair()
    yield ours, peers
    ours.close()
    peers.close()


def has_closed(ours: socket.socket) -> bool | None:
    """None: a byte came that says nothing; it is read."""
    return None if ours.recv(1) else True


async def test_the_work_is_returned_and_its_error_raised(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    async def fails() -> None:
        raise KeyError("why")

    answer = asyncio.create_task(asyncio.sleep(0, "done"))
    assert await unless_gone(answer, pair[0].fileno()) == "done"
    with pytest.raises(KeyError, match="why"):
        await unless_gone(asyncio.create_task(fails()), pair[0].fileno())


async def test_a_peer_that_leaves_ends_the_work_and_that_is_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    ours, peers = pair
    waiting = asyncio.create_task(
        unless_gone(asyncio.create_task(work()), ours.fileno(), lambda: has_closed(ours))
    )
    await asyncio.sleep(0)
    peers.send(b"x")  # it is asked again after it
    await asyncio.sleep(0.01)
    assert not waiting.done()
    peers.close()
    with pytest.raises(PeerGone):
        await waiting
    assert cleaned


async def test_what_no_longer_tells_is_no_longer_watched(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, peers = pair
    asked = []

    def says_nothing() -> bool:
        asked.append(True)
        return False

    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(unless_gone(work, ours.fileno(), says_nothing))
    peers.close()
    await asyncio.sleep(0.01)
    assert asked == [True]
    work.set_result("done")
    assert await waiting == "done"


async def test_of_a_wait_that_is_cancelled_nothing_is_left(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    before = open_descriptors()
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(unless_gone(work, pair[0].fileno()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.cancelled()
    assert open_descriptors() <= before
