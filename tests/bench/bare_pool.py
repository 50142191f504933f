# SPDX-License-Identifier: Apache-2.0
"""The floor of the control plane's figures: the same calls to a server that has no pool.

Run as a process of its own by grant_rates.py and queue_wakeup.py, which load it exactly as they
load a controller: real gRPC, the same messages, and each answer after a bare commit of a few
hundred bytes, to SQLite with the store's pragmas or to the same members of etcd. What waits while
one commit is under way goes into the next, which is the best that a store can do. Grants beyond
`--room` wait in a line, first come, first served. Machines differ by half: what a controller takes
is held against what this takes on the same machine, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import sqlite3
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from control_plane import PYTHON_PATH  # noqa: E402
from free_ports import free_port  # noqa: E402

from sluice.config.controller import StoreSection  # noqa: E402
from sluice.controller.service import GRPC_OPTIONS  # noqa: E402
from sluice.controller.store.etcd_cluster import EtcdCluster  # noqa: E402
from sluice.rpc import pool_pb2 as rpc  # noqa: E402
from sluice.rpc import pool_pb2_grpc  # noqa: E402

#: About what a grant's row and its event weigh.
RECORD = "x" * 600
UUID = "GPU-00000000-0000-0000-0000-000000000000"

Write = Callable[[list[int]], Awaitable[None]]


class BareCommits:
    """Commits, as many at once as have gathered."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._gathered: list[tuple[int, asyncio.Future[None]]] = []
        self._count = 0
        self._writing: asyncio.Task[None] | None = None

    def commit(self) -> asyncio.Future[None]:
        """Done when one more record is stored."""
        self._count += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gathered.append((self._count, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return done

    async def _write_all(self) -> None:
        while self._gathered:
            group, self._gathered = self._gathered[:60], self._gathered[60:]
            await self._write([number for number, _ in group])
            for _, done in group:
                if not done.done():
                    done.set_result(None)
        self._writing = None


class BarePool(pool_pb2_grpc.PoolServicer):
    """Answers every call after a commit, and decides nothing."""

    def __init__(self, commits: BareCommits, room: int) -> None:
        self._commits = commits
        self._room = room
        self._line: deque[asyncio.Future[None]] = deque()
        self._count = 0

    async def Register(  # noqa: N802
        self, reports: AsyncIterator[rpc.NodeReport], context: Any
    ) -> AsyncIterator[rpc.Order]:
        """A node is welcome, and hears no more."""
        async for _ in reports:
            yield rpc.Order(welcome=rpc.Welcome())
            break
        await asyncio.Event().wait()

    async def RequestGrant(  # noqa: N802
        self, request: rpc.GrantRequest, context: Any
    ) -> AsyncIterator[rpc.GrantAnswer]:
        """A grant, when there is room."""
        if self._room > 0:
            self._room -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            yield rpc.GrantAnswer(waiting=rpc.Waiting())
            await turn
        await self._commits.commit()
        self._count += 1
        vgpu = rpc.Vgpu(gpu_uuid=UUID, memory_mib=request.memory_mib, compute_percent=5)
        name = f"{self._count:032x}"
        yield rpc.GrantAnswer(granted=rpc.Granted(grant_id=name, session_id=name, vgpus=[vgpu]))

    async def ReleaseGrant(  # noqa: N802
        self, request: rpc.GrantRelease, context: Any
    ) -> rpc.GrantReleased:
        """Availability for the next."""
        await self._commits.commit()
        while self._line and (turn := self._line.popleft()):
            if not turn.done():
                turn.set_result(None)
                return rpc.GrantReleased(was_live=True)
        self._room += 1
        return rpc.GrantReleased(was_live=True)

    async def View(  # noqa: N802
        self, request: rpc.ViewRequest, context: Any
    ) -> rpc.ViewAnswer:
        """Nothing is shown."""
        return rpc.ViewAnswer()


def opened(path: Path) -> sqlite3.Connection:
    """A file with the store's pragmas (controller/store/sqlite.py)."""
    file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"):
        file.execute(f"PRAGMA {pragma}")
    file.execute("CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, body TEXT)")
    return file


def insert(file: sqlite3.Connection, numbers: list[int]) -> None:
    """One transaction."""
    file.execute("BEGIN")
    file.executemany("REPLACE INTO records VALUES (?, ?)", [(n, RECORD) for n in numbers])
    file.execute("COMMIT")


async def put(cluster: EtcdCluster, numbers: list[int]) -> None:
    """One transaction."""
    await cluster.transaction([], [cluster.put(f"/bare/{n % 5000}", RECORD) for n in numbers])


@contextlib.asynccontextmanager
async def writes_to(store: str) -> AsyncIterator[Write]:
    """`store`: the path of an SQLite file, or etcd= and the members' endpoints."""
    if store.startswith("etcd="):
        endpoints = store.removeprefix("etcd=").split(",")
        cluster = EtcdCluster(StoreSection(kind="etcd", endpoints=endpoints))
        await cluster.open()
        try:
            yield functools.partial(put, cluster)
        finally:
            await cluster.close()
    else:
        file = opened(Path(store))

        async def write(numbers: list[int]) -> None:
            await asyncio.to_thread(insert, file, numbers)

        yield write


async def commit_ms(store: str, count: int = 200) -> float:
    """What one bare commit takes, the median, by this process."""
    taken = []
    async with writes_to(store) as write:
        for number in range(count):
            begin = time.perf_counter()
            await write([number])
            taken.append((time.perf_counter() - begin) * 1e3)
    return sorted(taken)[count // 2]


async def serve(port: int, store: str, room: int) -> None:
    """Until it is ended."""
    async with writes_to(store) as write:
        server = grpc.aio.server(options=GRPC_OPTIONS)
        pool_pb2_grpc.add_PoolServicer_to_server(BarePool(BareCommits(write), room), server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()


@contextlib.contextmanager
def bare_pool(store: str, room: int = 1 << 30) -> Iterator[str]:
    """Its address, for the time of a block."""
    port = free_port()
    command = [sys.executable, str(Path(__file__)), str(port), store, str(room)]
    process = subprocess.Popen(command, env={"PYTHONPATH": str(PYTHON_PATH)})
    try:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        grpc.channel_ready_future(channel).result(timeout=60)
        channel.close()
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Serves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("store")
    parser.add_argument("room", type=int)
    given = parser.parse_args()

    asyncio.run(serve(given.port, given.store, given.room))
    return 0


if __name__ == "__main__":
    sys.exit(main())
