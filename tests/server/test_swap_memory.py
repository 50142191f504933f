# SPDX-License-Identifier: Apache-2.0
"""The host's memory for suspended sessions: its bound, what is kept ready, whose it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable

import pytest

from sluice.server.sessions.swap_memory import MIB, PIECE_MIB, NoSwapMemory, SwapMemory, make_memory

LONG_SECONDS = 60.0


@contextlib.asynccontextmanager
async def kept(swap: SwapMemory) -> AsyncIterator[None]:
    """While pieces are made ready."""
    task = asyncio.create_task(swap.keep_ready())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while swap.ready_mib:
            for descriptor, _ in await swap.pieces(PIECE_MIB):
                os.close(descriptor)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while not what():
            await asyncio.sleep(0.01)


def close(pieces: list[tuple[int, int]]) -> list[int]:
    """Their sizes."""
    for descriptor, _ in pieces:
        os.close(descriptor)
    return [mib for _, mib in pieces]


def pages_mib(descriptor: int) -> int:
    """What the kernel has set aside for it."""
    return os.fstat(descriptor).st_blocks * 512 // MIB


def test_no_more_is_given_than_there_is_and_all_or_nothing() -> None:
    swap = SwapMemory(100)
    swap.take({"a": 60})
    with pytest.raises(NoSwapMemory, match=r"swap_mib \(100\) 40 MiB are left"):
        swap.take({"b": 20, "c": 21})
    assert swap.used_mib == 60
    swap.take({"b": 20, "c": 20})
    swap.take({"a": 10})
    swap.give("b")
    swap.give("nobody")
    assert swap.used_mib == 30


def test_what_an_earlier_servers_workers_have_counts_even_beyond_the_limit() -> None:
    swap = SwapMemory(10)
    swap.adopt("a", 50)
    with pytest.raises(NoSwapMemory, match="0 MiB are left"):
        swap.take({"b": 1})
    swap.give("a")
    swap.take({"b": 10})


def test_its_pages_are_there_before_anything_moves() -> None:
    descriptor = make_memory(6)
    try:
        assert os.fstat(descriptor).st_size == 6 * MIB
        assert pages_mib(descriptor) == 6
        assert os.pread(descriptor, 16, 5 * MIB) == bytes(16)
    finally:
        os.close(descriptor)


async def test_some_is_kept_ready_and_made_up_for() -> None:
    swap = SwapMemory(4 * PIECE_MIB, ready_mib=2 * PIECE_MIB + 100)
    async with kept(swap):
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        wanted = 2 * PIECE_MIB + 10
        swap.take({"a": wanted})
        with swap.moving():
            pieces = await swap.pieces(wanted)
            assert [pages_mib(descriptor) for descriptor, _ in pieces] == [PIECE_MIB, PIECE_MIB, 10]
            assert close(pieces) == [PIECE_MIB, PIECE_MIB, 10]
            await asyncio.sleep(0.1)
            assert swap.ready_mib == 0, "it is made up for when the move is done"
        await until(lambda: swap.ready_mib == PIECE_MIB)  # no more has place beside the session's
        swap.give("a")
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)


async def test_what_is_ready_makes_room_for_what_is_wanted() -> None:
    swap = SwapMemory(2 * PIECE_MIB, ready_mib=2 * PIECE_MIB)
    async with kept(swap):
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        swap.take({"small": 10})
        assert swap.ready_mib == PIECE_MIB, "both together would be too much"
        assert close(await swap.pieces(10)) == [10]
        swap.take({"large": 2 * PIECE_MIB - 10})
        assert close(await swap.pieces(2 * PIECE_MIB - 10)) == [PIECE_MIB, PIECE_MIB - 10]
        assert swap.ready_mib == 0
