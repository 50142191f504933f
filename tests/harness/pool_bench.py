# SPDX-License-Identifier: Apache-2.0
"""A pool with a clock that tests move, and shorthand to fill it and to ask it for grants."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from sluice.controller.pool.decisions import Decisions, Granted, GrantRequest, Refused
from sluice.controller.pool.model import Gpu, Node, OwnerKind, Reservation
from sluice.controller.pool.pool import Pool, Snapshot
from sluice.controller.pool.usage_records import UsageRecord, UsageShare


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds

    def wall(self) -> float:
        return 1.7e9 + self.seconds

    def monotonic(self) -> float:
        return self.seconds


class PoolBench:
    """A pool and what tests do with it."""

    def __init__(self, *, begins: float = 1000.0, **options: Any) -> None:
        self.clock = FakeClock(begins)
        numbers = itertools.count(1)
        self.pool = Pool(self.clock, lambda: f"{next(numbers):016x}", **options)
        self._requests = itertools.count(1)

    def node(
        self,
        name: str,
        *memory_mib: int,
        vgpu_count: int = 4,
        let_go: Collection[str] = (),
        takes_parts: bool = True,
        **gpu: Any,
    ) -> Decisions:
        gpus = [
            Gpu(name, f"{name}-gpu{index}", "Model", mib, **gpu)
            for index, mib in enumerate(memory_mib)
        ]
        node = Node(name, "10.0.0.1", 9960, "1", vgpu_count, takes_parts=takes_parts)
        return self.pool.membership.register(node, gpus, [], let_go=let_go)

    def ask(self, **wanted: Any) -> Granted | Refused | str:
        """The answer, or the request id of one that waits."""
        request_id = str(wanted.pop("request_id", f"r{next(self._requests)}"))
        decisions = self.pool.requests.submit(GrantRequest(request_id, **wanted))
        return decisions.answers.get(request_id, request_id)

    def granted(self, **wanted: Any) -> Granted:
        answer = self.ask(**wanted)
        assert isinstance(answer, Granted), answer
        return answer

    def refused(self, **wanted: Any) -> Refused:
        answer = self.ask(**wanted)
        assert isinstance(answer, Refused), answer
        return answer

    def reserve(self, name: str = "res", *, wait: bool = False, **fields: Any) -> Reservation:
        values: dict[str, Any] = {
            "owner_kind": OwnerKind.PROJECT,
            "owner": "vision",
            "project": "vision",
            "count": 1,
            "memory_mib": 4000,
            "compute_percent": 50,
            "priority": 0,
            "node": "",
            "created": self.clock.wall(),
            **fields,
        }
        reservation = Reservation(name, **values)
        outcome, _ = self.pool.reserving.reserve(reservation, wait=wait)
        if isinstance(outcome, Exception):
            raise outcome
        return reservation

    def restarted(
        self,
        *,
        usage: Sequence[UsageRecord] = (),
        shares: Sequence[UsageShare] = (),
        **options: Any,
    ) -> PoolBench:
        """One with what this one's store would have; its clock begins where this one's did."""
        pool = self.pool
        pool.take_changes()
        snapshot = Snapshot(
            list(pool.nodes.values()),
            list(pool.gpus.values()),
            list(pool.grants.values()),
            list(pool.sessions.values()),
            reservations=list(pool.reservations.values()),
            switches=list(pool.switches.values()),
            quotas=list(pool.quotas.limits.values()),
            usage=list(usage),
            shares=list(shares),
        )
        return PoolBench(snapshot=snapshot, **options)
