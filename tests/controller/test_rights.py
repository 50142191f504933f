# SPDX-License-Identifier: Apache-2.0
"""What a project and a token allow: priorities, preemption, and what a request draws on."""

from __future__ import annotations

from typing import Any

import pytest
from ends import DONE, GAVE_WAY
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, GrantRequest, Refused
from sluice.controller.pool.model import GpuKey, Mode, OwnerKind, Quota, Reservation
from sluice.protocol.cuda_status import CudaStatus


def reserve(bench: PoolBench, **fields: Any) -> Reservation:
    """Of a label, unless the test says whose."""
    return bench.reserve(**{"owner_kind": OwnerKind.LABEL, "owner": "team-a", **fields})


def test_a_project_has_a_highest_priority(bench: PoolBench) -> None:
    bench.node("a", 8000)
    assert isinstance(bench.ask(project="vision", priority=900, compute_percent=1), Granted)
    bench.pool.limits.set_quota(Quota("vision", max_priority=5))
    assert isinstance(bench.ask(project="vision", priority=5, compute_percent=1), Granted)
    refused = bench.refused(project="vision", priority=6, compute_percent=1)
    assert refused.status is CudaStatus.NOT_PERMITTED
    for text in ("priority 6 (SLUICE_PRIORITY)", "at most 5", "quota set vision --max-priority 6"):
        assert text in refused.message


def test_what_a_token_says_counts_before_what_its_project_says(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.limits.set_quota(Quota("vision", max_priority=5, may_preempt=True))
    wanted: dict[str, Any] = {"project": "vision", "compute_percent": 1}
    assert isinstance(bench.ask(**wanted, priority=7, max_priority=9), Granted)
    assert "at most 1" in bench.refused(**wanted, priority=2, max_priority=1).message
    assert isinstance(bench.ask(**wanted, preempt=True), Granted)
    assert (
        "the token has no right" in bench.refused(**wanted, preempt=True, may_preempt=False).message
    )
    other: dict[str, Any] = {"project": "speech", "compute_percent": 1, "preempt": True}
    assert "project speech has no right" in bench.refused(**other).message
    assert isinstance(bench.ask(**other, may_preempt=True), Granted)


def test_reserved_is_drawn_on_a_reservation_or_not_given(bench: PoolBench) -> None:
    bench.node("a", 8000)
    wanted: dict[str, Any] = {"owner_label": "team-a", "mode": Mode.RESERVED}
    none = bench.refused(**wanted)
    assert none.status is CudaStatus.NOT_PERMITTED
    assert "label team-a" in none.message
    reserve(bench)
    larger = bench.refused(**wanted, memory_mib=4001)
    assert "none of its owner's is that large" in larger.message
    first = bench.granted(**wanted).grant
    assert first.reservation == "res"
    assert bench.ask(**wanted, request_id="second", wait_seconds=-1) == "second"
    waiting = bench.pool.queue.get("second")
    assert waiting
    assert "its reservation is in use" in bench.pool.requests.waiting(waiting.request).line
    assert isinstance(bench.ask(compute_percent=50, memory_mib=100), Granted), "it holds nothing"
    answers = bench.pool.lifecycle.release(first.id, DONE).answers
    assert isinstance(answers["second"], Granted)


def test_on_demand_draws_on_no_reservation(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reserve(bench)
    wanted: dict[str, Any] = {"owner_label": "team-a", "memory_mib": 1000, "compute_percent": 25}
    assert bench.granted(**wanted, mode=Mode.ON_DEMAND).grant.reservation == ""
    assert bench.granted(**wanted).grant.reservation == "res"


@pytest.mark.parametrize("label", ["team-b", ""])
def test_somebody_elses_label_draws_on_nothing(bench: PoolBench, label: str) -> None:
    bench.node("a", 8000)
    reserve(bench, compute_percent=100)
    assert "no reservation" in bench.refused(owner_label=label, mode=Mode.RESERVED).message
    assert bench.refused(owner_label=label).status is CudaStatus.DEVICE_UNAVAILABLE


# joining a job whose grant exists

JOB: dict[str, Any] = {"job": "j1", "job_domain": "net 10.0.0.3", "memory_mib": 500}
SMALL: dict[str, Any] = {**JOB, "compute_percent": 10}


def untouched(bench: PoolBench, first: Granted) -> bool:
    """Whether the job still has its one session, and room for one context."""
    sessions = bench.pool.sessions_of(first.grant.id)
    return [s.id for s in sessions] == [first.session.id] and not len(bench.pool.queue)


@pytest.mark.parametrize("project", ["", "default", "speech"])
def test_nobody_joins_another_projects_job(bench: PoolBench, project: str) -> None:
    bench.node("a", 8000)
    first = bench.granted(**SMALL, project="vision")
    refused = bench.refused(**SMALL, project=project, wait_seconds=-1)
    assert refused.status is CudaStatus.NOT_PERMITTED
    for text in ("of project vision", f"of project {project or 'default'}", "SLUICE_PROJECT"):
        assert text in refused.message
    assert untouched(bench, first)
    assert bench.granted(**SMALL, project="vision").grant.id == first.grant.id


def test_nobody_in_particular_is_the_default_project(bench: PoolBench) -> None:
    bench.node("a", 8000)
    first = bench.granted(**SMALL)
    assert bench.granted(**SMALL, project="default").grant.id == first.grant.id


def test_a_joining_process_must_have_a_right_to_the_jobs_priority(bench: PoolBench) -> None:
    bench.node("a", 8000)
    first = bench.granted(**SMALL, project="vision", priority=7, max_priority=9)
    refused = bench.refused(**SMALL, project="vision", max_priority=6)
    assert refused.status is CudaStatus.NOT_PERMITTED
    assert "has priority 7" in refused.message
    assert "at most 6" in refused.message
    assert untouched(bench, first)
    joined = bench.granted(**SMALL, project="vision", max_priority=7)
    assert (joined.grant.id, joined.grant.priority) == (first.grant.id, 7)
    bench.pool.limits.set_quota(Quota("vision", max_priority=6))
    assert "at most 6" in bench.refused(**SMALL, project="vision").message
    assert bench.granted(**SMALL, project="vision", max_priority=9).grant.id == first.grant.id


def test_a_joining_process_must_have_a_right_to_the_jobs_reservation(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reserve(bench)
    first = bench.granted(**SMALL, project="vision", owner_label="team-a")
    assert first.grant.reservation == "res"
    for label in ("", "team-b"):
        refused = bench.refused(**SMALL, project="vision", owner_label=label)
        assert refused.status is CudaStatus.NOT_PERMITTED
        assert "draws on reservation res" in refused.message
    assert untouched(bench, first)
    again: dict[str, Any] = {**SMALL, "project": "vision", "owner_label": "team-a"}
    assert bench.granted(**again).grant.id == first.grant.id
    assert bench.granted(**again, mode=Mode.ON_DEMAND).grant.id == first.grant.id, "it has a right"
    bench.pool.reserving.end_reservation("res", "over")
    assert bench.granted(**SMALL, project="vision").grant.id == first.grant.id, "the pool's room"


@pytest.mark.parametrize(
    ("kind", "owner"), [(OwnerKind.VM, "uuid-1"), (OwnerKind.VM, "web"), (OwnerKind.PROJECT, "p")]
)
def test_processes_of_the_owner_join_on_its_reservation(
    bench: PoolBench, kind: OwnerKind, owner: str
) -> None:
    bench.node("a", 8000)
    reserve(bench, owner_kind=kind, owner=owner)
    guest: dict[str, Any] = {"domain_uuid": "uuid-1", "domain_name": "web", "project": "p"}
    first = bench.granted(**SMALL, **guest)
    assert first.grant.reservation == "res"
    assert bench.granted(**SMALL, **guest).grant.id == first.grant.id


def test_the_right_to_preempt_and_quotas_are_not_asked_of_who_joins(bench: PoolBench) -> None:
    bench.node("a", 8000)
    wanted: dict[str, Any] = {**SMALL, "project": "vision"}
    first = bench.granted(**wanted, preempt=True, may_preempt=True)
    bench.pool.limits.set_quota(Quota("vision", vgpus=1))
    assert bench.granted(**wanted, may_preempt=False).grant.id == first.grant.id
    asked = bench.refused(**wanted, preempt=True, may_preempt=False)
    assert "the token has no right" in asked.message, "what it asks for itself is still a right"


def test_who_waited_while_the_jobs_grant_was_made_is_asked_the_same(bench: PoolBench) -> None:
    bench.node("a", 8000)
    whole = bench.granted(compute_percent=100, memory_mib=7000).grant
    wanted: dict[str, Any] = {**SMALL, "wait_seconds": -1}
    waiting: dict[str, dict[str, Any]] = {
        "maker": {"project": "vision", "priority": 3},
        "alike": {"project": "vision"},
        "stranger": {"project": "speech"},
        "lower": {"project": "vision", "max_priority": 2},
    }
    for name, more in waiting.items():
        assert bench.ask(request_id=name, **wanted, **more) == name
    answers = bench.pool.lifecycle.release(whole.id, DONE).answers
    made, alike = answers["maker"], answers["alike"]
    assert isinstance(made, Granted)
    assert isinstance(alike, Granted)
    assert alike.grant.id == made.grant.id
    for name in ("stranger", "lower"):
        answer = answers[name]
        assert isinstance(answer, Refused), name
        assert answer.status is CudaStatus.NOT_PERMITTED


def test_room_made_for_a_job_makes_no_second_grant_of_it(bench: PoolBench) -> None:
    """While others gave way for one process of a job, another one got the job its grant."""
    bench.node("a", 8000)
    victim = bench.granted(compute_percent=80, memory_mib=100).grant
    bench.node("b", 8000)
    bench.granted(node="b", local_only=True, compute_percent=80, memory_mib=100, priority=9)
    urgent: dict[str, Any] = {"priority": 5, "preempt": True, "may_preempt": True}
    wanted: dict[str, Any] = {**JOB, "wait_seconds": -1}
    assert bench.ask(request_id="now", compute_percent=60, **wanted, **urgent) == "now"
    assert bench.pool.kept(GpuKey("a", "a-gpu0")).compute_percent == 60
    decisions = bench.pool.requests.submit(GrantRequest("other", compute_percent=20, **wanted))
    other, now = (
        decisions.answers["other"],
        bench.pool.lifecycle.release(victim.id, GAVE_WAY).answers,
    )
    joined = now.get("now") or decisions.answers.get("now")
    assert isinstance(other, Granted)
    assert isinstance(joined, Granted)
    assert joined.grant.id == other.grant.id
    assert bench.pool.kept(GpuKey("a", "a-gpu0")).compute_percent == 0, "the room is everyone's"
