# SPDX-License-Identifier: Apache-2.0
"""The host's memory for suspended sessions: its bound, what is kept ready, whose it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from child_processes import children_running

from sluice.config.native_files import SOFTGPU, find_native
from sluice.server.host_memory import pieces
from sluice.server.host_memory.driver_memory import DriverMemory
from sluice.server.host_memory.pieces import MIB, HostPiece, NoSwapMemory, make_shared
from sluice.server.sessions import swap_memory
from sluice.server.sessions.swap_memory import PIECE_MIB, Booking, SwapMemory

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
            close(await swap.pieces(PIECE_MIB, of_driver=True))


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while not what():
            await asyncio.sleep(0.01)


def close(pieces: list[HostPiece]) -> list[int]:
    """Their sizes."""
    for piece in pieces:
        piece.close()
    return [piece.mib for piece in pieces]


def pages_mib(piece: HostPiece) -> int:
    """What the kernel has set aside for it."""
    return os.fstat(piece.memory).st_blocks * 512 // MIB


def test_no_more_is_given_than_there_is_and_all_or_nothing() -> None:
    swap = SwapMemory(100)
    swap.take(Booking({"a": 60}, new={"a": 60}))
    with pytest.raises(NoSwapMemory, match=r"swap_mib \(100\) 40 MiB are left"):
        swap.take(Booking({"b": 20, "c": 21}, new={"b": 20, "c": 21}))
    assert swap.used_mib == 60
    swap.take(Booking({"b": 20, "c": 20}, new={"b": 20, "c": 20}))
    swap.take(Booking({"a": 10}, new={"a": 10}))
    swap.give("b")
    swap.give("nobody")
    assert swap.used_mib == 30


def test_what_an_earlier_servers_workers_have_counts_even_beyond_the_limit() -> None:
    swap = SwapMemory(10)
    swap.adopt("a", 50)
    with pytest.raises(NoSwapMemory, match="0 MiB are left"):
        swap.take(Booking({"b": 1}, new={"b": 1}))
    swap.give("a")
    swap.take(Booking({"b": 10}, new={"b": 10}))


def test_its_pages_are_there_before_anything_moves() -> None:
    piece = make_shared(6)
    try:
        assert os.fstat(piece.memory).st_size == 6 * MIB
        assert pages_mib(piece) == 6
        assert os.pread(piece.memory, 16, 5 * MIB) == bytes(16)
    finally:
        piece.close()


async def test_some_is_kept_ready_and_made_up_for() -> None:
    swap = SwapMemory(4 * PIECE_MIB, ready_mib=2 * PIECE_MIB + 100)
    async with kept(swap):
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        wanted = 2 * PIECE_MIB + 10
        swap.take(Booking({"a": wanted}, new={"a": wanted}))
        with swap.moving():
            pieces = await swap.pieces(wanted)
            assert [pages_mib(piece) for piece in pieces] == [PIECE_MIB, PIECE_MIB, 10]
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
        swap.take(Booking({"small": 10}, new={"small": 10}))
        assert swap.ready_mib == PIECE_MIB, "both together would be too much"
        assert close(await swap.pieces(10)) == [10]
        swap.take(Booking({"large": 2 * PIECE_MIB - 10}, new={"large": 2 * PIECE_MIB - 10}))
        assert close(await swap.pieces(2 * PIECE_MIB - 10)) == [PIECE_MIB, PIECE_MIB - 10]
        assert swap.ready_mib == 0


async def test_what_is_ready_is_the_drivers_for_workers_that_can_use_it() -> None:
    memory = DriverMemory(str(find_native(SOFTGPU)), os.environ)
    swap = SwapMemory(8 * PIECE_MIB, 2 * PIECE_MIB, memory)
    async with kept(swap):
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        with swap.moving():
            old = await swap.pieces(PIECE_MIB)
            assert swap.ready_mib == 2 * PIECE_MIB, "it stays for others"
            new = await swap.pieces(3 * PIECE_MIB, of_driver=True)
        assert [piece.of_driver for piece in [*old, *new]] == [False, True, True, False]
        assert close(old) + close(new) == [PIECE_MIB] * 4
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)


async def test_what_a_worker_cannot_use_makes_room_for_what_is_made_for_it() -> None:
    memory = DriverMemory(str(find_native(SOFTGPU)), os.environ)
    swap = SwapMemory(3 * PIECE_MIB, 3 * PIECE_MIB, memory)
    async with kept(swap):
        await until(lambda: swap.ready_mib == 3 * PIECE_MIB)
        with swap.moving():
            swap.take(
                Booking(
                    {"of an earlier release": 2 * PIECE_MIB},
                    new={"of an earlier release": 2 * PIECE_MIB},
                )
            )
            assert swap.ready_mib == 3 * PIECE_MIB
            assert close(await swap.pieces(2 * PIECE_MIB)) == [PIECE_MIB] * 2
            assert swap.ready_mib == PIECE_MIB


async def test_nobody_has_a_gpu_open_for_it_that_is_let_go() -> None:
    memory = DriverMemory(str(find_native(SOFTGPU)), os.environ)
    swap = SwapMemory(4 * PIECE_MIB, 2 * PIECE_MIB, memory)
    async with kept(swap):
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        lets_go = True
        swap.may_open_gpus = lambda: not lets_go
        await swap.let_go()
        assert swap.ready_mib == 0
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        with swap.moving():
            pieces = await swap.pieces(2 * PIECE_MIB, of_driver=True)
            lets_go = False
        assert [piece.of_driver for piece in pieces] == [False, False]
        close(pieces)
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        pieces = await swap.pieces(2 * PIECE_MIB, of_driver=True)
        assert [piece.of_driver for piece in pieces] == [True, True]
        close(pieces)


async def test_where_moves_find_nothing_ready_it_is_made_beside_them_until_it_is_calm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swap_memory, "CALM_SECONDS", LONG_SECONDS)
    memory = DriverMemory(str(find_native(SOFTGPU)), os.environ)
    swap = SwapMemory(16 * PIECE_MIB, 2 * PIECE_MIB, memory)
    async with kept(swap):
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        with swap.moving():
            close(await swap.pieces(2 * PIECE_MIB, of_driver=True))
        await asyncio.sleep(0.1)
        assert swap.ready_mib == 0, "nobody has missed any, and the driver is left alone"
        with swap.moving():
            pieces = await swap.pieces(2 * PIECE_MIB, of_driver=True)
            assert not any(piece.of_driver for piece in pieces)
            close(pieces)
            await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
            ready = await swap.pieces(2 * PIECE_MIB, of_driver=True)
        assert not any(piece.of_driver for piece in ready)
        close(ready)
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        monkeypatch.setattr(swap_memory, "CALM_SECONDS", 0.0)
        with swap.moving():
            pass

        def all_of_the_drivers() -> bool:
            return [piece.of_driver for piece in swap._ready] == [True, True]

        await until(all_of_the_drivers)


async def test_more_than_the_host_has_is_refused_before_the_kernel_ends_somebody_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = tmp_path / "meminfo"
    monkeypatch.setattr(pieces, "MEMORY", about)
    monkeypatch.setattr(pieces, "FREE_HUGE_PAGES", tmp_path / "none")
    swap = SwapMemory(1 << 40, ready_mib=1 << 40)
    about.write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {1030 << 10} kB\n")
    with pytest.raises(NoSwapMemory, match=r"1030 MiB of memory available, and 10 would .* 1024"):
        await swap.pieces(10)
    assert close(await swap.pieces(6)) == [6]
    async with kept(swap):
        await asyncio.sleep(0)
        assert swap.ready_mib == 0


async def test_a_server_without_threads_or_descriptors_says_so_and_fills_up_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(mib: int) -> HostPiece:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(swap_memory, "make_shared", fails)
    swap = SwapMemory(PIECE_MIB, ready_mib=PIECE_MIB)
    with pytest.raises(NoSwapMemory, match="cannot make host memory: can't start new thread"):
        await swap.pieces(2)
    async with kept(swap):
        await asyncio.sleep(0.1)
        monkeypatch.undo()
        with swap.moving():
            pass
        await until(lambda: swap.ready_mib == PIECE_MIB)


async def test_who_asks_the_driver_is_killed_and_another_does_so_after_the_next_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swap_memory, "CALM_SECONDS", 0.0)
    memory = DriverMemory(str(find_native(SOFTGPU)), os.environ)
    swap = SwapMemory(4 * PIECE_MIB, PIECE_MIB, memory)
    close(memory.make(1, 2))
    [helper] = children_running(os.getpid(), "host_memory/driver_process.py")
    os.kill(helper, signal.SIGKILL)
    async with kept(swap):
        await until(lambda: swap.ready_mib == PIECE_MIB)
        assert not swap._ready[0].of_driver
        with swap.moving():
            pass
        await until(lambda: [piece.of_driver for piece in swap._ready] == [True])


async def test_where_the_driver_makes_none_it_is_shared_memory() -> None:
    swap = SwapMemory(4 * PIECE_MIB, PIECE_MIB, DriverMemory("/nowhere/libcuda.so.1"))
    async with kept(swap):
        await until(lambda: swap.ready_mib == PIECE_MIB)
        [piece] = await swap.pieces(PIECE_MIB, of_driver=True)
        assert not piece.of_driver
        piece.close()
