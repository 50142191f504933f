# SPDX-License-Identifier: Apache-2.0
"""Work for a peer that may leave meanwhile: waited for, or given up with it.

Used by the listeners, while a session is opened or a job is held. The peer's descriptor (its pidfd,
or its connection) tells of its end by becoming readable.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeVar

from sluice.server.listeners.peers import PeerGone

T = TypeVar("T")


async def unless_gone(
    work: asyncio.Future[T], descriptor: int, is_gone: Callable[[], bool | None] = lambda: True
) -> T:
    """Returns what the work does; cancels it and raises PeerGone when the peer is gone first.

    `is_gone` is asked when the descriptor is readable: None means to ask again, False that it says
    nothing of the peer's end any more.
    """
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def look() -> None:
        answer = is_gone()
        if answer is not None:
            loop.remove_reader(watch)
        if answer:
            gone.set_result(None)

    watch = os.dup(descriptor)  # the peer's own is watched by its session, or in another hand soon
    loop.add_reader(watch, look)
    try:
        both: list[asyncio.Future[Any]] = [work, gone]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise PeerGone("it left before its session was open")
    finally:
        loop.remove_reader(watch)
        os.close(watch)
        if not work.done():
            work.cancel()
            await asyncio.wait([work])
