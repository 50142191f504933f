# SPDX-License-Identifier: Apache-2.0
"""How soon a controller serves again after a restart, and what it weighs: pools of three sizes.

Part of bench.py, and run alone with `python tests/bench/restart.py [sqlite] [etcd]`. The pool lies
in the store, 50 live vGPUs a node. The clock runs from the start of the controller's process until
REST answers, a grant asked for through gRPC is given, and every server has come back on a stream
and a connection of its own and what it reported is in the books. Then
grants are asked for as in grant_rates.py, anywhere in that pool. Servers try every two seconds, as
they do, from two processes of this bench; the machine has two cores for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from controllers import Controllers  # noqa: E402
from etcd_members import etcd_members, is_there  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402
from full_pool import SIZES, filled, inventories, store_in_etcd, store_in_sqlite  # noqa: E402
from grant_rates import cpu_seconds, load, percentile, scratch  # noqa: E402

from sluice.controller.pool.pool import Pool  # noqa: E402
from sluice.rpc import pool_pb2 as rpc  # noqa: E402
from sluice.rpc import pool_pb2_grpc  # noqa: E402

RETRY_MS = 2000
SERVER_PROCESSES = 2
MOST_SECONDS = 60.0
LOAD_SECONDS = 5.0


async def come_back(target: str, reports: list[bytes]) -> None:
    """Servers that try until they are welcome, and stay."""

    async def server(report: bytes) -> None:
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", RETRY_MS),
            ("grpc.max_reconnect_backoff_ms", RETRY_MS),
        )
        first = rpc.NodeReport(inventory=rpc.Inventory.FromString(report))

        async def stream() -> AsyncIterator[rpc.NodeReport]:
            yield first
            await asyncio.Event().wait()

        async with grpc.aio.insecure_channel(target, options) as channel:
            stub: Any = pool_pb2_grpc.PoolStub(channel)
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):  # it does not lead yet
                    async for _ in stub.Register(stream(), wait_for_ready=True):
                        pass
                await asyncio.sleep(RETRY_MS / 1000)

    await asyncio.gather(*(server(report) for report in reports))


def servers(target: str, reports: list[bytes]) -> None:
    """A process of the bench."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # of streams that ended with a test
    asyncio.run(come_back(target, reports))


def resident_mib(pid: int) -> float:
    """What a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


async def first_grant(target: str, node: str) -> None:
    """Returns when a grant was given; asks until then."""
    request = rpc.GrantRequest(
        request_id=f"bench-{os.getpid()}-{time.monotonic_ns()}", node=node, vgpu_count=1,
        memory_mib=64, compute_percent=1, wait_seconds=-1, program="bench",
    )  # fmt: skip
    while True:
        async with grpc.aio.insecure_channel(target) as channel:
            stub: Any = pool_pb2_grpc.PoolStub(channel)
            try:
                async for answer in stub.RequestGrant(request):
                    if answer.WhichOneof("answer") == "granted":
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)


async def until_back(several: Controllers, number: int, nodes: int, node: str) -> dict[str, float]:
    """What is there when, in seconds from now."""
    begin = time.monotonic()
    found: dict[str, float] = {}

    async def rest() -> None:
        async with httpx.AsyncClient(base_url=f"http://{several.rest[number]}/v1") as client:
            while time.monotonic() - begin < MOST_SECONDS:
                try:
                    answer = await client.get("/pool", timeout=30)
                    if answer.status_code == 200:
                        found.setdefault("REST", time.monotonic() - begin)
                        if answer.json()["nodes_up"] == nodes:
                            break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05 if "REST" not in found else 0.2)
        found["adopted"] = time.monotonic() - begin

    async def ask() -> None:
        await asyncio.wait_for(first_grant(several.grpc[number], node), MOST_SECONDS)
        found["a grant"] = time.monotonic() - begin

    await asyncio.gather(rest(), ask())
    return found


def measured(kind: str, store: dict[str, Any], folder: Path, pool: Pool) -> list[Figure]:
    """The time of one start, and the controller's memory when all are back."""
    several = Controllers(folder, 1, store, anew=True)
    reports = [report.SerializeToString() for report in inventories(pool)]
    context = multiprocessing.get_context("spawn")
    shares = [reports[n::SERVER_PROCESSES] for n in range(SERVER_PROCESSES)]
    processes = [context.Process(target=servers, args=(several.grpc[0], s)) for s in shares]
    try:
        for server_process in processes:
            server_process.start()
        time.sleep(3 + len(reports) / 300)  # they are all trying by now
        several.start_one(0)
        nodes = len(pool.nodes)
        found = asyncio.run(until_back(several, 0, nodes, next(iter(pool.nodes))))
        process = several.processes[0]
        assert process
        cpu = cpu_seconds(several, 0)
        rate, grants, _ = asyncio.run(load(several.grpc[0], list(pool.nodes), LOAD_SECONDS))
        weight = resident_mib(process.pid)
        print(
            f"{kind}, {nodes} nodes, {len(pool.grants):,} grants: "
            + ", ".join(f"{what} after {s:.2f} s" for what, s in found.items())
            + f"; {cpu:.1f} s of CPU, {weight:.0f} MiB; then {rate:,.0f} grants and releases a "
            f"second, a grant p99 {percentile(grants, 0.99):.1f} ms; load of the machine "
            f"{os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )
    finally:
        several.close()
        for server_process in processes:
            server_process.kill()
            server_process.join()
    full = nodes == SIZES[-1]
    end = ("" if kind == "sqlite" else f"_{kind}") + ("" if full else f"_{nodes}_nodes")
    seconds = max(found.values())
    return [
        Figure(f"controller_restart_s{end}", seconds, "s", limit=5 if full else None),
        Figure(f"controller_restart_rest_s{end}", found["REST"], "s"),
        Figure(f"controller_restart_cpu_s{end}", cpu, "s"),
        Figure(f"controller_rss_mib{end}", weight, "MiB", limit=500 if full else None),
        Figure(f"grants_per_s_{kind}_{nodes}_nodes", rate, "1/s"),
        Figure(f"grant_p99_ms_{kind}_{nodes}_nodes", percentile(grants, 0.99), "ms"),
    ]


def restart_figures(kinds: tuple[str, ...] = ("sqlite", "etcd")) -> list[Figure]:
    """Starts with pools of three sizes, from each store, and the controller's memory."""
    figures = []
    for nodes in SIZES:
        pool, _ = filled(nodes, "bin-pack")
        changes = pool.take_changes()
        if "sqlite" in kinds:
            with scratch() as folder:
                asyncio.run(store_in_sqlite(folder / "controller.db", changes))
                figures += measured("sqlite", {"kind": "sqlite"}, folder, pool)
        if "etcd" in kinds and is_there():
            with scratch() as folder, etcd_members(folder / "etcd", 3) as members:
                store = {"kind": "etcd", "endpoints": ",".join(members.endpoints)}
                asyncio.run(store_in_etcd(store["endpoints"], changes))
                figures += measured("etcd", store, folder, pool)
    return figures


def main() -> int:
    """Measures what is named, or both."""
    run = Run("python tests/bench/restart.py")
    publish("bench", restart_figures(tuple(sys.argv[1:]) or ("sqlite", "etcd")), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
