# SPDX-License-Identifier: Apache-2.0
"""How soon the next of 5,000 waiting requests starts when one grant is released.

Part of bench.py, and run alone with `python tests/bench/queue_wakeup.py`. A real controller on
SQLite, real gRPC: 5,000 open calls wait, of many sizes and priorities; grants are released one
after another, and from the call of the release to the answer of the next request is measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import grpc
from grant_rates import ROOT, percentile, registered, scratch

sys.path[:0] = [str(ROOT / "build" / "python"), str(ROOT / "tests" / "harness")]

from controllers import controllers  # noqa: E402
from figure import Figure, as_lines, print_table  # noqa: E402

from sluice.rpc import pool_pb2 as rpc  # noqa: E402
from sluice.rpc import pool_pb2_grpc  # noqa: E402

WAITING = 5000
RELEASES = 200
CHANNELS = 50


async def load(target: str) -> list[float]:
    """What each release took to start the next request, in ms."""
    channels = [grpc.aio.insecure_channel(target) for _ in range(CHANNELS)]
    stubs: list[Any] = [pool_pb2_grpc.PoolStub(channel) for channel in channels]
    node = await registered(stubs[0], "node-0")
    granted: asyncio.Queue[tuple[float, str]] = asyncio.Queue()
    queued = 0

    async def ask(number: int) -> None:
        nonlocal queued
        request = rpc.GrantRequest(
            request_id=f"w{number}", node="node-0", vgpu_count=1, memory_mib=1000 + number % 97,
            compute_percent=100, priority=number % 5, wait_seconds=-1, local_only=True,
            channel="shm", host="bench", program="bench",
        )  # fmt: skip
        async for answer in stubs[number % CHANNELS].RequestGrant(request):
            kind = answer.WhichOneof("answer")
            if kind == "waiting":
                queued += 1
            elif kind == "granted":
                granted.put_nowait((time.perf_counter(), answer.granted.grant_id))

    calls = [asyncio.create_task(ask(number)) for number in range(WAITING + 8)]
    held = [(await granted.get())[1] for _ in range(8)]
    while queued < WAITING:
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    taken = []
    for _ in range(RELEASES):
        begin = time.perf_counter()
        release = rpc.GrantRelease(grant_id=held.pop(0), reason="done")
        call = stubs[0].ReleaseGrant(release)
        when, grant = await granted.get()
        taken.append((when - begin) * 1e3)
        held.append(grant)
        await call
    for task in calls:
        task.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    node.cancel()
    for channel in channels:
        await channel.close()
    return taken


def queue_figures() -> list[Figure]:
    """The next of many waiting requests, after one release."""
    with scratch() as folder, controllers(folder, 1, {"kind": "sqlite"}) as one:
        taken = asyncio.run(load(one.grpc[one.leader()]))
    p99 = percentile(taken, 0.99)
    print(
        f"queue: {WAITING:,} wait; the next starts {percentile(taken, 0.5):.1f} ms after a "
        f"release, p99 {p99:.1f}",
        file=sys.stderr,
    )
    return [Figure("queue_wakeup_ms", p99, "ms", None, None, "at most 50")]


def main() -> int:
    """Measures and prints."""
    figures = queue_figures()
    print_table(figures)
    print(as_lines(figures), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
