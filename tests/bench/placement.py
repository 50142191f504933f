# SPDX-License-Identifier: Apache-2.0
"""How long a placement takes in pools of 10, 100 and 1,000 nodes, and what such a pool weighs.

Part of bench.py, and run alone with `python tests/bench/placement.py`. A pool is filled until its
GPUs of 141 GB hold 50 vGPUs a node, then works on: each decision is taken by the pool's own
placement and timed alone, after which the grant is made and a random one given back. The mix is of
single slices, default slices, several vGPUs on one node, whole cards, labels and models. Time is
the wall's; the processor's is printed beside it, for machines that do other things too. The memory
is that of a real controller process that has loaded the pool from its store, and whose nodes have
all come back.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build" / "python"), str(ROOT / "tests" / "harness")]

import grpc  # noqa: E402
from controllers import controllers  # noqa: E402
from figure import Figure, as_lines, print_table  # noqa: E402
from grant_rates import percentile, scratch  # noqa: E402

from sluice.controller.pool import feasibility, placement  # noqa: E402
from sluice.controller.pool.model import (  # noqa: E402
    Gpu,
    Grant,
    Granted,
    GrantRequest,
    GrantState,
    Node,
)
from sluice.controller.pool.policies import POLICIES  # noqa: E402
from sluice.controller.pool.pool import Pool  # noqa: E402
from sluice.controller.store.sqlite import SqliteStore  # noqa: E402
from sluice.rpc import pool_pb2 as rpc  # noqa: E402
from sluice.rpc import pool_pb2_grpc  # noqa: E402

SIZES = (10, 100, 1000)
GPUS_OF_A_NODE = 8
VGPUS_OF_A_NODE = 50
NODES_OF_A_RACK = 16
DECISIONS = 4000
H200 = {"memory_mib": 143771, "context_overhead_mib": 534, "reserved_mib": 1200}


class RealClock:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def gpus_of(name: str) -> list[Gpu]:
    """A node's GPUs: two groups of four by NVLink."""
    return [
        Gpu(
            name,
            f"GPU-{name}-{n}",
            "NVIDIA H200",
            architecture="sm_90",
            nvlink_group=f"nvlink{n // 4}",
            **H200,
        )
        for n in range(GPUS_OF_A_NODE)
    ]


def labels_of(number: int) -> tuple[tuple[str, str], ...]:
    """Its rack, and which of four fabrics its RDMA reaches."""
    return (("rack", f"r{number // NODES_OF_A_RACK}"), ("rdma", f"f{number % 4}"))


class Load:
    """Requests as a pool gets them, the same ones each time."""

    def __init__(self, nodes: int) -> None:
        self.dice = random.Random(1)
        self.nodes = nodes
        self._numbers = itertools.count(1)

    def small(self) -> GrantRequest:
        """One slice of a GPU."""
        return GrantRequest(
            f"r{next(self._numbers)}",
            memory_mib=self.dice.randrange(2, 24) << 10,
            compute_percent=self.dice.randrange(3, 20),
            node=f"node-{self.dice.randrange(self.nodes):04d}",
        )

    def any(self) -> GrantRequest:
        """Whatever may come."""
        request, chance = self.small(), self.dice.random()
        if chance < 0.5:
            return request
        if chance < 0.6:
            return replace(request, memory_mib=0, compute_percent=0)
        if chance < 0.75:
            return replace(request, vgpu_count=self.dice.choice([2, 4, 8]), same_gpu_allowed=True)
        if chance < 0.85:
            count = self.dice.choice([1, 2, 4, 8])
            return replace(request, vgpu_count=count, compute_percent=100)
        if chance < 0.9:
            return replace(request, memory_mib=self.dice.randrange(60, 139) << 10)
        if chance < 0.95:
            rack = f"r{self.dice.randrange((self.nodes - 1) // NODES_OF_A_RACK + 1)}"
            return replace(request, labels=(("rack", rack),))
        return replace(request, labels=(("rdma", "f1"),), gpu_model="h200", vgpu_count=2)


def filled(nodes: int, policy: str) -> tuple[Pool, Load]:
    """A pool with its grants."""
    numbers = itertools.count(1)
    pool = Pool(RealClock(), lambda: f"{next(numbers):016x}", policy=POLICIES[policy]())
    for number in range(nodes):
        name = f"node-{number:04d}"
        node = Node(name, "10.0.0.1", 9960, "1", 4, labels=labels_of(number))
        pool.register(node, gpus_of(name), [])
    load = Load(nodes)
    live = 0
    while live < nodes * VGPUS_OF_A_NODE:
        request = replace(load.small(), host="vm.example.org", program="python3 train.py")
        [answer] = pool.submit(request).answers.values()
        live += isinstance(answer, Granted)
    return pool, load


def decisions(pool: Pool, load: Load, policy: str) -> tuple[list[float], list[float]]:
    """What each decision took, in ms of the wall and of the processor."""
    chooses = POLICIES[policy]()
    gc.collect()
    gc.freeze()  # as the controller does
    taken: list[float] = []
    computed: list[float] = []
    live = [grant for grant in pool.grants.values() if grant.state is GrantState.LIVE]
    wanted = sum(len(grant.vgpus) for grant in live)
    held = wanted
    while len(taken) < DECISIONS:
        request = load.any()
        begin, cpu = time.perf_counter(), time.thread_time()
        refused = feasibility.never(request, pool.rooms, across=False)
        chosen = None if refused else placement.choose(chooses, request, pool.rooms)
        computed.append((time.thread_time() - cpu) * 1e3)
        taken.append((time.perf_counter() - begin) * 1e3)
        if chosen:
            [answer] = pool.submit(request).answers.values()
            if isinstance(answer, Granted):
                live.append(answer.grant)
                held += len(answer.grant.vgpus)
        while held > wanted:
            place = load.dice.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            gone: Grant = live.pop()
            held -= len(gone.vgpus)
            pool.release(gone.id, "done")
        pool.take_changes()
    gc.unfreeze()
    return taken, computed


def decision_figures() -> list[Figure]:
    """Placement decisions in pools of three sizes, by each policy."""
    figures = []
    for nodes in SIZES:
        for policy in POLICIES:
            pool, load = filled(nodes, policy)
            taken, computed = decisions(pool, load, policy)
            p99 = percentile(taken, 0.99)
            live = sum(pool.usage(key).vgpus for key in pool.gpus)
            print(
                f"{nodes} nodes, {live:,} vGPUs, {policy}: a decision {percentile(taken, 0.5):.3f} "
                f"ms, p99 {p99:.3f}, most {max(taken):.2f}; of the processor's time p99 "
                f"{percentile(computed, 0.99):.3f}, most {max(computed):.2f}; load of the machine "
                f"{os.getloadavg()[0]:.1f}",
                file=sys.stderr,
            )
            name = "placement_p99_ms" if nodes == SIZES[-1] else f"placement_p99_ms_{nodes}_nodes"
            if policy != "bin-pack":
                name += f"_{policy}"
            target = "at most 2" if name == "placement_p99_ms" else ""
            figures.append(Figure(name, p99, "ms", None, None, target))
    return figures


async def store_pool(path: Path, pool: Pool) -> None:
    """Writes all that the pool has."""
    store = SqliteStore(path, synchronous="NORMAL")
    await store.load()
    await store.commit(pool.take_changes())
    await store.close()


def resident_mib(pid: int) -> float:
    """What a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


async def nodes_return(target: str, pool: Pool) -> None:
    """Every server's stream, with what it runs; returns when all have been welcomed."""
    sessions: dict[str, list[rpc.SessionReport]] = {}
    for session in pool.sessions.values():
        grant = pool.grants[session.grant_id]
        vgpus = [
            rpc.Vgpu(
                gpu_uuid=v.gpu_uuid, memory_mib=v.memory_mib, compute_percent=v.compute_percent
            )
            for v in grant.vgpus
        ]
        sessions.setdefault(session.node, []).append(
            rpc.SessionReport(
                session_id=session.id, grant_id=grant.id, request_id=session.request_id,
                vgpus=vgpus, channel="shm", host=session.host, program=session.program,
                started=session.started,
            )
        )  # fmt: skip
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = pool_pb2_grpc.PoolStub(channel)

        async def reports(name: str) -> AsyncIterator[rpc.NodeReport]:
            gpus = [rpc.Gpu(uuid=gpu.uuid, model=gpu.model, **H200) for gpu in gpus_of(name)]
            yield rpc.NodeReport(
                inventory=rpc.Inventory(
                    node=name, data_address="10.0.0.1", data_port=9960, version="1", gpus=gpus,
                    vgpu_count=4, sessions=sessions.get(name, ()),
                )
            )  # fmt: skip
            await asyncio.Event().wait()

        calls = [stub.Register(reports(name)) for name in pool.nodes]
        for call in calls:
            assert (await call.read()).WhichOneof("order") == "welcome"
        await asyncio.sleep(5)
        for call in calls:
            call.cancel()


def memory_figures() -> list[Figure]:
    """The memory of a controller with the pools of three sizes."""
    figures = []
    for nodes in SIZES:
        pool, _ = filled(nodes, "bin-pack")
        with scratch() as folder:
            asyncio.run(store_pool(folder / "controller.db", pool))
            with controllers(folder, 1, {"kind": "sqlite"}) as one:
                process = one.processes[one.leader()]
                assert process
                loaded = resident_mib(process.pid)
                asyncio.run(nodes_return(one.grpc[0], pool))
                returned = resident_mib(process.pid)
        print(
            f"{nodes} nodes, {len(pool.grants):,} grants: {loaded:.0f} MiB loaded from the store, "
            f"{returned:.0f} MiB with the nodes back; load of the machine {os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )
        name = "controller_rss_mib" if nodes == SIZES[-1] else f"controller_rss_mib_{nodes}_nodes"
        target = "at most 500" if name == "controller_rss_mib" else ""
        figures.append(Figure(name, returned, "MiB", None, None, target))
    return figures


def placement_figures() -> list[Figure]:
    """Placement decisions and the controller's memory, in pools of three sizes."""
    return decision_figures() + memory_figures()


def main() -> int:
    """Measures what is named (decisions, memory), or both."""
    parts = {"decisions": decision_figures, "memory": memory_figures}
    figures = [figure for name in sys.argv[1:] or parts for figure in parts[name]()]
    print_table(figures)
    print(as_lines(figures), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
