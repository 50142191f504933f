# SPDX-License-Identifier: Apache-2.0
"""Parts of reservations: a platform divides what is its own, on GPUs that it names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, Refused
from sluice.controller.pool.gpus.allocations import Usage
from sluice.controller.pool.impossible import Impossible, Over, Unknown
from sluice.controller.pool.model import (
    GpuKey,
    Mode,
    OwnerKind,
    Quota,
    Reservation,
    ReservationState,
)
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.reservations.parts import Place

A0 = GpuKey("a", "a-gpu0")
A1 = GpuKey("a", "a-gpu1")


def whole_of(bench: PoolBench, **fields: Any) -> Reservation:
    return bench.reserve("whole", owner_kind=OwnerKind.LABEL, owner="k8s", project="k8s", **fields)


def keep(
    bench: PoolBench, owner: str, *places: tuple[GpuKey, int, int], project: str = "k8s"
) -> Reservation:
    part = Reservation(
        f"part-{owner}",
        OwnerKind.LABEL,
        owner,
        project,
        1,
        0,
        0,
        0,
        "",
        bench.clock.wall(),
        within="whole",
    )
    kept, _ = bench.pool.parts.keep(part, [Place(*place) for place in places])
    return kept


def draw(bench: PoolBench, label: str, **more: Any) -> Granted | Refused | str:
    return bench.ask(owner_label=label, mode=Mode.RESERVED, project="k8s", wait_seconds=0, **more)


def kept(bench: PoolBench, key: GpuKey = A0) -> Usage:
    """What reservations hold of a GPU and nobody draws."""
    return bench.pool.kept(key)


def test_a_part_is_where_it_was_asked_for_and_is_booked_once(bench: PoolBench) -> None:
    bench.node("a", 8000, 8000)
    whole = whole_of(bench, count=2, memory_mib=6000, compute_percent=100)
    before = [(bench.pool.usage(key), kept(bench, key)) for key in (A0, A1)]
    part = keep(bench, "claim-1", (A1, 2000, 25))
    assert [slot.key for slot in part.slots] == [A1]
    assert [(bench.pool.usage(key), kept(bench, key)) for key in (A0, A1)] == before
    granted = draw(bench, "claim-1")
    assert isinstance(granted, Granted)
    assert [key for key, _ in granted.grant.placed()] == [A1]
    assert granted.grant.vgpus[0].memory_mib == 2000
    assert granted.grant.vgpus[0].compute_percent == 25
    assert bench.pool.parts.of(whole) == [part]


def test_parts_are_never_more_than_their_whole(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole_of(bench, memory_mib=6000, compute_percent=60)
    keep(bench, "claim-1", (A0, 4000, 30))
    with pytest.raises(Impossible, match="2000 MiB and 30 % free there"):
        keep(bench, "claim-2", (A0, 3000, 10))
    with pytest.raises(Impossible, match="are wanted"):
        keep(bench, "claim-2", (A0, 1000, 31))
    keep(bench, "claim-2", (A0, 2000, 30))
    # neither is there anything left for who draws on the whole
    assert isinstance(draw(bench, "k8s", memory_mib=1, compute_percent=1), Refused)


def test_the_same_part_again_is_the_same_and_another_is_refused(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole_of(bench)
    first = keep(bench, "claim-1", (A0, 1000, 10))
    assert keep(bench, "claim-1", (A0, 1000, 10)) is first
    with pytest.raises(Impossible, match="another size or project"):
        keep(bench, "claim-1", (A0, 1001, 10))
    with pytest.raises(Impossible, match="another size or project"):
        keep(bench, "claim-1", (A0, 1000, 10), project="k8s.team")


def test_nobody_draws_on_anothers_part(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole_of(bench)
    keep(bench, "claim-1", (A0, 1000, 10))
    refused = draw(bench, "claim-2", memory_mib=1, compute_percent=1)
    assert isinstance(refused, Refused)


def test_what_runs_on_a_part_ends_with_it_and_is_booked_until_then(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole_of(bench)
    keep(bench, "claim-1", (A0, 4000, 50))
    granted = draw(bench, "claim-1")
    assert isinstance(granted, Granted)
    decisions = bench.pool.parts.give_back("part-claim-1", "its claim is gone")
    assert [(order.node, order.grant_id) for order in decisions.ends] == [("a", granted.grant.id)]
    with pytest.raises(Impossible, match="0 MiB and 0 % free"):
        keep(bench, "claim-2", (A0, 4000, 50))
    bench.pool.lifecycle.release(granted.grant.id, decisions.ends[0].why)
    keep(bench, "claim-2", (A0, 4000, 50))
    with pytest.raises(Unknown):
        bench.pool.parts.give_back("part-claim-1", "again")


def test_what_cannot_have_parts_says_why(bench: PoolBench) -> None:
    bench.node("a", 8000)
    with pytest.raises(Unknown):
        keep(bench, "claim-1", (A0, 1, 1))
    whole_of(bench)
    with pytest.raises(Impossible, match="holds nothing of a:a-gpu7"):
        keep(bench, "claim-1", (GpuKey("a", "a-gpu7"), 1, 1))
    part = keep(bench, "claim-1", (A0, 1000, 10))
    with pytest.raises(Impossible, match="parts keep their sizes"):
        bench.pool.reserving.resize_reservation(part.id, 1, 2000, 10)
    inner = Reservation("inner", OwnerKind.LABEL, "x", "k8s", 1, 0, 0, 0, "", 0.0, within=part.id)
    with pytest.raises(Impossible, match="is a part itself"):
        bench.pool.parts.keep(inner, [Place(A0, 1, 1)])
    bench.pool.reserving.end_reservation("whole", "over")
    with pytest.raises(Over):
        keep(bench, "claim-2", (A0, 1, 1))


def test_a_whole_in_use_does_not_shrink_below_its_parts(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole_of(bench)
    keep(bench, "claim-1", (A0, 3000, 10))
    with pytest.raises(Impossible, match="use 3000 MiB"):
        bench.pool.reserving.resize_reservation("whole", 1, 2000, 50)
    bench.pool.reserving.resize_reservation("whole", 1, 3000, 50)


def test_parts_are_on_their_projects_accounts(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.limits.set_quota(Quota("k8s.red", memory_mib=1500))
    whole_of(bench, memory_mib=4000, compute_percent=40)
    with pytest.raises(Impossible, match=r"project k8s.red may hold 1500"):
        keep(bench, "claim-1", (A0, 2000, 10), project="k8s.red")
    keep(bench, "claim-1", (A0, 1500, 10), project="k8s.red")
    quotas = bench.pool.quotas
    assert quotas.held("k8s.red") == Held(1, 1500, 10)
    assert quotas.held("k8s") == Held(1, 2500, 30)
    again = bench.restarted().pool.quotas
    assert (again.held("k8s.red"), again.held("k8s")) == (Held(1, 1500, 10), Held(1, 2500, 30))
    bench.pool.parts.give_back("part-claim-1", "over")
    assert (quotas.held("k8s.red"), quotas.held("k8s")) == (Held(), Held(1, 4000, 40))


def test_parts_outlive_their_whole_and_the_controller(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole_of(bench, memory_mib=4000, compute_percent=40)
    keep(bench, "claim-1", (A0, 1000, 10))
    later = bench.restarted()
    later.node("a", 8000)
    with pytest.raises(Impossible, match="3000 MiB and 30 % free"):
        keep(later, "claim-2", (A0, 3001, 10))
    assert kept(later).memory_mib == 4000
    later.pool.reserving.end_reservation("whole", "over")
    [part] = [r for r in later.pool.reservations.values() if r.state is ReservationState.HELD]
    assert (part.owner, part.within) == ("claim-1", "")
    assert kept(later).memory_mib == 1000
    assert later.pool.quotas.held("k8s") == Held(1, 1000, 10)
    later.pool.reserving.end_reservation(part.id, "over")
    assert kept(later).memory_mib == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 3000), st.integers(1, 40), st.booleans()),
        max_size=12,
    )
)
def test_whatever_is_asked_the_books_are_those_of_a_fresh_start(steps: Any) -> None:
    bench = PoolBench()
    bench.node("a", 8000)
    whole_of(bench, memory_mib=4000, compute_percent=50)
    for owner, memory_mib, percent, back in steps:
        try:
            if back:
                bench.pool.parts.give_back(f"part-{owner}", "over")
            else:
                keep(bench, owner, (A0, memory_mib, percent), project=f"k8s.{owner}")
        except (Impossible, Unknown):
            pass
        whole = bench.pool.reservations["whole"]
        parts = bench.pool.parts.of(whole)
        assert sum(part.slots[0].memory_mib for part in parts) <= 4000
        assert sum(part.slots[0].compute_percent for part in parts) <= 50
    again = bench.restarted()
    for project in ("k8s", "k8s.a", "k8s.b", "k8s.c"):
        assert again.pool.quotas.held(project) == bench.pool.quotas.held(project)
    assert (again.pool.usage(A0), kept(again)) == (bench.pool.usage(A0), kept(bench))


def memory_of(bench: PoolBench) -> dict[str, float]:
    """MiB-seconds by label."""
    return {each.label: each.memory_mib_seconds for each in bench.pool.shared_up_to_now()}


def test_parts_count_for_their_own_label_and_no_longer_for_the_wholes(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole_of(bench, memory_mib=4000, compute_percent=40)
    bench.clock.seconds += 10
    keep(bench, "claim-1", (A0, 1000, 10))
    bench.clock.seconds += 10
    assert memory_of(bench) == {"k8s": 70_000, "claim-1": 10_000}
    bench.pool.reserving.end_reservation("whole", "over")
    bench.clock.seconds += 10
    assert memory_of(bench) == {"k8s": 70_000, "claim-1": 20_000}
    bench.pool.reserving.end_reservation("part-claim-1", "over")
    bench.clock.seconds += 10
    assert memory_of(bench) == {"k8s": 70_000, "claim-1": 20_000}
