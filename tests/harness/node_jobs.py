# SPDX-License-Identifier: Apache-2.0
"""A job over several nodes, as the tests of the pool's decisions ask for it."""

from __future__ import annotations

from typing import Any

from ends import DONE
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.grants.jobs import JobKey
from sluice.controller.pool.model import GpuKey, Grant, SessionState

KEY = JobKey("j1", "net 10.0.0.9")
JOB: dict[str, Any] = {
    "job": KEY.job,
    "job_domain": KEY.domain,
    "channel": "tcp",
    "cross_node": True,
    "count": 3,
    "memory_mib": 4000,
}
OVERHEAD = 500  # MiB of each context


def pool_of_two() -> PoolBench:
    """Node a has two GPUs, node b one."""
    bench = PoolBench()
    bench.node("a", 8000, 8000, context_overhead_mib=OVERHEAD)
    bench.node("b", 8000, context_overhead_mib=OVERHEAD)
    return bench


def live(bench: PoolBench, grant: Grant) -> list[str]:
    """The nodes of its live sessions, one for each."""
    sessions = bench.pool.sessions_of(grant.id)
    return sorted(s.node for s in sessions if s.state is not SessionState.ENDED)


def used(bench: PoolBench) -> list[int]:
    """MiB of each GPU of `pool_of_two`."""
    keys = [GpuKey("a", "a-gpu0"), GpuKey("a", "a-gpu1"), GpuKey("b", "b-gpu0")]
    return [bench.pool.usage(key).memory_mib for key in keys]


def end(bench: PoolBench, granted: Granted) -> None:
    """The process ends, and its nodes say so."""
    for session in granted.sessions:
        bench.pool.lifecycle.session_ended(session.id, granted.grant.id, DONE, session.node)


def lose(bench: PoolBench, node: str) -> None:
    """It has been silent for too long."""
    bench.pool.nodes[node].last_seen -= 1000
    bench.pool.expire()
