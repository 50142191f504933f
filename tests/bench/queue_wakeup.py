# SPDX-License-Identifier: Apache-2.0
"""How soon the next of 5,000 waiting requests starts when one grant is released.

Part of bench.py, and run alone with `python tests/bench/queue_wakeup.py`. A real controller on
SQLite, real gRPC: 5,000 open calls wait, of many sizes and priorities; grants are released one
after another, and from the call of the release to the answer of the next request is measured. The
floor is the same load on a server that has a line and no pool (bare_pool.py).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import grpc
from bare_pool import bare_pool
from grant_rates import ROOT, WITHOUT_POOL, percentile, registered, scratch

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from controllers import controllers  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402

from sluice.rpc import pool_pb2 as rpc  # noqa: E402
from sluice.rpc import pool_pb2_grpc  # noqa: E402

WAITING = 5000
RELEASES = 200
CHANNELS = 50
ROOM = 8  # of the node's GPUs
AT_ONCE = 200  # gRPC drops calls where thousands come before the server has taken them


async def load(target: str) -> list[float]:
    """What each release took to start the next request, in ms."""
    channels = [grpc.aio.insecure_channel(target) for _ in range(CHANNELS)]
    stubs: list[Any] = [pool_pb2_grpc.PoolStub(channel) for channel in channels]
    node = await registered(stubs[0], "node-0")
    granted: asyncio.Queue[tuple[float, str]] = asyncio.Queue()
    waiting: set[int] = set()
    entrance = asyncio.Semaphore(AT_ONCE)

    async def ask(number: int) -> None:
        await entrance.acquire()
        request = rpc.GrantRequest(
            request_id=f"w{number}", node="node-0", vgpu_count=1, memory_mib=1000 + number % 97,
            compute_percent=100, priority=number % 5, wait_seconds=-1, local_only=True,
            channel="shm", host="bench", program="bench",
        )  # fmt: skip
        async for answer in stubs[number % CHANNELS].RequestGrant(request):
            kind = answer.WhichOneof("answer")
            if kind == "waiting":
                if number not in waiting:
                    waiting.add(number)
                    entrance.release()
            elif kind == "granted":
                granted.put_nowait((time.perf_counter(), answer.granted.grant_id))
                if number not in waiting:
                    entrance.release()

    calls = [asyncio.create_task(ask(number)) for number in range(WAITING + ROOM)]
    held = [(await granted.get())[1] for _ in range(ROOM)]
    while len(waiting) < WAITING:
        await asyncio.sleep(0.05)
        for failed in (call for call in calls if call.done() and call.exception()):
            failed.result()
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
        await channel.close(None)
    return taken


def queue_figures() -> list[Figure]:
    """The next of many waiting requests, after one release."""
    with scratch() as folder:
        with bare_pool(str(folder / "bare.db"), ROOM) as target:
            bare = asyncio.run(load(target))
        with controllers(folder, 1, {"kind": "sqlite"}, anew=True) as one:
            taken = asyncio.run(load(one.grpc[one.leader()]))
    p99, floor = percentile(taken, 0.99), percentile(bare, 0.99)
    print(
        f"queue: {WAITING:,} wait; the next starts {percentile(taken, 0.5):.1f} ms after a "
        f"release, p99 {p99:.1f}, most {max(taken):.1f}; without a pool "
        f"{percentile(bare, 0.5):.1f} ms, p99 {floor:.1f}, most {max(bare):.1f}; load of the "
        f"machine {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
    )
    middle, bare_middle = percentile(taken, 0.5), percentile(bare, 0.5)
    return [
        Figure("queue_wakeup_ms", p99, "ms", floor=floor, floor_of=WITHOUT_POOL, limit=50),
        Figure("queue_wakeup_median_ms", middle, "ms", floor=bare_middle, floor_of=WITHOUT_POOL),
    ]


def main() -> int:
    """Measures and prints."""
    run = Run("python tests/bench/queue_wakeup.py")
    publish("bench", queue_figures(), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
