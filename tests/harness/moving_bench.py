# SPDX-License-Identifier: Apache-2.0
"""A node of three GPUs between which grants move, in the books, and what its server says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pool_bench import PoolBench

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendedContexts,
    SuspendOrder,
)
from sluice.controller.pool.model import Event, Gpu, GpuKey, Grant, Node
from sluice.resources.suspended_contexts import ContextPlace

MIB, CONTEXT, LEFT = 8000, 500, 4
ALL = ("a-gpu0", "a-gpu1", "a-gpu2")
LEAVING = SuspendedContexts(ContextPlace.LEAVING, mib=(CONTEXT,))


def node_and_gpus(moves: bool, models: tuple[str, ...]) -> tuple[Node, list[Gpu]]:
    """As its server says."""
    node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=10_000, moves_sessions=moves)
    gpus = [
        Gpu("a", uuid, model, MIB, context_overhead_mib=CONTEXT)
        for uuid, model in zip(ALL, models, strict=True)
    ]
    return node, gpus


def joined(
    *, moves: bool = True, models: tuple[str, ...] = ("M",) * 3, **options: Any
) -> PoolBench:
    """A pool of that node."""
    bench = PoolBench(node_timeout_seconds=1e9, **options)
    bench.pool.membership.register(*node_and_gpus(moves, models), [], [])
    return bench


def returns(bench: PoolBench, *says: ReportedSuspension, running: Sequence[Grant]) -> Decisions:
    """Its server comes back, and these run on there."""
    requests = [grant.request_id for grant in running]
    there = node_and_gpus(True, ("M",) * 3)
    return bench.pool.membership.register(*there, [], requests, suspensions=says)


def running(bench: PoolBench, **wanted: Any) -> Grant:
    granted = bench.granted(**wanted)
    bench.pool.lifecycle.session_started(granted.session.id, 7, "shm")
    return granted.grant


def off(*moves_to: str, why: str = "") -> SuspendedContexts:
    return SuspendedContexts(ContextPlace.OFF, mib=(LEFT,), moves_to=moves_to, moves_not=why)


def says(
    bench: PoolBench,
    grant: Grant,
    contexts: SuspendedContexts | None = None,
    *,
    at: str,
    suspended: bool = True,
    error: str = "",
    **more: Any,
) -> Decisions:
    """What a server says of a grant, and where that is."""
    more.setdefault("staying_mib", (0,) if suspended else ())
    report = ReportedSuspension(
        grant.id,
        suspended=suspended,
        error=error,
        contexts=contexts,
        gpu_uuids=(at,),
        **more,
    )
    return bench.pool.lifecycle.suspension("a", report)


def booked(bench: PoolBench) -> dict[str, int]:
    """MiB of each GPU."""
    usage = bench.pool._ledger.allocations.usage
    return {uuid: usage(GpuKey("a", uuid)).memory_mib for uuid in ALL}


def resumed(grant: Grant, uuid: str) -> list[SuspendOrder]:
    return [SuspendOrder("a", grant.id, resume=True, gpu_uuid=uuid)]


def kinds(bench: PoolBench) -> list[str]:
    return [c.kind for c in bench.pool.take_changes() if isinstance(c, Event)]
