# SPDX-License-Identifier: Apache-2.0
"""What a project and a token allow: priorities, preemption, and what a request draws on."""

from __future__ import annotations

from typing import Any

import pytest
from pool_bench import PoolBench

from sluice.controller.pool.model import (
    CudaStatus,
    Granted,
    Mode,
    OwnerKind,
    Quota,
    Reservation,
)


def reserve(bench: PoolBench, **fields: Any) -> Reservation:
    values: dict[str, Any] = {
        "owner_kind": OwnerKind.LABEL,
        "owner": "team-a",
        "project": "vision",
        "count": 1,
        "memory_mib": 4000,
        "compute_percent": 50,
        "priority": 0,
        "node": "",
        "created": bench.clock.wall(),
        **fields,
    }
    reservation = Reservation("res", **values)
    bench.pool.operations.reserve(reservation, wait=False)
    return reservation


def test_a_project_has_a_highest_priority(bench: PoolBench) -> None:
    bench.node("a", 8000)
    assert isinstance(bench.ask(project="vision", priority=900, compute_percent=1), Granted)
    bench.pool.operations.set_quota(Quota("vision", max_priority=5))
    assert isinstance(bench.ask(project="vision", priority=5, compute_percent=1), Granted)
    refused = bench.refused(project="vision", priority=6, compute_percent=1)
    assert refused.status is CudaStatus.NOT_PERMITTED
    for text in ("priority 6 (SLUICE_PRIORITY)", "at most 5", "quota set vision --max-priority 6"):
        assert text in refused.message


def test_what_a_token_says_counts_before_what_its_project_says(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.operations.set_quota(Quota("vision", max_priority=5, may_preempt=True))
    wish: dict[str, Any] = {"project": "vision", "compute_percent": 1}
    assert isinstance(bench.ask(**wish, priority=7, max_priority=9), Granted)
    assert "at most 1" in bench.refused(**wish, priority=2, max_priority=1).message
    assert isinstance(bench.ask(**wish, preempt=True), Granted)
    assert (
        "the token has no right" in bench.refused(**wish, preempt=True, may_preempt=False).message
    )
    other: dict[str, Any] = {"project": "speech", "compute_percent": 1, "preempt": True}
    assert "project speech has no right" in bench.refused(**other).message
    assert isinstance(bench.ask(**other, may_preempt=True), Granted)


def test_reserved_is_drawn_on_a_reservation_or_not_given(bench: PoolBench) -> None:
    bench.node("a", 8000)
    wish: dict[str, Any] = {"owner_label": "team-a", "mode": Mode.RESERVED}
    none = bench.refused(**wish)
    assert none.status is CudaStatus.NOT_PERMITTED
    assert "label team-a" in none.message
    reserve(bench)
    assert "none of its owner's is that large" in bench.refused(**wish, memory_mib=4001).message
    first = bench.granted(**wish).grant
    assert first.reservation == "res"
    assert bench.ask(**wish, request_id="second", wait_seconds=-1) == "second", "the pool has room"
    waiting = bench.pool.queue.get("second")
    assert waiting
    assert "its reservation is in use" in bench.pool.waiting(waiting.request).line
    assert isinstance(bench.ask(compute_percent=50, memory_mib=100), Granted), "it holds nothing"
    answers = bench.pool.release(first.id, "done").answers
    assert isinstance(answers["second"], Granted)


def test_on_demand_draws_on_no_reservation(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reserve(bench)
    wish: dict[str, Any] = {"owner_label": "team-a", "memory_mib": 1000, "compute_percent": 25}
    assert bench.granted(**wish, mode=Mode.ON_DEMAND).grant.reservation == ""
    assert bench.granted(**wish).grant.reservation == "res"


@pytest.mark.parametrize("label", ["team-b", ""])
def test_somebody_elses_label_draws_on_nothing(bench: PoolBench, label: str) -> None:
    bench.node("a", 8000)
    reserve(bench, compute_percent=100)
    assert "no reservation" in bench.refused(owner_label=label, mode=Mode.RESERVED).message
    assert bench.refused(owner_label=label).status is CudaStatus.DEVICE_UNAVAILABLE
