# SPDX-License-Identifier: Apache-2.0
"""Grants of several nodes whose nodes were silent for too long, and come back with what runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ends import GONE
from node_jobs import JOB, OVERHEAD, end, live, lose, pool_of_two, used
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.model import Gpu, GrantState, Node, Session, SessionState
from sluice.controller.pool.pool import ReportedSession


@pytest.fixture
def bench() -> PoolBench:
    return pool_of_two()


def told(granted: Granted, session: Session) -> tuple[Node, list[Gpu], list[ReportedSession]]:
    """What the node of one of a process's sessions says when it comes back and runs it."""
    grant, name = granted.grant, session.node
    places = grant.places_on(name)
    vgpus = tuple(replace(grant.vgpus[place], node="") for place in places)
    runs = replace(session, state=SessionState.RUNNING, chosen=(), request_id="", ended=None)
    report = ReportedSession(
        *(runs, vgpus, "", 0, grant.job, grant.job_domain),
        grant_vgpus=len(grant.vgpus),
        places=places,
    )
    gpus = [
        Gpu(name, vgpu.gpu_uuid, "Model", 8000, context_overhead_mib=OVERHEAD) for vgpu in vgpus
    ]
    return Node(name, "x", 1, "1", 4, takes_parts=True), gpus, [report]


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("wanted", [JOB, {**JOB, "job": "", "job_domain": ""}])
def test_what_ran_on_while_nobody_heard_of_any_of_its_nodes_goes_on(
    bench: PoolBench, wanted: dict[str, Any], order: str
) -> None:
    """As one node's does: the network to the controller was cut, and not that between them."""
    granted = bench.granted(**wanted)
    reports = {s.node: told(granted, s) for s in granted.sessions}
    lose(bench, "a")
    lose(bench, "b")
    assert bench.pool.grants[granted.grant.id].state is GrantState.ENDED
    for name in order:
        known = bench.pool.grants[granted.grant.id].nodes
        assert name in known or bench.pool.membership.may_be_part(reports[name][2][0])
        assert not bench.pool.membership.register(*reports[name]).ends
        bench.pool.expire()
    again = bench.pool.grants[granted.grant.id]
    assert again.state is GrantState.LIVE
    assert [str(key) for key, _ in again.placed()] == ["a:a-gpu0", "a:a-gpu1", "b:b-gpu0"]
    assert live(bench, again) == ["a", "b"]
    assert used(bench) == [4000 + OVERHEAD] * 3
    end(bench, granted)
    bench.clock.seconds += 1000
    bench.pool.expire()
    assert used(bench) == [0, 0, 0]


def test_a_rank_whose_node_was_silent_outlives_the_others(bench: PoolBench) -> None:
    first, second = bench.granted(chosen=(0,), **JOB), bench.granted(chosen=(2,), **JOB)
    report = told(first, first.session)
    lose(bench, "a")
    end(bench, second)
    bench.pool.expire()
    assert bench.pool.grants[first.grant.id].state is GrantState.ENDED
    assert not bench.pool.membership.register(*report).ends
    assert live(bench, first.grant) == ["a"]
    assert used(bench) == [4000 + OVERHEAD, 4000 + OVERHEAD, 0], "it has its node's part alone"


def test_what_was_ended_on_a_node_that_was_away_has_its_room_until_it_is_gone(
    bench: PoolBench,
) -> None:
    granted = bench.granted(**JOB)
    report = told(granted, granted.others[0])
    bench.pool.membership.disconnected("b")
    bench.pool.lifecycle.release(granted.grant.id, GONE)
    decisions = bench.pool.membership.register(*report)
    assert [(order.node, order.why) for order in decisions.ends] == [("b", GONE)]
    assert used(bench) == [0, 0, 4000 + OVERHEAD]
    bench.pool.lifecycle.session_ended(granted.others[0].id, granted.grant.id, GONE, "b")
    assert used(bench) == [0, 0, 0]
