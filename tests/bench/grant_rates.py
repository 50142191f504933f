# SPDX-License-Identifier: Apache-2.0
"""Grants and releases a second through real gRPC, on SQLite and on three members of etcd.

Part of bench.py, and run alone with `python tests/bench/grant_rates.py [sqlite] [etcd]`. Sixteen
callers in this process ask a real controller, each for a grant and then for its release, both
answered only when they are stored. A figure is such pairs a second, and the 99th percentile of what
one grant took. The floor of both is the same load on a server without a pool, which stores as much
(bare_pool.py), in turn with the controller. The machine's bare fdatasync in the store's folder and
one bare commit are printed beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "build" / "bench"
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from bare_pool import bare_pool, commit_ms  # noqa: E402
from controllers import Controllers, controllers  # noqa: E402
from etcd_members import etcd_members, is_there  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402

from sluice.rpc import pool_pb2 as rpc  # noqa: E402
from sluice.rpc import pool_pb2_grpc  # noqa: E402

CALLERS = 16
WARM_SECONDS = 2.0
SECONDS = 10.0
FLOOR_SECONDS = 5.0
NODES = 4
GPUS_OF_A_NODE = 8
BLOCK = b"x" * 4096
WITHOUT_POOL = "the same load on a server without a pool"


def fdatasync_ms(folder: Path) -> tuple[float, float]:
    """What writing 4 KiB durably takes here: the median and the 99th percentile."""
    path = folder / "fdatasync"
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    taken = []
    try:
        os.pwrite(file, BLOCK * 64, 0)
        os.fsync(file)
        for number in range(300):
            os.pwrite(file, BLOCK, (number % 64) * len(BLOCK))
            begin = time.perf_counter()
            os.fdatasync(file)
            taken.append((time.perf_counter() - begin) * 1e3)
    finally:
        os.close(file)
        path.unlink()
    return percentile(taken, 0.5), percentile(taken, 0.99)


def cpu_seconds(several: Controllers, number: int) -> float:
    """What a controller has used so far."""
    process = several.processes[number]
    assert process
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of them lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def registered(stub: Any, node: str) -> Any:
    """A node with GPUs that stays registered as long as the returned call lives."""

    async def reports() -> AsyncIterator[rpc.NodeReport]:
        gpus = [
            rpc.Gpu(uuid=f"{node}-{n}", model="simulated", memory_mib=81920, software=True)
            for n in range(GPUS_OF_A_NODE)
        ]
        yield rpc.NodeReport(
            inventory=rpc.Inventory(
                node=node, data_address="127.0.0.1", data_port=1, version="bench", gpus=gpus,
                vgpu_count=4,
            )
        )  # fmt: skip
        beat = 0
        while True:
            await asyncio.sleep(1)
            beat += 1
            yield rpc.NodeReport(heartbeat=rpc.Heartbeat(beat=beat))

    call = stub.Register(reports())
    assert (await call.read()).WhichOneof("order") == "welcome"
    return call


async def load(
    target: str, nodes: Sequence[str] = (), seconds: float = SECONDS, count: Any = None
) -> tuple[float, list[float], list[float]]:
    """Pairs a second, and what each grant and each release took, in ms.

    With `nodes`, which are registered already, the pool is theirs and a grant may go anywhere;
    without, each caller asks for a GPU of its own node, which is made for it. Where a load goes on
    while somebody looks, `count` is a shared number of the pairs so far, and nothing else is kept.
    """
    grants: list[float] = []
    releases: list[float] = []
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = pool_pb2_grpc.PoolStub(channel)
        names = nodes or [f"node-{n}" for n in range(NODES)]
        calls = [] if nodes else [await registered(stub, name) for name in names]
        counts_from = time.perf_counter() + WARM_SECONDS
        until = counts_from + seconds

        async def caller(number: int) -> None:
            asked = 0
            while (begin := time.perf_counter()) < until:
                asked += 1
                request = rpc.GrantRequest(
                    request_id=f"{os.getpid():x}-{number}-{asked}", node=names[number % len(names)],
                    vgpu_count=1, memory_mib=1024, compute_percent=5, wait_seconds=-1,
                    local_only=not nodes, channel="shm", host="bench", program="bench",
                )  # fmt: skip
                async for answer in stub.RequestGrant(request):
                    granted = answer.granted
                given = time.perf_counter()
                assert granted.grant_id, answer
                await stub.ReleaseGrant(rpc.GrantRelease(grant_id=granted.grant_id, reason="done"))
                if count is not None:
                    count.value += 1
                elif begin >= counts_from:
                    grants.append((given - begin) * 1e3)
                    releases.append((time.perf_counter() - given) * 1e3)

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        for call in calls:
            call.cancel()
    return len(grants) / seconds, grants, releases


def floors(store: str) -> tuple[float, float]:
    """Pairs a second without a pool, and the 99th percentile of what one grant took then."""
    with bare_pool(store) as target:
        per_second, grants, _ = asyncio.run(load(target, seconds=FLOOR_SECONDS))
    return per_second, percentile(grants, 0.99)


def measure(
    several: Controllers, folder: Path, kind: str, bare: str, wanted: tuple[int, int]
) -> list[Figure]:
    """The figures of a store; `bare` is the store of the floor, as bare_pool.py takes it."""
    leader = several.leader()
    before, first = fdatasync_ms(folder), floors(bare)
    cpu_before = cpu_seconds(several, leader)
    per_second, grants, releases = asyncio.run(load(several.grpc[leader]))
    cpu = (cpu_seconds(several, leader) - cpu_before) / (WARM_SECONDS + SECONDS)
    second, after = floors(bare), fdatasync_ms(folder)
    bare_rate, bare_p99 = ((a + b) / 2 for a, b in zip(first, second, strict=True))
    sync = (before[0] + after[0]) / 2
    print(
        f"{kind}: {per_second:,.0f} grants and releases a second by {CALLERS} callers; a grant "
        f"{percentile(grants, 0.5):.1f} ms, p99 {percentile(grants, 0.99):.1f}; a release "
        f"{percentile(releases, 0.5):.1f} ms, p99 {percentile(releases, 0.99):.1f}; without a pool "
        f"{first[0]:,.0f} and {second[0]:,.0f} a second, a grant's p99 {first[1]:.1f} and "
        f"{second[1]:.1f}; bare commit {asyncio.run(commit_ms(bare)):.2f} ms; bare fdatasync "
        f"{sync:.2f} ms, p99 {max(before[1], after[1]):.2f}; the controller's CPU "
        f"{cpu * 1e6 / per_second:,.0f} us a pair; load of the machine {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
    )
    p99 = percentile(grants, 0.99)
    return [
        Figure(
            f"grants_per_s_{kind}",
            per_second,
            "1/s",
            floor=bare_rate,
            floor_of=WITHOUT_POOL,
            limit=wanted[0],
        ),
        Figure(
            f"grant_p99_ms_{kind}",
            p99,
            "ms",
            floor=bare_p99,
            floor_of=WITHOUT_POOL,
            limit=wanted[1],
        ),
        Figure(f"fdatasync_ms_{kind}", sync, "ms"),
        Figure(f"fdatasync_p99_ms_{kind}", max(before[1], after[1]), "ms"),
    ]


@contextlib.contextmanager
def scratch() -> Any:
    """A folder on the disk of the checkout, not in memory."""
    BENCH.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="grants-", dir=BENCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sqlite_figures() -> list[Figure]:
    """Grants and releases on one controller with SQLite, synchronous = FULL."""
    with scratch() as folder, controllers(folder, 1, {"kind": "sqlite"}, anew=True) as one:
        return measure(one, folder, "sqlite", str(folder / "bare.db"), (1000, 20))


def etcd_figures() -> list[Figure]:
    """Grants and releases on the leader of two controllers over three members of etcd."""
    if not is_there():
        print("etcd is not installed: no figures of it", file=sys.stderr)
        return []
    with scratch() as folder, etcd_members(folder / "etcd", 3) as members:
        endpoints = ",".join(members.endpoints)
        with controllers(folder, 2, {"kind": "etcd", "endpoints": endpoints}, anew=True) as two:
            return measure(two, folder, "etcd", f"etcd={endpoints}", (300, 60))


def store_figures() -> list[Figure]:
    """Grants and releases a second, on SQLite and on etcd."""
    return sqlite_figures() + etcd_figures()


def main() -> int:
    """Measures what is named, or both."""
    wanted = sys.argv[1:] or ["sqlite", "etcd"]
    run = Run("python tests/bench/grant_rates.py")
    figures = []
    for kind in wanted:
        figures += {"sqlite": sqlite_figures, "etcd": etcd_figures}[kind]()
    publish("bench", figures, run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
