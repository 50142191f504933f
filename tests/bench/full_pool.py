# SPDX-License-Identifier: Apache-2.0
"""Pools of three sizes as the benchmarks use them: nodes of eight H200s that hold 50 vGPUs a node.

Used by placement.py (decisions) and restart.py (a controller that starts with such a pool). A pool
is filled through its own decisions, can be written to either store, and can say what its servers
would report.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from sluice.config.controller import StoreSection  # noqa: E402
from sluice.controller.leadership.election import Candidate, LeaderAddress  # noqa: E402
from sluice.controller.pool.decisions import Granted, GrantRequest  # noqa: E402
from sluice.controller.pool.model import Change, Gpu, Node  # noqa: E402
from sluice.controller.pool.placement.policies import POLICIES  # noqa: E402
from sluice.controller.pool.pool import Pool  # noqa: E402
from sluice.controller.store.etcd import EtcdStore  # noqa: E402
from sluice.controller.store.etcd_cluster import EtcdCluster  # noqa: E402
from sluice.controller.store.sqlite import SqliteStore  # noqa: E402
from sluice.rpc import pool_pb2 as rpc  # noqa: E402

SIZES = (100, 300, 1000)
GPUS_OF_A_NODE = 8
VGPUS_OF_A_NODE = 50
NODES_OF_A_RACK = 16
CHANGES_OF_A_COMMIT = 100
H200: dict[str, Any] = {"memory_mib": 143771, "context_overhead_mib": 534, "reserved_mib": 1200}


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
            return replace(request, count=self.dice.choice([2, 4, 8]), same_gpu=True)
        if chance < 0.85:
            count = self.dice.choice([1, 2, 4, 8])
            return replace(request, count=count, compute_percent=100)
        if chance < 0.9:
            return replace(request, memory_mib=self.dice.randrange(60, 139) << 10)
        if chance < 0.95:
            rack = f"r{self.dice.randrange((self.nodes - 1) // NODES_OF_A_RACK + 1)}"
            return replace(request, labels=(("rack", rack),))
        return replace(request, labels=(("rdma", "f1"),), gpu_model="h200", count=2)


def filled(nodes: int, policy: str) -> tuple[Pool, Load]:
    """A pool with its grants."""
    numbers = itertools.count(1)
    pool = Pool(RealClock(), lambda: f"{next(numbers):016x}", policy=POLICIES[policy]())
    for number in range(nodes):
        name = f"node-{number:04d}"
        node = Node(name, "10.0.0.1", 9960, "1", 4, labels=labels_of(number))
        pool.membership.register(node, gpus_of(name), [])
    load = Load(nodes)
    live = 0
    while live < nodes * VGPUS_OF_A_NODE:
        request = replace(load.small(), host="vm.example.org", program="python3 train.py")
        [answer] = pool.requests.submit(request).answers.values()
        if isinstance(answer, Granted):
            live += 1
            pool.lifecycle.session_started(answer.session.id, 1000 + live % 30000, "shm")
    return pool, load


async def store_in_sqlite(path: Path, changes: Sequence[Change]) -> None:
    """Writes all that a pool has."""
    store = SqliteStore(path, synchronous="NORMAL")
    await store.load()
    await store.commit(changes)
    await store.close()


async def store_in_etcd(endpoints: str, changes: Sequence[Change]) -> None:
    """The same, as a controller that leads for a moment."""
    section = StoreSection.model_validate({"kind": "etcd", "endpoints": endpoints})
    cluster = EtcdCluster(section)
    await cluster.open()
    me = LeaderAddress("127.0.0.1:1", "127.0.0.1:2")
    term = await Candidate(cluster, section.prefix, 60, me).campaign()
    store = EtcdStore(cluster, term, section.prefix)
    await store.load()
    for start in range(0, len(changes), CHANGES_OF_A_COMMIT):
        await store.commit(changes[start : start + CHANGES_OF_A_COMMIT])
    await store.close()
    await term.resign()
    await cluster.close()


def inventories(pool: Pool) -> Iterator[rpc.Inventory]:
    """What each server reports when it comes back: all that was granted runs there."""
    sessions: dict[str, list[rpc.SessionReport]] = {name: [] for name in pool.nodes}
    for session in pool.sessions.values():
        grant = pool.grants[session.grant_id]
        vgpus = [
            rpc.Vgpu(
                gpu_uuid=v.gpu_uuid, memory_mib=v.memory_mib, compute_percent=v.compute_percent
            )
            for v in grant.vgpus
        ]
        sessions[session.node].append(
            rpc.SessionReport(
                session_id=session.id, grant_id=grant.id, request_id=session.request_id,
                vgpus=vgpus, channel="shm", host=session.host, program=session.program,
                started=session.started,
            )
        )  # fmt: skip
    for name, node in pool.nodes.items():
        yield rpc.Inventory(
            node=name, data_address="10.0.0.1", data_port=9960, version="1", vgpu_count=4,
            gpus=[rpc.Gpu(uuid=gpu.uuid, model=gpu.model, architecture=gpu.architecture,
                          nvlink_group=gpu.nvlink_group, **H200) for gpu in gpus_of(name)],
            labels=[rpc.Label(name=key, value=value) for key, value in node.labels],
            sessions=sessions[name],
        )  # fmt: skip
