# SPDX-License-Identifier: Apache-2.0
"""The controller's metrics: true, bounded, cheap however large the pool, and for viewers only."""

from __future__ import annotations

import contextlib
import gc
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane, running, wait_for
from ends import DONE, GAVE_WAY
from pool_bench import PoolBench
from scrapes import Scrape, read_registry, scrape

from sluice.config.metric_families import Samples, declared_names
from sluice.controller.api.metrics_routes import registry_of
from sluice.controller.grant_service import GrantService
from sluice.controller.leadership.leader_only import LeaderOnlyRest, Leadership
from sluice.controller.metrics.collector import FAMILIES, MOST_PROJECTS, PoolFigures
from sluice.controller.metrics.meters import ControllerMeters, Standing, priority_label
from sluice.controller.metrics.tallies import PoolTallies
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import (
    Gpu,
    GpuMode,
    GrantState,
    Node,
    NodeState,
    OwnerKind,
    Reservation,
    ReservationState,
    SessionState,
)
from sluice.controller.store.store import Store

pytestmark = pytest.mark.control_plane(fake=True)

MIB = 1 << 20
SINCE_IT_LEADS = ("events", "ended")  # counters of what has passed, which no walk shows


def sums(tallies: PoolTallies) -> dict[str, Any]:
    """What is exported of them, without what only time tells."""
    return {
        k: v for k, v in vars(tallies).items() if not k.startswith("_") and k not in SINCE_IT_LEADS
    }


def grant_service_of(bench: PoolBench) -> GrantService:
    """A grant service whose store is never asked."""
    store: Store = object()  # type: ignore[assignment]
    return GrantService(bench.pool, store)


class Churn:
    """Everything that may happen to a pool, at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = PoolBench(node_timeout_seconds=30)
        self.pool = self.bench.pool
        self.names = [f"n{i}" for i in range(6)]
        self.reserved = 0
        for name in self.names:
            self.join(name)

    def join(self, name: str) -> None:
        gpus = [
            Gpu(name, f"{name}-{i}", "Model", 8000, fault=self.random.choice(["", "", "sick"]))
            for i in range(self.random.randint(1, 4))
        ]
        self.pool.membership.register(Node(name, "10.0.0.1", 9960, "1", 4), gpus, [])

    def step(self) -> None:
        self.random.choice(
            [self.ask, self.ask, self.ask, self.release, self.start, self.come_and_go,
             self.reserve, self.end_reservation, self.switch, self.drain, self.pass_time]
        )()  # fmt: skip

    def ask(self) -> None:
        self.bench.ask(
            count=self.random.randint(1, 2), memory_mib=self.random.choice([500, 3000]),
            compute_percent=self.random.choice([5, 50]), priority=self.random.randint(0, 3),
            wait_seconds=self.random.choice([0, 20]), project=self.random.choice(["", "a", "b"]),
            channel=self.random.choice(["shm", "tcp"]),
        )  # fmt: skip

    def _live(self) -> list[str]:
        return [g.id for g in self.pool.grants.values() if g.state is GrantState.LIVE]

    def release(self) -> None:
        if live := self._live():
            self.pool.lifecycle.release(self.random.choice(live), DONE)

    def start(self) -> None:
        if opening := [s for s in self.pool.sessions.values() if s.state is SessionState.OPENING]:
            self.pool.lifecycle.session_started(self.random.choice(opening).id, 1, "ivshmem")

    def come_and_go(self) -> None:
        name = self.random.choice(self.names)
        if self.pool.nodes[name].state is NodeState.UP:
            self.pool.membership.disconnected(name)
        else:
            self.join(name)

    def reserve(self) -> None:
        self.reserved += 1
        reservation = Reservation(
            f"v{self.reserved}", OwnerKind.PROJECT, "a", "a", 1, 1000, 10, 0, "", 1.0
        )
        self.pool.reserving.reserve(reservation, wait=self.random.random() < 0.5)

    def end_reservation(self) -> None:
        there = [
            r.id for r in self.pool.reservations.values() if r.state is not ReservationState.ENDED
        ]
        if there:
            self.pool.reserving.end_reservation(self.random.choice(there), "done")

    def switch(self) -> None:
        to = self.random.choice([GpuMode.NATIVE, GpuMode.POOLED, GpuMode.DRAINED])
        with contextlib.suppress(Impossible):
            self.pool.switching.switch_gpu(
                self.random.choice(list(self.pool.gpus)), to, preempt=self.random.random() < 0.5
            )

    def drain(self) -> None:
        self.pool.switching.drain_node(
            self.random.choice(self.names), drained=self.random.random() < 0.5
        )

    def pass_time(self) -> None:
        self.bench.clock.seconds += self.random.choice([1, 40])
        for name in self.names:
            if self.random.random() < 0.8 and self.pool.nodes[name].state is NodeState.UP:
                self.pool.membership.seen(name)
        self.pool.expire()


@pytest.mark.parametrize("seed", range(20))
def test_sums_kept_by_changes_are_those_of_a_walk_through_the_pool(seed: int) -> None:
    churn = Churn(seed)
    tallies = PoolTallies(churn.pool)
    seen: set[str] = set()
    for _ in range(150):
        churn.step()
        tallies.take(churn.pool.take_changes())
        assert sums(tallies) == sums(PoolTallies(churn.pool))
        seen |= {key for key, value in sums(tallies).items() if value}
        queue = churn.pool.queue
        waiting = [entry.request.priority for entry in queue]
        assert sorted(queue.by_priority.elements()) == sorted(waiting)
        assert queue.oldest == min((entry.since for entry in queue), default=None)
    assert {"nodes", "gpus", "memory_mib", "granted", "sessions"} <= seen


def calls_of(work: Callable[[], object]) -> int:
    """How many calls of functions, Python's and C's, the work makes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # a collection calls what others want to know of it
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_a_scrape_costs_the_same_at_10_nodes_and_at_1000() -> None:
    costs = []
    for nodes in (10, 1000):
        bench = PoolBench()
        for number in range(nodes):
            bench.node(f"n{number}", *[65536] * 8)
        for _ in range(5 * nodes):
            bench.granted(memory_mib=1000, compute_percent=10)
        figures = PoolFigures(grant_service_of(bench))
        samples = Samples(FAMILIES)
        costs.append(calls_of(lambda: figures.fill(samples)))  # noqa: B023
    assert costs[0] == costs[1]


def test_labels_are_bounded_whatever_callers_choose() -> None:
    bench = PoolBench()
    bench.node("full", 65536)
    full: dict[str, Any] = {"node": "full", "local_only": True, "memory_mib": 60000}
    bench.granted(**full)
    for priority in (-(2**31), -11, 0, 11, 2**31 - 1):
        bench.ask(**full, priority=priority, wait_seconds=-1)
    bench.node("n", *[65536] * 8)
    for number in range(MOST_PROJECTS + 30):
        bench.granted(memory_mib=10, compute_percent=1, project=f"p{number:03d}")
    bench.granted(memory_mib=1, compute_percent=1, channel="$(reboot)")
    grant_service = grant_service_of(bench)
    figures = PoolFigures(grant_service)
    for _ in range(2):
        found = _filled(figures)
        projects = found.series("sluice_project_vgpus")
        assert len(projects) == MOST_PROJECTS + 1
        held = sum(bench.pool.quotas.held(name).vgpus for name in bench.pool.quotas.projects())
        assert sum(projects.values()) == held
        assert {dict(labels)["priority"] for labels in found.series("sluice_queue_requests")} == {
            "lower", "0", "higher",
        }  # fmt: skip
        assert found.value("sluice_queue_requests", priority="higher") == 2
        assert found.value("sluice_pool_sessions", state="opening", channel="other") == 1
        # who had a series keeps it when another comes that sorts before it
        shown = {dict(labels)["project"] for labels in projects}
        bench.granted(memory_mib=1, compute_percent=1, project="aaa")
        again = _filled(figures).series("sluice_project_vgpus")
        assert {dict(labels)["project"] for labels in again} == shown
        bench.pool.lifecycle.release(
            next(g.id for g in bench.pool.grants.values() if g.project == "aaa"), DONE
        )
    assert priority_label(-10) == "-10"


def _filled(figures: PoolFigures) -> Scrape:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(figures.collector())
    return read_registry(registry)


def test_names_follow_prometheus_conventions() -> None:
    names = declared_names(registry_of(grant_service_of(PoolBench())))
    for name, kind in names.items():
        assert re.fullmatch(r"(sluice|process)_[a-z0-9_]+", name), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(mib|ms|percent|milliwatts|mb|gb)(_|$)", name), name
        if kind == "histogram":
            assert name.endswith("_seconds")


async def test_a_controller_that_does_not_lead_says_only_that_and_refers_nobody() -> None:
    meters = ControllerMeters()
    leader_only = LeaderOnlyRest(Leadership(), meters.standing)
    transport = httpx.ASGITransport(leader_only)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    found = Scrape(answer.text)
    assert found.value("sluice_controller_leader") == 0
    assert set(found.types) == set(declared_names(Standing().registry))


def test_a_scrape_agrees_with_rest_and_follows_the_queue(plane: ControlPlane) -> None:
    before = scrape(plane.url)
    assert before.value("sluice_pool_nodes", state="up") == 1
    assert before.value("sluice_controller_leader") == 1
    assert before.value("sluice_queue_oldest_request_seconds") is None
    holder = plane.client(gmem_mib=6000, ratio_percent=60)
    assert holder.first["status"] == 0
    waiting = plane.client(gmem_mib=6000, ratio_percent=60, priority=5, wait_seconds=-1)
    assert waiting.first["status"] == 600, "it waits"
    refused = plane.client(gmem_mib=6000, ratio_percent=60)
    assert refused.first["status"] == 46

    found = scrape(plane.url)
    rest = plane.rest.get("/pool").json()
    assert found.total("sluice_pool_gpus") == rest["gpus"]
    assert found.value("sluice_pool_memory_bytes") == rest["memory_mib"] * MIB
    assert found.value("sluice_pool_memory_granted_bytes") == rest["granted_mib"] * MIB
    assert found.value("sluice_pool_grants") == rest["grants"] == 1
    assert found.total("sluice_pool_sessions") == rest["sessions"] == 1
    assert found.total("sluice_queue_requests") == rest["waiting"] == 1
    assert found.value("sluice_queue_requests", priority="5") == 1
    oldest = found.value("sluice_queue_oldest_request_seconds")
    assert oldest is not None
    assert oldest > 0
    fragments = rest["fragmentation"]
    assert found.value("sluice_pool_memory_free_bytes") == fragments["free_mib"] * MIB
    assert (
        found.value("sluice_pool_fragmentation_ratio", piece="whole_card")
        == fragments["whole_card_loss"]
    )
    assert found.value("sluice_grant_latency_seconds_count") == 1
    assert found.value("sluice_requests_total", outcome="refused") == 1

    holder.kill()
    assert waiting.read()["status"] == 0
    after = scrape(plane.url)
    wait = after.series("sluice_queue_wait_seconds_count")
    assert wait == {frozenset({("priority", "5"), ("outcome", "granted")}): 1}
    assert after.value("sluice_grant_latency_seconds_count") == 1
    assert after.value("sluice_requests_total", outcome="granted") == 2
    assert after.value("sluice_pool_events_total", kind="grant.made") == 2
    commits = after.value("sluice_store_commit_seconds_count")
    assert commits is not None
    assert commits >= 4


def test_whoever_may_look_at_the_pool_may_scrape_it_and_nobody_else(tmp_path: Path) -> None:
    with running(tmp_path, fake=True, auth={"required": "no"}) as plane:
        admin = plane.rest_as(plane.first_token())
        token = {
            role: admin.post("/tokens", json={"role": role, **more}).json()["secret"]
            for role, more in (("viewer", {}), ("tenant", {"project": "a"}))
        }
        conf = plane.folder / "controller.conf"
        conf.write_text(conf.read_text().replace("required = no", "required = yes"))
        plane.stop("controller")
        plane.start_controller()
        assert httpx.get(f"{plane.url}/metrics").status_code == 401
        assert scrape(plane.url, token["viewer"]).value("sluice_controller_leader") == 1
        headers = {"Authorization": f"Bearer {token['tenant']}"}
        assert httpx.get(f"{plane.url}/metrics", headers=headers).status_code == 403
        openmetrics = httpx.get(
            f"{plane.url}/metrics",
            headers={
                "Authorization": f"Bearer {token['viewer']}",
                "Accept": "application/openmetrics-text;version=1.0.0",
            },
        )
        assert openmetrics.text.endswith("# EOF\n")


def test_a_request_is_found_by_its_id_in_answer_problem_and_audit(plane: ControlPlane) -> None:
    answer = plane.rest.get("/pool", headers={"X-Request-ID": "ticket-4711"})
    assert answer.headers["x-request-id"] == "ticket-4711"
    forged = plane.rest.get("/pool", headers={"X-Request-ID": 'a" level=ERROR'})
    assert re.fullmatch("[0-9a-f]{16}", forged.headers["x-request-id"])
    missing = plane.rest.delete("/grants/none", headers={"X-Request-ID": "ticket-4712"})
    assert missing.json()["request_id"] == "ticket-4712"
    made = plane.rest.post("/tokens", json={"role": "viewer"})
    assert made.status_code in (201, 403)
    admin = plane.rest_as(plane.first_token())
    trail = wait_for(lambda: admin.get("/audit").json()["events"])
    assert any("request ticket-4712" in event["text"] for event in trail)


def test_ended_sessions_are_counted_by_their_causes() -> None:
    bench = PoolBench()
    bench.node("n", *[65536] * 8)
    held = [bench.granted(memory_mib=10, compute_percent=1) for _ in range(3)]
    grant_service = grant_service_of(bench)
    for granted, why in zip(held, (DONE, DONE, GAVE_WAY), strict=True):
        bench.pool.lifecycle.session_ended(granted.session.id, granted.grant.id, why)
    grant_service.tallies.take(bench.pool.take_changes())
    found = _filled(PoolFigures(grant_service))
    assert found.value("sluice_sessions_ended_total", cause="client-ended") == 2
    assert found.value("sluice_sessions_ended_total", cause="preempted") == 1
    assert found.value("sluice_sessions_ended_total", cause="unknown") == 0
