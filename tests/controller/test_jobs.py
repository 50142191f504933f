# SPDX-License-Identifier: Apache-2.0
"""The pool's decisions about jobs: who joins, what is charged, when the grant goes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ends import BY_OPERATOR, DONE, GONE
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, Refused
from sluice.controller.pool.grants.jobs import JobKey
from sluice.controller.pool.model import GpuKey, GrantState, Node, SessionState
from sluice.controller.pool.pool import Pool, ReportedSession, Snapshot
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import EndCause

JOB: dict[str, Any] = {"job": "j1", "job_domain": "user 1", "memory_mib": 1000}
KEY = JobKey("j1", "user 1")
GPU = GpuKey("a", "a-gpu0")
LINGER = 5.0


@pytest.fixture
def roomy(bench: PoolBench) -> PoolBench:
    bench.node("a", 8000, context_overhead_mib=500)
    return bench


def end(bench: PoolBench, granted: Granted) -> None:
    bench.pool.lifecycle.session_ended(granted.session.id, granted.grant.id, DONE)


def pass_time(bench: PoolBench, seconds: float) -> None:
    bench.clock.seconds += seconds
    bench.pool.membership.seen("a")
    bench.pool.expire()


def live(bench: PoolBench, granted: Granted) -> bool:
    return bench.pool.grants[granted.grant.id].state is GrantState.LIVE


def test_the_first_makes_the_grant_and_later_ones_join(roomy: PoolBench) -> None:
    first, second = roomy.granted(**JOB), roomy.granted(**JOB)
    assert second.grant.id == first.grant.id
    assert second.session.id != first.session.id
    assert roomy.pool.usage(GPU).memory_mib == 1000 + 2 * 500
    assert roomy.granted(memory_mib=1000).grant.id != first.grant.id
    end(roomy, first)
    assert live(roomy, second)
    assert roomy.pool.usage(GPU).memory_mib == (1000 + 500) * 2


def test_the_same_request_again_gets_the_same_session(roomy: PoolBench) -> None:
    roomy.granted(**JOB)
    once = roomy.granted(request_id="r", **JOB)
    assert roomy.granted(request_id="r", **JOB).session.id == once.session.id
    roomy.pool.requests.withdraw("r", GONE)
    assert roomy.pool.sessions[once.session.id].state is SessionState.ENDED
    assert live(roomy, once), "the other session has it"


def test_another_domain_is_refused_and_told_what_to_do(roomy: PoolBench) -> None:
    roomy.granted(**JOB)
    answer = roomy.refused(**{**JOB, "job_domain": "user 2"})
    assert answer.status is CudaStatus.NOT_PERMITTED
    assert "sluice run --share" in answer.message
    assert "SLUICE_JOB" in answer.message


def test_a_session_elsewhere_or_of_a_vgpu_that_there_is_not_is_refused(roomy: PoolBench) -> None:
    roomy.node("b", 8000)
    roomy.granted(node="a", local_only=True, **JOB)
    assert "on node a" in roomy.refused(node="b", local_only=True, **JOB).message
    answer = roomy.refused(chosen=(0, 1), **JOB)
    assert answer.status is CudaStatus.INVALID_VALUE
    assert "which has 1" in answer.message
    other = {**JOB, "job": "j2"}
    assert roomy.refused(chosen=(3,), **other).status is CudaStatus.INVALID_VALUE


def test_a_job_has_so_many_sessions(make_bench: Callable[..., PoolBench]) -> None:
    bench = make_bench(job_sessions=2)
    bench.node("a", 8000)
    first = bench.granted(**JOB)
    bench.granted(**JOB)
    assert "job_sessions" in bench.refused(**JOB).message
    end(bench, first)
    bench.granted(**JOB)


def test_contexts_are_charged_for_those_that_are_there_or_asked_for(bench: PoolBench) -> None:
    bench.node("a", 8000, 8000, context_overhead_mib=500)
    wanted = {**JOB, "count": 2, "job_processes": 3}
    first = bench.granted(chosen=(0,), **wanted)
    keys = [GpuKey("a", v.gpu_uuid) for v in first.grant.vgpus]

    def used() -> list[int]:
        return [bench.pool.usage(key).memory_mib for key in keys]

    assert used() == [2500, 2500], "room for three processes on each"
    for _ in range(4):
        last = bench.granted(chosen=(1,), **wanted)
    assert used() == [2500, 1000 + 4 * 500]
    end(bench, last)
    assert used() == [2500, 2500]


def test_a_default_slice_leaves_room_for_the_jobs_contexts(bench: PoolBench) -> None:
    bench.node("a", 8000, context_overhead_mib=500)
    shared = {"job": "j1", "job_domain": "d", "job_processes": 2}
    assert bench.granted(**shared).grant.vgpus[0].memory_mib == 1000
    for name in ("j2", "j3", "j4"):
        bench.granted(**{**shared, "job": name})
        bench.granted(**{**shared, "job": name})


def test_a_process_waits_for_room_for_its_context(roomy: PoolBench) -> None:
    first = roomy.granted(**{**JOB, "memory_mib": 3000})
    other = roomy.granted(memory_mib=3900, compute_percent=1)
    answer = roomy.refused(**JOB)
    assert "--processes" in answer.message
    waiting = roomy.ask(wait_seconds=60, **JOB)
    assert waiting == "r4"
    [served] = roomy.pool.lifecycle.release(other.grant.id, DONE).answers.values()
    assert isinstance(served, Granted)
    assert served.grant.id == first.grant.id


def test_two_that_wait_get_one_grant(roomy: PoolBench) -> None:
    whole = roomy.granted(memory_mib=7000, compute_percent=100)
    for _ in range(2):
        assert isinstance(roomy.ask(wait_seconds=60, **JOB), str)
    foreigner = roomy.ask(wait_seconds=60, **{**JOB, "job_domain": "user 2"})
    answers = roomy.pool.lifecycle.release(whole.grant.id, DONE).answers
    grants = {a.grant.id for a in answers.values() if isinstance(a, Granted)}
    assert len(grants) == 1
    assert isinstance(answers[str(foreigner)], Refused)


def test_without_sessions_it_lingers_and_goes(roomy: PoolBench) -> None:
    granted = roomy.granted(**JOB)
    end(roomy, granted)
    pass_time(roomy, LINGER - 0.5)
    assert live(roomy, granted)
    assert roomy.granted(**JOB).grant.id == granted.grant.id
    pass_time(roomy, LINGER + 1)
    assert live(roomy, granted), "it has a session again"
    end(roomy, Granted(granted.grant, roomy.pool.sessions_of(granted.grant.id)[-1]))
    pass_time(roomy, LINGER + 0.1)
    assert not live(roomy, granted)
    assert roomy.pool.usage(GPU).memory_mib == 0


def test_held_it_stays_and_goes_at_once_when_its_launcher_ends(roomy: PoolBench) -> None:
    roomy.pool.lifecycle.job_held(KEY, "a")
    granted = roomy.granted(**JOB)
    end(roomy, granted)
    pass_time(roomy, 1000)
    assert live(roomy, granted)
    roomy.pool.lifecycle.job_released(KEY, "a")
    assert not live(roomy, granted)


def test_a_launcher_that_ends_first_leaves_it_to_the_last_session(roomy: PoolBench) -> None:
    roomy.pool.lifecycle.job_held(KEY, "a")
    granted = roomy.granted(**JOB)
    roomy.pool.lifecycle.job_released(KEY, "a")
    pass_time(roomy, 1000)
    assert live(roomy, granted)
    end(roomy, granted)
    assert not live(roomy, granted)


def test_a_hold_is_of_its_own_domain(roomy: PoolBench) -> None:
    roomy.pool.lifecycle.job_held(JobKey("j1", "user 2"), "a")
    granted = roomy.granted(**JOB)
    end(roomy, granted)
    roomy.pool.lifecycle.job_released(JobKey("j1", "user 2"), "a")
    assert live(roomy, granted)
    pass_time(roomy, LINGER)
    pass_time(roomy, LINGER)
    assert not live(roomy, granted)


def test_the_operators_end_counts_whoever_holds_it(roomy: PoolBench) -> None:
    roomy.pool.lifecycle.job_held(KEY, "a")
    granted = roomy.granted(**JOB)
    roomy.pool.lifecycle.end_soon(granted.grant.id, BY_OPERATOR)
    assert "being ended" in roomy.refused(**JOB).message
    end(roomy, granted)
    assert roomy.pool.grants[granted.grant.id].reason == "ended by the operator"


def reported(granted: Granted) -> ReportedSession:
    session = replace(granted.session, state=SessionState.RUNNING)
    return ReportedSession(
        session,
        granted.grant.vgpus,
        session.request_id,
        0,
        "j1",
        "user 1",
        granted.grant.job_processes,
    )


def back(bench: PoolBench, *sessions: Granted, **more: Any) -> None:
    """The node registers anew with these sessions."""
    gpus = [gpu for gpu in bench.pool.gpus.values() if gpu.node == "a"]
    node = Node("a", "10.0.0.1", 9960, "1", 4)
    bench.pool.membership.register(node, gpus, [reported(s) for s in sessions], **more)


def test_a_server_that_returns_keeps_what_runs_and_the_grant_for_a_while(roomy: PoolBench) -> None:
    first, second = roomy.granted(**JOB), roomy.granted(**JOB)
    back(roomy, first)
    assert roomy.pool.sessions[second.session.id].state is SessionState.ENDED
    assert roomy.pool.usage(GPU).memory_mib == 1500
    back(roomy)
    assert live(roomy, first), "its next process may be about to come"
    pass_time(roomy, 0.1)
    pass_time(roomy, LINGER)
    assert not live(roomy, first)


def test_a_server_that_returns_with_the_hold_keeps_it(roomy: PoolBench) -> None:
    granted = roomy.granted(**JOB)
    back(roomy, holds=[KEY])
    pass_time(roomy, 1000)
    assert live(roomy, granted)
    back(roomy)
    pass_time(roomy, 0.1)
    pass_time(roomy, LINGER)
    assert not live(roomy, granted)


def test_a_pending_answers_session_is_not_ended_by_the_inventory(roomy: PoolBench) -> None:
    roomy.granted(request_id="first", **JOB)
    second = roomy.granted(request_id="second", **JOB)
    back(roomy, pending_requests=["second"])
    assert roomy.pool.sessions[second.session.id].state is SessionState.OPENING


def test_after_the_controllers_restart_others_join_and_it_goes_as_ever(roomy: PoolBench) -> None:
    first = roomy.granted(**JOB)
    pool = roomy.pool
    snapshot = Snapshot(
        list(pool.nodes.values()),
        list(pool.gpus.values()),
        list(pool.grants.values()),
        list(pool.sessions.values()),
    )
    roomy.pool = Pool(roomy.clock, iter(["new1", "new2"]).__next__, snapshot=snapshot)
    back(roomy, first)
    second = roomy.granted(**JOB)
    assert second.grant.id == first.grant.id
    assert roomy.pool.usage(GPU).memory_mib == 2000
    end(roomy, first)
    end(roomy, second)
    pass_time(roomy, LINGER)
    assert not live(roomy, first)


def test_a_controller_without_its_store_adopts_the_job(roomy: PoolBench) -> None:
    first, second = roomy.granted(**JOB), roomy.granted(**JOB)
    gpus = list(roomy.pool.gpus.values())
    roomy.pool = Pool(roomy.clock, iter(["new1", "new2"]).__next__)
    roomy.pool.membership.register(
        Node("a", "10.0.0.1", 9960, "1", 4), gpus, [reported(first), reported(second)]
    )
    assert roomy.pool.usage(GPU).memory_mib == 2000
    assert roomy.granted(**JOB).grant.id == first.grant.id
    assert roomy.refused(**{**JOB, "job_domain": "user 2"}).status is CudaStatus.NOT_PERMITTED


@pytest.mark.parametrize("restarts", [False, True])
def test_what_comes_back_when_its_job_has_another_grant_goes_with_its_last_session(
    bench: PoolBench, *, restarts: bool
) -> None:
    """Its node was lost, and the job's next process was placed anew: nobody joins the old one."""
    bench.node("a", 8000)
    bench.pool.lifecycle.job_held(KEY, "launcher")
    old = bench.granted(**JOB)
    bench.pool.nodes["a"].last_seen -= 1000
    bench.pool.expire()
    bench.clock.seconds += 1
    bench.node("b", 8000)
    new = bench.granted(**JOB)
    assert new.grant.node == "b"
    back(bench, old)
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).vgpus == 1, "it runs on"
    if restarts:
        bench = bench.restarted()
        bench.pool.lifecycle.job_held(KEY, "launcher")
        bench.node("b", 8000)
    assert bench.granted(request_id="next", **JOB).grant.id == new.grant.id
    bench.pool.lifecycle.session_ended(old.session.id, old.grant.id, DONE)
    bench.pool.expire()
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).vgpus == 0
    assert bench.pool.grants[old.grant.id].cause is EndCause.JOB_OVER
    assert bench.pool.grants[new.grant.id].state is GrantState.LIVE
