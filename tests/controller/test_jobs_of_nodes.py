# SPDX-License-Identifier: Apache-2.0
"""Jobs whose vGPUs are of several nodes: who joins and where, what is charged, how they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ends import DONE, GONE
from node_jobs import JOB, KEY, OVERHEAD, end, live, lose, pool_of_two, used
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, session_end_orders
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import (
    Gpu,
    GpuKey,
    GrantState,
    Node,
    Quota,
    Session,
    SessionState,
    Vgpu,
)
from sluice.controller.pool.pool import ReportedSession
from sluice.controller.rpc.messages import assignment_message, other_node_message
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause


@pytest.fixture
def bench() -> PoolBench:
    return pool_of_two()


def assigned(bench: PoolBench, granted: Granted) -> list[tuple[Any, ...]]:
    """What each node is told: the vGPUs it has, which are chosen, and the process's numbers."""
    found = []
    for session in granted.sessions:
        told = assignment_message(granted, session, "key", 30)
        other = other_node_message(granted, session, bench.pool.nodes[session.node], "key")
        assert other.first_vgpu == told.first_vgpu
        vgpus = [vgpu.gpu_uuid for vgpu in told.vgpus]
        found.append((vgpus, list(told.chosen), told.first_vgpu, told.all_vgpus))
    return found


def test_its_processes_share_one_grant_with_a_session_on_each_node(bench: PoolBench) -> None:
    bench.pool.limits.set_quota(Quota("vision", vgpus=3))
    wanted = {**JOB, "project": "vision"}
    first, second = bench.granted(**wanted), bench.granted(**wanted)
    assert first.grant is second.grant
    assert [s.node for s in second.sessions] == ["a", "b"]
    assert live(bench, first.grant) == ["a", "a", "b", "b"]
    assert bench.pool.quotas.held("vision").vgpus == 3, "counted once"
    assert used(bench) == [4000 + 2 * OVERHEAD] * 3
    end(bench, first)
    assert used(bench) == [4000 + OVERHEAD] * 3
    assert live(bench, second.grant) == ["a", "b"]
    both = [(["a-gpu0", "a-gpu1"], [], 0, 3), (["b-gpu0"], [], 2, 3)]
    assert assigned(bench, second) == both


def test_a_process_has_a_session_only_where_the_vgpus_are_that_it_chooses(
    bench: PoolBench,
) -> None:
    first = bench.granted(chosen=(1,), **JOB)
    second = bench.granted(chosen=(2,), **JOB)
    third = bench.granted(chosen=(2, 1), **JOB)
    assert [s.node for s in first.sessions] == ["a"]
    assert [s.node for s in second.sessions] == ["b"]
    assert [s.node for s in third.sessions] == ["b", "a"]
    assert used(bench) == [4000 + OVERHEAD, 4000 + 2 * OVERHEAD, 4000 + 2 * OVERHEAD]
    assert assigned(bench, first) == [(["a-gpu0", "a-gpu1"], [1], 0, 0)]
    assert assigned(bench, second) == [(["b-gpu0"], [], 0, 0)]
    # its devices 0 and 1 are what it chose, in its order
    assert assigned(bench, third) == [
        (["b-gpu0"], [], 0, 2),
        (["a-gpu0", "a-gpu1"], [1], 1, 2),
    ]


def test_a_nodes_vgpus_are_chosen_one_after_the_other(bench: PoolBench) -> None:
    bench.granted(**JOB)
    refused = bench.refused(chosen=(0, 2, 1), **JOB)
    assert refused.status is CudaStatus.INVALID_VALUE
    assert "vGPUs 0, 2, 1" in refused.message
    assert "CUDA_VISIBLE_DEVICES" in refused.message


def test_who_can_have_one_session_chooses_vgpus_of_one_node(bench: PoolBench) -> None:
    bench.granted(**JOB)
    narrow = {**JOB, "cross_node": False, "one_node": True}
    refused = bench.refused(**narrow)
    assert refused.status is CudaStatus.NOT_SUPPORTED
    assert "SLUICE_CROSS_NODE=1" in refused.message
    assert [s.node for s in bench.granted(chosen=(2,), **narrow).sessions] == ["b"]


def test_nobody_else_joins_it_from_any_node(bench: PoolBench) -> None:
    granted = bench.granted(**{**JOB, "project": "vision", "job_domain": "project vision"})
    for node in ("a", "b"):
        beside = {"node": node, "local_only": True, "channel": "shm", "cross_node": False}
        stolen = {**JOB, **beside, "count": 1, "job_domain": f"user {node} 1000"}
        assert bench.refused(**stolen).status is CudaStatus.NOT_PERMITTED
    stolen = {**JOB, "job_domain": "project other", "project": "other"}
    assert bench.refused(**stolen).status is CudaStatus.NOT_PERMITTED
    assert bench.refused(**{**JOB, "job_domain": "vm 1"}).status is CudaStatus.NOT_PERMITTED
    assert live(bench, granted.grant) == ["a", "b"]


def test_it_is_held_between_its_processes(bench: PoolBench) -> None:
    bench.pool.lifecycle.job_held(KEY, "request 1")
    granted = bench.granted(**JOB)
    end(bench, granted)
    bench.clock.seconds += 1000
    for node in ("a", "b"):
        bench.pool.membership.seen(node)
    bench.pool.expire()
    assert bench.granted(chosen=(0,), **JOB).grant is granted.grant
    bench.pool.lifecycle.job_released(KEY, "request 1")
    assert granted.grant.state is GrantState.LIVE
    bench.pool.lifecycle.session_ended(
        bench.pool.sessions_of(granted.grant.id)[-1].id, granted.grant.id, DONE, "a"
    )
    assert granted.grant.state is GrantState.ENDED
    assert used(bench) == [0, 0, 0]


def test_a_lost_node_costs_its_sessions_and_the_rest_is_placed_anew(bench: PoolBench) -> None:
    bench.pool.lifecycle.job_held(KEY, "request 1")
    first, second = bench.granted(**JOB), bench.granted(**JOB)
    lose(bench, "b")
    assert live(bench, first.grant) == ["a", "a"]
    waits = bench.ask(wait_seconds=60, **JOB)
    assert isinstance(waits, str), "it needs all of its nodes"
    assert "node b of its job is not connected" in bench.refused(**JOB).message
    bench.node("c", 8000)
    for granted in (first, second):
        end(bench, Granted(granted.grant, granted.session))
    decisions = bench.pool.expire()
    assert first.grant.state is GrantState.ENDED
    assert first.grant.cause is EndCause.NODE_LOST
    anew = decisions.answers[waits]
    assert isinstance(anew, Granted)
    assert anew.grant.nodes == {"a", "c"}


def test_a_lost_node_that_ran_on_has_each_process_again(bench: PoolBench) -> None:
    first = bench.granted(chosen=(0, 2), **JOB)
    second = bench.granted(chosen=(1, 2), **JOB)
    lose(bench, "b")
    assert live(bench, first.grant) == ["a", "a"]
    reports = [
        ReportedSession(
            replace(
                g.others[0], state=SessionState.RUNNING, chosen=(0,), request_id="", ended=None
            ),
            (Vgpu("b-gpu0", 4000, 100),),
            "",
            0,
            KEY.job,
            KEY.domain,
        )
        for g in (first, second)
    ]
    node = Node("b", "x", 1, "1", 4, takes_parts=True)
    gpus = [Gpu("b", "b-gpu0", "Model", 8000, context_overhead_mib=OVERHEAD)]
    decisions = bench.pool.membership.register(node, gpus, reports)
    assert not decisions.ends
    assert live(bench, first.grant) == ["a", "a", "b", "b"]
    for granted in (first, second):
        again = bench.pool.sessions[granted.others[0].id]
        assert (again.chosen, again.request_id) == ((2,), granted.session.request_id)
    assert used(bench)[2] == 4000 + 2 * OVERHEAD


def test_a_failed_gpu_ends_what_uses_it_and_nobody_joins(bench: PoolBench) -> None:
    first = bench.granted(chosen=(0,), **JOB)
    second = bench.granted(chosen=(2,), **JOB)
    key = GpuKey("b", "b-gpu0")
    decisions = bench.pool.membership.gpu_condition(key, "Xid 79; restart the node", "", "")
    assert [(order.node, order.grant_id) for order in decisions.ends] == [("b", first.grant.id)]
    assert "GPU b:b-gpu0 of its job has failed" in bench.refused(chosen=(0,), **JOB).message
    end(bench, second)
    bench.pool.expire()
    assert first.grant.state is GrantState.LIVE, "the other process goes on"
    end(bench, first)
    bench.pool.expire()
    assert first.grant.state is GrantState.ENDED


def test_a_process_that_goes_away_leaves_the_others_theirs(bench: PoolBench) -> None:
    first = bench.granted(request_id="first", **JOB)
    bench.granted(request_id="second", **JOB)
    assert not bench.pool.requests.withdraw("second", GONE).ends
    assert live(bench, first.grant) == ["a", "b"]
    other = bench.granted(**JOB)
    refused = bench.pool.lifecycle.not_taken(other, GONE)
    assert not refused.ends
    assert refused.session_ends == session_end_orders(other.sessions, GONE), "its keys alone"
    assert live(bench, first.grant) == ["a", "b"]
    assert used(bench) == [4000 + OVERHEAD] * 3
    decisions = bench.pool.requests.withdraw("first", GONE)
    assert [order.node for order in decisions.ends] == ["a", "b"]
    assert first.grant.state is GrantState.ENDED
    assert used(bench) == [0, 0, 0]


def test_a_held_jobs_room_is_not_given_back_with_a_client_that_goes_away(bench: PoolBench) -> None:
    bench.pool.lifecycle.job_held(KEY, "request 1")
    first = bench.granted(request_id="first", **JOB)
    end(bench, first)
    bench.granted(request_id="second", **JOB)
    assert not bench.pool.requests.withdraw("second", GONE).ends
    third = bench.granted(**JOB)
    assert third.grant is first.grant
    decisions = bench.pool.lifecycle.not_taken(third, GONE)
    assert [order.node for order in decisions.session_ends] == ["a", "b"]
    assert first.grant.state is GrantState.LIVE
    # where a node does not take its part, the next try is placed anew
    fourth = bench.granted(**JOB)
    assert bench.pool.lifecycle.not_taken(fourth, End(EndCause.NOT_TAKEN, "silent")).ends
    assert bench.granted(**JOB).grant is not first.grant


def test_who_gives_up_on_one_node_is_expected_on_no_other(bench: PoolBench) -> None:
    """Its client found that a node cannot be reached: the others' keys are withdrawn at once."""
    first, second = bench.granted(**JOB), bench.granted(**JOB)
    [other] = second.others
    decisions = bench.pool.lifecycle.session_ended(second.session.id, second.grant.id, GONE, "a")
    assert not decisions.ends
    assert decisions.session_ends == session_end_orders([other], GONE)
    assert live(bench, first.grant) == ["a", "b", "b"], "until its node has done it"
    decisions = bench.pool.lifecycle.session_ended(other.id, second.grant.id, GONE, "b")
    assert not decisions.session_ends
    assert live(bench, first.grant) == ["a", "b"]
    bench.pool.lifecycle.session_started(first.session.id, 1, "tcp")
    decisions = bench.pool.lifecycle.session_ended(first.others[0].id, first.grant.id, DONE, "b")
    assert not decisions.session_ends, "it has begun on a node, and goes on there"


def test_a_key_that_was_withdrawn_while_its_node_was_away_opens_nothing(bench: PoolBench) -> None:
    first, other = bench.granted(**JOB), bench.granted(**JOB)
    bench.pool.lifecycle.not_taken(other, GONE)
    [theirs], [own] = other.others, first.others
    reports = [
        ReportedSession(
            replace(session, state=SessionState.OPENING, chosen=(), request_id=""),
            (Vgpu("b-gpu0", 4000, 100),),
            *("", 0, KEY.job, KEY.domain),
        )
        for session in (theirs, own)
    ]
    node = Node("b", "x", 1, "1", 4, takes_parts=True)
    gpus = [Gpu("b", "b-gpu0", "Model", 8000, context_overhead_mib=OVERHEAD)]
    decisions = bench.pool.membership.register(node, gpus, reports)
    assert not decisions.ends
    assert decisions.session_ends == session_end_orders([theirs], GONE)
    assert live(bench, first.grant) == ["a", "b"]


def test_the_same_request_again_gets_its_own_sessions(bench: PoolBench) -> None:
    bench.granted(**JOB)
    mine = bench.granted(request_id="mine", **JOB)
    again = bench.granted(request_id="mine", **JOB)
    assert [s.id for s in again.sessions] == [s.id for s in mine.sessions]


def test_so_many_sessions_on_a_node() -> None:
    bench = PoolBench(job_sessions=2)
    bench.node("a", 8000, 8000)
    bench.node("b", 8000)
    for _ in range(2):
        bench.granted(**JOB)
    assert "job_sessions" in bench.refused(**JOB).message


def test_the_operator_ends_it_on_every_node_and_changes_nothing_else(bench: PoolBench) -> None:
    granted = bench.granted(**JOB)
    for session in granted.sessions:
        bench.pool.lifecycle.session_started(session.id, 1, "tcp")
    with pytest.raises(Impossible, match="vGPUs of 2 nodes, which cannot be suspended together"):
        bench.pool.lifecycle.suspend(granted.grant.id, "")
    with pytest.raises(Impossible, match="vGPUs of 2 nodes, which keep their size"):
        bench.pool.lifecycle.begin_resize(granted.grant.id, 100, 0)
    with pytest.raises(Impossible, match="vGPUs of 2 nodes"):
        bench.pool.lifecycle.move(granted.grant.id, "", "")
    why = End(EndCause.OPERATOR, "ended by the operator")
    decisions = bench.pool.lifecycle.end_soon(granted.grant.id, why)
    assert [order.node for order in decisions.ends] == ["a", "b"]
    assert "being ended" in bench.refused(**JOB).message
    end(bench, granted)
    assert granted.grant.state is GrantState.ENDED
    assert granted.grant.cause is EndCause.OPERATOR


def test_a_controller_that_starts_again_knows_it(bench: PoolBench) -> None:
    for _ in range(5):  # take the ids that the bench's next pool gives
        bench.refused(chosen=(9,), **JOB)
    granted = bench.granted(**JOB)
    after = bench.restarted()
    for name, memory in (("a", (8000, 8000)), ("b", (8000,))):
        mine = [s for s in granted.sessions if s.node == name]
        gpus = [Gpu(name, f"{name}-gpu{at}", "Model", mib) for at, mib in enumerate(memory)]
        reports = [
            ReportedSession(
                replace(s, state=SessionState.RUNNING, chosen=(), request_id=""), (), "", 0
            )
            for s in mine
        ]
        node = Node(name, "x", 1, "1", 4, takes_parts=True)
        assert not after.pool.membership.register(node, gpus, reports).ends
    joined = after.granted(**JOB)
    assert joined.grant.id == granted.grant.id
    assert live(after, joined.grant) == ["a", "a", "b", "b"]


def test_parts_that_nobody_remembers_are_one_job_again(bench: PoolBench) -> None:
    empty = PoolBench()
    for name, gpus in (("a", ("a-gpu0", "a-gpu1")), ("b", ("b-gpu0",))):
        session = Session(
            f"s-{name}", "g", name, "tcp", "", "p", 1, 0, "", "", 1.0, SessionState.RUNNING
        )
        session.chosen = (1,) if name == "a" else ()
        vgpus = tuple(Vgpu(uuid, 4000, 100) for uuid in gpus)
        report = ReportedSession(session, vgpus, "", 0, KEY.job, KEY.domain)
        node = Node(name, "x", 1, "1", 4, takes_parts=True)
        found = [Gpu(name, uuid, "Model", 8000) for uuid in gpus]
        empty.pool.membership.register(node, found, [report])
    chosen = {s.id: s.chosen for s in empty.pool.sessions_of("g")}
    assert chosen == {"s-a": (1,), "s-b": (2,)}
    assert empty.granted(**JOB).grant.id == "g"
    known = empty.pool.membership.may_be_part
    other = Session("s", "g", "c", "tcp", "", "p", 1, 0, "", "", 1.0, SessionState.RUNNING)
    assert known(ReportedSession(other, (), "", 0, KEY.job, KEY.domain))
    assert not known(ReportedSession(other, (), "", 0)), "of no job"
    assert not known(ReportedSession(other, (), "", 0, KEY.job, KEY.domain, project="other"))
    bench.granted(**JOB)
    theirs = replace(other, grant_id=bench.granted(**JOB).grant.id)
    report = ReportedSession(theirs, (), "", 0, KEY.job, KEY.domain)
    assert not bench.pool.membership.may_be_part(report), "it is remembered"


def test_so_many_sessions_on_a_node_are_no_others_business() -> None:
    bench = PoolBench(job_sessions=2)
    bench.node("a", 8000, 8000)
    bench.node("b", 8000)
    for _ in range(2):
        bench.granted(chosen=(0,), **JOB)
    assert "has 2 sessions on one of its nodes" in bench.refused(chosen=(1,), **JOB).message, (
        "of node a"
    )
    assert [s.node for s in bench.granted(chosen=(2,), **JOB).sessions] == ["b"]
    assert "job_sessions" in bench.refused(**JOB).message, "it would have one on each"


def test_the_same_request_again_has_its_devices_in_its_own_order(bench: PoolBench) -> None:
    mine = bench.granted(request_id="mine", chosen=(2, 0), **JOB)
    again = bench.granted(request_id="mine", chosen=(2, 0), **JOB)
    assert assigned(bench, again) == assigned(bench, mine)


def test_the_end_of_a_session_that_nobody_knows_is_no_others(bench: PoolBench) -> None:
    first = bench.granted(**JOB)
    bench.pool.lifecycle.session_ended("unknown", first.grant.id, DONE, "b")
    assert live(bench, first.grant) == ["a", "b"]
    assert used(bench) == [4000 + OVERHEAD] * 3
    bench.pool.lifecycle.job_held(KEY, "request 1")
    end(bench, first)
    bench.pool.lifecycle.session_ended("unknown", first.grant.id, DONE, "b")
    assert first.grant.state is GrantState.LIVE, "it is held"
    bench.pool.lifecycle.session_ended("", first.grant.id, GONE, "b")
    assert first.grant.state is GrantState.ENDED, "nothing of it runs"


def test_a_process_that_comes_while_its_job_is_ended_is_ended_too(bench: PoolBench) -> None:
    """An older server ends what runs, and leaves who has a key the key."""
    first, late = bench.granted(**JOB), bench.granted(**JOB)
    why = End(EndCause.OPERATOR, "ended by the operator")
    bench.pool.lifecycle.end_soon(first.grant.id, why)
    end(bench, first)
    decisions = bench.pool.lifecycle.session_started(late.others[0].id, 1, "tcp")
    assert [(order.node, order.grant_id) for order in decisions.ends] == [("b", first.grant.id)]
    assert decisions.ends[0].why == why
    end(bench, late)
    assert first.grant.cause is EndCause.OPERATOR


def test_a_gpu_that_is_gone_is_not_waited_for(bench: PoolBench) -> None:
    """Its node comes back without it: the job ends with its last process, and is placed anew."""
    bench.pool.lifecycle.job_held(KEY, "request 1")
    first = bench.granted(**{**JOB, "job_processes": 4})
    bench.node("b")
    assert live(bench, first.grant) == ["a"], "its session there has ended"
    assert "GPU b:b-gpu0 of its job is gone" in bench.refused(**JOB).message
    end(bench, Granted(first.grant, first.session))
    bench.node("c", 8000)
    bench.pool.expire()
    assert (first.grant.state, first.grant.cause) == (GrantState.ENDED, EndCause.GPU_FAILED)
    assert bench.granted(**JOB).grant.nodes == {"a", "c"}


def test_what_can_never_be_suspended_is_not_told_to_try_later(bench: PoolBench) -> None:
    granted = bench.granted(**JOB)  # its client has not come yet
    with pytest.raises(Impossible, match="vGPUs of 2 nodes, which cannot be suspended together"):
        bench.pool.lifecycle.suspend(granted.grant.id, "")
