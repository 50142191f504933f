# SPDX-License-Identifier: Apache-2.0
"""How soon a controller serves again after a restart, with pools of three sizes.

Part of bench.py, and run alone with `python tests/bench/restart.py [sqlite] [etcd]`. The pool lies
in the store, 50 live vGPUs a node. The clock runs from the start of the controller's process until
REST answers, a grant asked for through gRPC is given, and every server has come back on a stream
and a connection of its own and what it reported is in the books. Servers try every half second, as
they do, from two processes of this bench; the machine has two cores for all of it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build" / "python"), str(ROOT / "tests" / "harness")]

from controllers import Controllers  # noqa: E402
from etcd_members import etcd_members, is_there  # noqa: E402
from figure import Figure, as_lines, print_table  # noqa: E402
from full_pool import SIZES, filled, inventories, store_in_etcd, store_in_sqlite  # noqa: E402
from grant_rates import cpu_seconds, scratch  # noqa: E402

from sluice.controller.pool.pool import Pool  # noqa: E402
from sluice.rpc import pool_pb2 as rpc  # noqa: E402
from sluice.rpc import pool_pb2_grpc  # noqa: E402

RETRY_SECONDS = 0.5
SERVER_PROCESSES = 2
MOST_SECONDS = 120.0


async def come_back(target: str, reports: list[bytes]) -> None:
    """Servers that try until they are welcome, and stay."""

    async def server(report: bytes) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        first = rpc.NodeReport(inventory=rpc.Inventory.FromString(report))

        async def stream() -> AsyncIterator[rpc.NodeReport]:
            yield first
            await asyncio.Event().wait()

        while True:
            async with grpc.aio.insecure_channel(target, options) as channel:
                stub: Any = pool_pb2_grpc.PoolStub(channel)
                try:
                    async for _ in stub.Register(stream()):
                        pass
                except grpc.aio.AioRpcError:
                    pass
            await asyncio.sleep(RETRY_SECONDS)

    await asyncio.gather(*(server(report) for report in reports))


def servers(target: str, reports: list[bytes]) -> None:
    """A process of the bench."""
    asyncio.run(come_back(target, reports))


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
    begin, found = time.monotonic(), {}

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


def measured(kind: str, store: dict[str, Any], folder: Path, pool: Pool) -> Figure:
    """The time of one start."""
    several = Controllers(folder, 1, store)
    reports = [report.SerializeToString() for report in inventories(pool)]
    context = multiprocessing.get_context("spawn")
    shares = [reports[n::SERVER_PROCESSES] for n in range(SERVER_PROCESSES)]
    processes = [context.Process(target=servers, args=(several.grpc[0], s)) for s in shares]
    try:
        for process in processes:
            process.start()
        time.sleep(3 + len(reports) / 300)  # they are all trying by now
        several.start_one(0)
        nodes = len(pool.nodes)
        found = asyncio.run(until_back(several, 0, nodes, next(iter(pool.nodes))))
        print(
            f"{kind}, {nodes} nodes, {len(pool.grants):,} grants: "
            + ", ".join(f"{what} after {s:.2f} s" for what, s in found.items())
            + f"; {cpu_seconds(several, 0):.1f} s of CPU; load of the machine "
            f"{os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )
    finally:
        several.close()
        for process in processes:
            process.kill()
            process.join()
    name = "controller_restart_s" if kind == "sqlite" else f"controller_restart_s_{kind}"
    target = "at most 5" if nodes == SIZES[-1] else ""
    name += "" if target else f"_{nodes}_nodes"
    return Figure(name, max(found.values()), "s", None, None, target)


def restart_figures(kinds: tuple[str, ...] = ("sqlite", "etcd")) -> Iterator[Figure]:
    """A start with pools of three sizes, from each store."""
    for nodes in SIZES:
        pool, _ = filled(nodes, "bin-pack")
        if "sqlite" in kinds:
            with scratch() as folder:
                asyncio.run(store_in_sqlite(folder / "controller.db", pool))
                yield measured("sqlite", {"kind": "sqlite"}, folder, pool)
        if "etcd" in kinds and is_there():
            with scratch() as folder, etcd_members(folder / "etcd", 3) as members:
                store = {"kind": "etcd", "endpoints": ",".join(members.endpoints)}
                asyncio.run(store_in_etcd(store["endpoints"], pool))
                yield measured("etcd", store, folder, pool)


def main() -> int:
    """Measures what is named, or both."""
    figures = list(restart_figures(tuple(sys.argv[1:]) or ("sqlite", "etcd")))
    print_table(figures)
    print(as_lines(figures), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
