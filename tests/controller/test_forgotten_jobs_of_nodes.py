# SPDX-License-Identifier: Apache-2.0
"""Jobs of several nodes that the controller forgot, as its store was lost: their nodes tell of it.

Each tells of its own part, in any order, and which of the job's vGPUs that is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ends import BY_OPERATOR, DONE
from node_jobs import JOB, KEY, OVERHEAD
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Decisions, EndOrder, GrantRequest
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import (
    Gpu,
    GpuKey,
    GrantState,
    Node,
    NodeState,
    Quota,
    Session,
    SessionState,
    Vgpu,
)
from sluice.controller.pool.pool import ReportedSession
from sluice.controller.rpc.messages import assignment_message, session_of
from sluice.resources.ends import EndCause
from sluice.rpc import pool_pb2 as rpc


def part(
    node: str, places: tuple[int, ...], of: int = 3, chosen: tuple[int, ...] = (), **more: Any
) -> ReportedSession:
    """What a node says that it runs of grant g, of whose vGPUs it has these."""
    session = Session(
        f"s-{node}", "g", node, "tcp", "", "p", 1, 0, "", "", 1.0, SessionState.RUNNING
    )
    session.chosen = chosen
    vgpus = tuple(Vgpu(f"{node}-gpu{at}", 4000, 100) for at in range(len(places)))
    values = {"job": KEY.job, "job_domain": KEY.domain, "grant_vgpus": of, "places": places}
    return ReportedSession(session, vgpus, "", 0, **{**values, **more})


def comes(bench: PoolBench, *reports: ReportedSession) -> Decisions:
    """A node with two GPUs comes, and says what it runs."""
    name = reports[0].session.node
    node = Node(name, "x", 1, "1", 4, takes_parts=True)
    gpus = [
        Gpu(name, f"{name}-gpu{at}", "Model", 8000, context_overhead_mib=OVERHEAD)
        for at in range(2)
    ]
    return bench.pool.membership.register(node, gpus, reports)


def placed(bench: PoolBench) -> list[str]:
    return [str(key) for key, _ in bench.pool.grants["g"].placed()]


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_parts_that_nobody_remembers_keep_their_numbers_in_whatever_order_they_come(
    order: str,
) -> None:
    bench = PoolBench()
    parts = {"a": part("a", (0, 1), 4, (1,)), "b": part("b", (2,), 4), "c": part("c", (3,), 4)}
    waits = ""
    for name in order:
        assert not comes(bench, parts[name]).ends
        if not waits:
            asked = bench.ask(wait_seconds=60, **JOB)
            assert isinstance(asked, str), "nobody joins before all of it is known"
            waits = asked
            assert "no node has told of vGPU" in bench.pool.requests.why_waiting(
                GrantRequest(waits, **JOB)
            )
            assert "several nodes" in why_not_suspended(bench)
            bench = restarted(bench)
            waits = str(bench.ask(wait_seconds=60, **JOB))
    assert placed(bench) == ["a:a-gpu0", "a:a-gpu1", "b:b-gpu0", "c:c-gpu0"]
    chosen = {s.id: s.chosen for s in bench.pool.sessions_of("g") if s.id.startswith("s-")}
    assert chosen == {"s-a": (1,), "s-b": (2,), "s-c": (3,)}
    joined = bench.granted(request_id=waits, **JOB)
    assert joined.grant.id == "g"
    assert [(s.node, s.chosen) for s in joined.sessions] == [
        ("a", (0, 1)),
        ("b", (2,)),
        ("c", (3,)),
    ]
    told = [assignment_message(joined, s, "key", 30) for s in joined.sessions]
    assert [list(each.grant_places) for each in told] == [[0, 1], [2], [3]]
    assert {each.grant_vgpus for each in told} == {4}
    used_mib = [bench.pool.usage(GpuKey(n, f"{n}-gpu0")).memory_mib for n in "abc"]
    # of node a's, its own process chose the other
    assert used_mib == [4000 + OVERHEAD, 4000 + 2 * OVERHEAD, 4000 + 2 * OVERHEAD]


def restarted(bench: PoolBench) -> PoolBench:
    """A controller that starts again in the middle, with what is known so far."""
    after = bench.restarted()
    for node in after.pool.nodes.values():
        node.state = NodeState.UP
    return after


def why_not_suspended(bench: PoolBench) -> str:
    with pytest.raises(Impossible) as refused:
        bench.pool.lifecycle.suspend("g", "")
    return str(refused.value)


def test_nobody_claims_a_place_in_a_forgotten_job_that_is_not_left() -> None:
    bench = PoolBench()
    comes(bench, part("b", (2,)))
    may_be = bench.pool.membership.may_be_part
    assert may_be(part("a", (0, 1)))
    assert not may_be(part("x", (2,))), "node b has it"
    assert not may_be(part("x", (1, 2)))
    assert not may_be(part("x", (0,), 4)), "of a grant of another size"
    assert not may_be(part("a", (0, 1), job="other"))
    assert may_be(part("old", (), 0)), "an older server names no places"
    comes(bench, part("a", (0, 1)))
    assert not may_be(part("x", (0,)))
    assert not may_be(part("x", (), 0)), "all of it is known"


def test_an_older_servers_part_gets_the_place_that_is_left() -> None:
    bench = PoolBench()
    comes(bench, part("b", (2,)))
    old = part("a", (), 0, (1,))
    comes(bench, replace(old, vgpus=tuple(Vgpu(f"a-gpu{at}", 4000, 100) for at in range(2))))
    assert placed(bench) == ["a:a-gpu0", "a:a-gpu1", "b:b-gpu0"]
    assert {s.id: s.chosen for s in bench.pool.sessions_of("g")} == {"s-a": (1,), "s-b": (2,)}


def test_a_forgotten_job_of_which_a_node_never_comes_back_ends_with_its_last_process() -> None:
    bench = PoolBench()
    bench.pool.lifecycle.job_held(KEY, "request 1")
    comes(bench, part("b", (2,)))
    assert bench.pool.usage(GpuKey("b", "b-gpu0")).memory_mib == 4000 + OVERHEAD
    bench.pool.expire()
    grant = bench.pool.grants["g"]
    assert grant.state is GrantState.LIVE
    bench.pool.lifecycle.session_ended("s-b", "g", DONE, "b")
    bench.pool.expire()
    assert (grant.state, grant.cause) == (GrantState.ENDED, EndCause.NODE_LOST)
    assert bench.pool.usage(GpuKey("b", "b-gpu0")).memory_mib == 0


def test_a_vgpu_that_no_node_has_told_of_is_on_nobodys_account() -> None:
    """Nobody can use it, so its project may have another, and pays for none."""
    bench = PoolBench()
    bench.pool.limits.set_quota(Quota("vision", vgpus=3))
    comes(bench, part("a", (0, 1), project="vision"))
    assert bench.pool.quotas.held("vision").vgpus == 2
    bench.node("c", 8000)
    beside = bench.granted(memory_mib=4000, project="vision")
    comes(bench, part("b", (2,), project="vision"))
    assert bench.pool.quotas.held("vision").vgpus == 4
    bench.pool.lifecycle.session_ended(beside.session.id, beside.grant.id, DONE, "c")
    bench = restarted(bench)
    assert bench.pool.quotas.held("vision").vgpus == 3
    for name in "ab":
        bench.pool.lifecycle.session_ended(f"s-{name}", "g", DONE, name)
    bench.clock.seconds += 1000
    bench.pool.expire()
    assert bench.pool.quotas.held("vision").vgpus == 0


@pytest.mark.parametrize("more", [{}, {"job": "", "job_domain": ""}], ids=["a job", "one process"])
def test_the_end_of_one_nodes_part_is_none_of_who_has_yet_to_tell(more: dict[str, str]) -> None:
    """Its other node's part runs, and is told of when that node comes back."""
    bench = PoolBench(job_linger_seconds=0)
    comes(bench, part("b", (2,), **more))
    bench.pool.lifecycle.session_ended("s-b", "g", DONE, "b")
    assert bench.pool.grants["g"].state is GrantState.ENDED
    decisions = comes(bench, part("a", (0, 1), **more))
    assert not decisions.ends
    assert placed(bench) == ["a:a-gpu0", "a:a-gpu1", "?:unknown"]
    bench.pool.expire()
    assert bench.pool.grants["g"].state is GrantState.LIVE
    assert bench.pool.usage(GpuKey("b", "b-gpu0")).memory_mib == 0
    bench.pool.lifecycle.session_ended("s-a", "g", DONE, "a")
    assert bench.pool.grants["g"].state is GrantState.ENDED
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).memory_mib == 0


def test_what_an_operator_has_ended_meanwhile_ends_where_it_is_told_of_later() -> None:
    bench = PoolBench()
    comes(bench, part("b", (2,)))
    bench.pool.lifecycle.end_soon("g", BY_OPERATOR)
    bench.pool.lifecycle.session_ended("s-b", "g", BY_OPERATOR, "b")
    decisions = comes(bench, part("a", (0, 1)))
    assert decisions.ends == [EndOrder("a", "g", BY_OPERATOR)]
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).memory_mib > 0, "until it has"
    bench.pool.lifecycle.session_ended("s-a", "g", BY_OPERATOR, "a")
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).memory_mib == 0


@pytest.mark.parametrize(
    ("count", "places"),
    [(4_000_000_000, [0]), (3, [3]), (3, [0, 1]), (3, []), (0, [0]), (1, [0])],
    ids=["so many", "beyond", "more than vGPUs", "none", "of none", "of one node"],
)
def test_places_that_make_no_sense_are_not_believed(count: int, places: list[int]) -> None:
    said = rpc.SessionReport(
        session_id="s", grant_id="g", vgpus=[rpc.Vgpu()], grant_vgpus=count, grant_places=places
    )
    report = session_of("b", said)
    assert (report.grant_vgpus, report.places) == (0, ())
