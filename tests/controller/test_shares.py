# SPDX-License-Identifier: Apache-2.0
"""Reservations, quotas and resizing, without I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ends import DONE
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, Refused
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import (
    GpuKey,
    GpuMode,
    GrantState,
    OwnerKind,
    Quota,
    ReservationState,
)
from sluice.protocol.cuda_status import CudaStatus

GPU = GpuKey("a", "a-gpu0")

# reservations


def test_a_reservation_holds_its_room_whether_it_is_used_or_not(bench: PoolBench) -> None:
    bench.node("a", 8000, context_overhead_mib=100)
    reservation = bench.reserve()
    assert reservation.state is ReservationState.HELD
    assert bench.refused(compute_percent=60).status is CudaStatus.DEVICE_UNAVAILABLE
    assert bench.refused(memory_mib=4000, compute_percent=1).status is not None
    own = bench.granted(project="vision").grant
    assert (own.reservation, own.vgpus[0].memory_mib, own.vgpus[0].compute_percent) == (
        "res",
        4000,
        50,
    )
    assert bench.pool.usage(GPU).memory_mib == 4100
    assert bench.pool.kept(GPU).memory_mib == 0
    bench.pool.lifecycle.release(own.id, DONE)
    assert (bench.pool.usage(GPU).memory_mib, bench.pool.kept(GPU).memory_mib) == (0, 4100)


def test_an_owner_draws_on_it_first_and_then_on_the_pool(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.reserve()
    wanted = {"memory_mib": 2000, "compute_percent": 25, "project": "vision"}
    drawn = [bench.granted(**wanted).grant.reservation for _ in range(4)]
    assert drawn == ["res", "res", "", ""]
    assert bench.pool.usage(GPU).memory_mib == 8000


@pytest.mark.parametrize(
    ("owner", "identity"),
    [
        ((OwnerKind.VM, "uuid-1"), {"domain_uuid": "uuid-1"}),
        ((OwnerKind.VM, "web"), {"domain_name": "web"}),
        ((OwnerKind.LABEL, "team=a"), {"owner_label": "team=a"}),
    ],
)
def test_who_owns_it(
    bench: PoolBench, owner: tuple[OwnerKind, str], identity: dict[str, str]
) -> None:
    bench.node("a", 8000)
    bench.reserve(owner_kind=owner[0], owner=owner[1], compute_percent=100)
    assert isinstance(bench.ask(), Refused)
    assert bench.granted(**identity).grant.reservation == "res"


def test_a_reservation_waits_its_turn_or_is_refused(bench: PoolBench) -> None:
    bench.node("a", 8000)
    running = bench.granted(compute_percent=80).grant
    with pytest.raises(Impossible, match="no room for it now"):
        bench.reserve("now")
    assert "now" not in bench.pool.reservations
    with pytest.raises(Impossible, match="if it were empty"):
        bench.reserve("never", memory_mib=9000, wait=True)
    waiting = bench.reserve("later", wait=True)
    assert waiting.state is ReservationState.WAITING
    assert bench.ask(request_id="x", compute_percent=20, wait_seconds=-1) == "x"
    answers = bench.pool.lifecycle.release(running.id, DONE).answers
    assert waiting.state is ReservationState.HELD
    assert isinstance(answers["x"], Granted)


def test_more_vgpus_than_a_node_has_gpus_are_spread_and_held_as_a_whole(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.node("b", 8000)
    reservation = bench.reserve(count=4)
    assert sorted(slot.node for slot in reservation.slots) == ["a", "a", "b", "b"]
    with pytest.raises(Impossible):
        bench.reserve("more")


def test_resizing_a_reservation_in_use(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reservation = bench.reserve()
    pool = bench.pool
    own = bench.granted(memory_mib=3000, compute_percent=40, project="vision").grant
    pool.reserving.resize_reservation("res", 1, 6000, 80)
    assert bench.refused(compute_percent=25).status is CudaStatus.DEVICE_UNAVAILABLE
    with pytest.raises(Impossible, match="use 3000 MiB and 40 %"):
        pool.reserving.resize_reservation("res", 1, 2000, 80)
    with pytest.raises(Impossible, match="2000 MiB and 20 % free"):
        pool.reserving.resize_reservation("res", 1, 9000, 80)
    assert reservation.slots[0].memory_mib == 6000
    pool.reserving.resize_reservation("res", 1, 3000, 40)
    assert isinstance(bench.ask(compute_percent=60, memory_mib=5000), Granted)
    bench.pool.lifecycle.release(own.id, DONE)
    with pytest.raises(Impossible, match="no room for 1 more"):
        pool.reserving.resize_reservation("res", 2, 0, 0)
    pool.reserving.end_reservation("res", "deleted by the operator")
    with pytest.raises(Impossible, match="has ended"):
        pool.reserving.resize_reservation("res", 2, 0, 0)
    with pytest.raises(Unknown):
        pool.reserving.end_reservation("none", "")


def test_what_draws_on_a_reservation_that_ends_goes_on(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.reserve()
    grant = bench.granted(project="vision").grant
    bench.pool.reserving.end_reservation("res", "deleted")
    assert (grant.state, grant.reservation) == (GrantState.LIVE, "")
    assert bench.pool.usage(GPU).memory_mib == 4000
    bench.pool.lifecycle.release(grant.id, DONE)
    assert bench.pool.usage(GPU).memory_mib == 0


def test_reservations_survive_a_restart(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.reserve()
    bench.granted(memory_mib=1000, compute_percent=10, project="vision")
    bench.reserve("later", compute_percent=100, wait=True)
    after = bench.restarted()
    assert after.pool.kept(GPU).memory_mib == 3000
    assert after.pool.usage(GPU).memory_mib == 1000
    assert after.pool.queue.position("later") == 1


# quotas


@pytest.mark.parametrize(
    ("quota", "wanted", "name"),
    [
        (Quota("p", vgpus=2), {"count": 1}, "vgpus"),
        (Quota("p", memory_mib=2500), {"memory_mib": 1000}, "memory_mib"),
        (Quota("p", compute_percent=45), {"compute_percent": 20}, "compute_percent"),
    ],
)
def test_a_project_holds_no_more_than_its_quota(
    make_bench: Callable[..., PoolBench], quota: Quota, wanted: dict[str, int], name: str
) -> None:
    bench = make_bench(over_quota_waits=False)
    bench.node("a", 8000, 8000)
    bench.pool.limits.set_quota(quota)
    small = {"memory_mib": 10, "compute_percent": 10, **wanted, "project": "p"}
    held = [bench.granted(**small).grant for _ in range(2)]
    refusal = bench.refused(**small, wait_seconds=-1)
    assert refusal.status is CudaStatus.NOT_PERMITTED
    assert f"its quota {name}" in refusal.message
    assert isinstance(bench.ask(**{**small, "project": "q"}), Granted)
    bench.pool.lifecycle.release(held[0].id, DONE)
    assert isinstance(bench.ask(**small), Granted)


def test_over_quota_waits_and_holds_nobody_up(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.limits.set_quota(Quota("p", vgpus=1))
    first = bench.granted(project="p", compute_percent=10).grant
    assert bench.ask(request_id="x", project="p", compute_percent=10, wait_seconds=-1) == "x"
    entry = bench.pool.queue.get("x")
    assert entry
    assert "project p may hold 1 vGPUs" in bench.pool.requests.waiting(entry.request).line
    assert isinstance(bench.ask(project="q", wait_seconds=-1), Granted)
    answers = bench.pool.lifecycle.release(first.id, DONE).answers
    assert isinstance(answers["x"], Granted)


def test_what_alone_exceeds_a_quota_is_refused_even_to_those_who_would_wait(
    bench: PoolBench,
) -> None:
    bench.node("a", 8000, 8000)
    bench.pool.limits.set_quota(Quota("default", vgpus=1))
    assert bench.refused(count=2, wait_seconds=-1).status is CudaStatus.NOT_PERMITTED
    bench.pool.limits.remove_quota("default")
    assert isinstance(bench.ask(count=2), Granted)
    with pytest.raises(Unknown):
        bench.pool.limits.remove_quota("default")


def test_a_reservation_is_counted_once_with_what_draws_on_it(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.limits.set_quota(Quota("vision", vgpus=1))
    bench.reserve()
    bench.granted(project="vision", compute_percent=50)
    assert bench.pool.quotas.held("vision").vgpus == 1
    with pytest.raises(Impossible, match="quota vgpus"):
        bench.reserve("second", count=2)


def test_of_ended_reservations_the_newest_are_remembered(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(ended_kept=2)
    bench.node("a", 8000)
    for number in range(5):
        bench.reserve(f"r{number}")
        bench.clock.seconds += 1
        bench.pool.reserving.end_reservation(f"r{number}", "deleted")
    held = bench.reserve("held")
    assert sorted(bench.pool.reservations) == [held.id, "r3", "r4"]


# resizing


def test_a_grant_in_use_is_resized_in_two_steps(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted(memory_mib=2000, compute_percent=30).grant
    pool = bench.pool
    order = pool.lifecycle.begin_resize(grant.id, 0, 60)
    assert order
    assert order.vgpus[0].compute_percent == 60
    assert bench.pool.usage(GPU).compute_percent == 60, "it is booked before it is given"
    with pytest.raises(Impossible, match="already"):
        pool.lifecycle.begin_resize(grant.id, 0, 70)
    pool.lifecycle.finish_resize(grant.id, "the worker cannot")
    assert bench.pool.usage(GPU).compute_percent == 30
    pool.lifecycle.begin_resize(grant.id, 0, 10)
    assert bench.pool.usage(GPU).compute_percent == 30, "it is given back after it is taken"
    pool.lifecycle.finish_resize(grant.id, "")
    assert bench.pool.usage(GPU).compute_percent == 10
    with pytest.raises(Impossible, match="6000 MiB and 90 % free"):
        pool.lifecycle.begin_resize(grant.id, 9000, 0)
    bench.pool.lifecycle.release(grant.id, DONE)
    with pytest.raises(Impossible, match="has ended"):
        pool.lifecycle.begin_resize(grant.id, 1, 0)


def test_every_kind_of_event_is_documented() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "control-plane.md").read_text().split("### Kinds of events")[1]
    text = text.split("\n## ")[0]
    documented: set[str] = set()
    family = ""
    for name in re.findall(r"`([a-z_.]+)`", text):
        family = name.split(".")[0] if not name.startswith(".") else family
        documented.add(name if not name.startswith(".") else family + name)
    used: set[str] = set()
    for path in (root / "controller" / "pool").rglob("*.py"):
        used |= set(re.findall(r'event\(\s*"([a-z_]+\.[a-z_]+)"', path.read_text()))
    used |= {f"gpu.{mode.value}" for mode in GpuMode} | {"node.away", "node.lost"}
    used |= {"node.drained", "node.undrained", "alert.firing", "alert.resolved"}
    assert used == documented - {"audit.", "token.", "enrolment.", "adapter."}
