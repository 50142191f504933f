# SPDX-License-Identifier: Apache-2.0
"""A pool of fifty servers through kills, pauses, cut cables and clocks that jump; then the account.

Real controllers, real etcd or SQLite, real gRPC and REST with tokens; the servers are simulated
down to their real link (node.py). `make test-chaos` is the short form. SLUICE_CHAOS_SECONDS is how
long things happen to the pool, SLUICE_CHAOS_SEED what happens (printed), SLUICE_CHAOS_NODES how
many servers there are. Deadlines are stretched by how loaded the machine is, which is printed too.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from . import checker
from .account import Line, read_accounts
from .callers import PATIENCE_SECONDS, Operator, PoolRest, Tenant
from .checker import LEADER_SECONDS, SeenEvent, Snapshot, Violation
from .cluster import PROJECTS, Cluster
from .disturbances import Disturber, make_plan

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("SLUICE_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("SLUICE_CHAOS_SEED", "0")) or random.SystemRandom().getrandbits(31)
NODES = int(os.environ.get("SLUICE_CHAOS_NODES", "50"))
CALLERS = 3  # processes of each node that come and go
TENANT_CALLERS = 4
NODE_TIMEOUT_SECONDS = 8.0
ORPHAN_SECONDS = 30.0
SAMPLE_SECONDS = 2.0
SHOWN = 40

Say = Callable[[str], None]


@dataclass
class Witness:
    """Sees the event log and what is granted as the run goes on."""

    rest: PoolRest
    events: list[SeenEvent] = field(default_factory=list)
    samples: list[Snapshot] = field(default_factory=list)
    late_seconds: float = 0.0  # the most that this process waited for a processor
    most_load: float = 0.0  # of the machine, by processor

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            before = time.monotonic()
            await asyncio.sleep(SAMPLE_SECONDS)
            late = time.monotonic() - before - SAMPLE_SECONDS
            self.late_seconds = max(self.late_seconds, late)
            self.most_load = max(self.most_load, os.getloadavg()[0] / (os.cpu_count() or 1))

    async def look(self) -> Snapshot:
        """Once."""
        since = self.events[-1].number if self.events else 0
        found = await self.rest.get("/events", since=since, limit=10_000)
        now = time.monotonic()
        self.events += [
            SeenEvent(e["number"], e["kind"], e["subject"], e["text"], now)
            for e in reversed(found["events"])
        ]
        at = time.monotonic()
        grants = await self.rest.all("/grants", "grants")
        nodes = await self.rest.all("/nodes", "nodes")
        up = frozenset(node["name"] for node in nodes if node["state"] == "up")
        snapshot = Snapshot(at, {grant["id"]: grant for grant in grants}, up)
        self.samples.append(snapshot)
        return snapshot

    def stretched(self, seconds: float) -> float:
        """A deadline on this machine, as busy as it has been."""
        return seconds * self.factor

    @property
    def factor(self) -> float:
        """By how much deadlines are stretched."""
        return max(1.0, self.most_load, 1.0 + self.late_seconds)


class Run:
    """One pool through one plan."""

    def __init__(self, cluster: Cluster, say: Say) -> None:
        self._cluster = cluster
        self._say = say
        self._operator = Operator(cluster, SEED)
        self._tenants = [Tenant(cluster, project, SEED) for project in PROJECTS]
        self._witness = Witness(PoolRest(cluster, cluster.controllers.token))
        self._disturber = Disturber(cluster, say)

    async def live(self) -> list[Violation]:
        """All of it; returns what was wrong."""
        cluster, witness = self._cluster, self._witness
        await self._until_all_are_up()
        watching = asyncio.create_task(witness.watch())
        callers = [
            asyncio.create_task(self._operator.call()),
            *(asyncio.create_task(t.call()) for t in self._tenants for _ in range(TENANT_CALLERS)),
        ]
        longest = NODE_TIMEOUT_SECONDS * 2
        can_cut = cluster.network.can_cut
        plan = make_plan(SEED, SECONDS, cluster.names, can_cut=can_cut, longest=longest)
        await self._disturber.run(plan)
        self._say("nothing happens to it any more")
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert not cluster.died(), f"ended by themselves: {cluster.died()}"
        lost = [
            Violation("lost", time.monotonic(), f"reservation {name} was acknowledged")
            for name in await self._operator.lost()
        ]
        await self._operator.tidy_up()
        cluster.drain()
        resuming = asyncio.create_task(self._keep_resuming())
        await self._until(lambda: not cluster.busy_racks())
        self._say("everybody has an answer, or never will")
        snapshot, lines, left = await self._settled()
        watching.cancel()
        resuming.cancel()
        self._report(lines)
        return [*lost, *left, *await self._wrong(lines, snapshot)]

    async def close(self) -> None:
        """Hangs up."""
        for client in (self._operator.rest, self._witness.rest, *self._tenants):
            await client.close()

    async def _until(self, what: Callable[[], bool]) -> None:
        """What it did not come to is found afterwards."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what() and time.monotonic() < deadline:
            await asyncio.sleep(0.5)

    async def _keep_resuming(self) -> None:
        """An order to suspend may still have been on its way."""
        while True:
            await self._operator.resume_all()
            await asyncio.sleep(1)

    async def _until_all_are_up(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len((await self._witness.look()).nodes_up) < NODES:
            assert time.monotonic() < deadline, "the nodes did not join"
            await asyncio.sleep(0.5)
        self._say("every node is up")

    async def _settled(self) -> tuple[Snapshot, list[Line], list[Violation]]:
        """What is granted is what runs, within the time that an orphan may live."""
        deadline = time.monotonic() + self._witness.stretched(ORPHAN_SECONDS)
        while True:
            snapshot = await self._witness.look()
            lines = await asyncio.to_thread(read_accounts, self._cluster.accounts)
            left = checker.differences(lines, snapshot)
            late = time.monotonic() > deadline
            if late or (not left and len(snapshot.nodes_up) == NODES):
                assert len(snapshot.nodes_up) == NODES, "not every node has returned"
                return snapshot, lines, left
            await asyncio.sleep(1)

    async def _wrong(self, lines: list[Line], snapshot: Snapshot) -> list[Violation]:
        witness, limit = self._witness, self._witness.stretched(ORPHAN_SECONDS)
        again = await witness.rest.all("/events", "events")
        there = ((e["number"], e["kind"], e["subject"], e["text"]) for e in again)
        undone = [
            Violation("lost", snapshot.at, f"grant {name} lives, and its end was acknowledged")
            for name in self._operator.ended & snapshot.grants.keys()
        ]
        allowed = witness.stretched(LEADER_SECONDS)
        slow = [
            Violation("leader", snapshot.at, f"nobody led for {seconds:.1f} s")
            for seconds in self._disturber.without_leader
            if seconds > allowed
        ]
        return [
            *checker.check_account(lines),
            *checker.unanswered(lines),
            *checker.orphaned(lines, witness.samples, limit),
            *checker.ended_yet_running(lines, witness.events, limit),
            *checker.rewritten(witness.events, there),
            *undone,
            *slow,
        ]

    def _report(self, lines: list[Line]) -> None:
        events, ends = self._witness.events, [line for line in lines if line.kind == "end"]
        why = Counter(e.text.partition(":")[0][:50] for e in events if e.kind == "grant.ended")
        answers = [line["status"] for line in lines if line.kind == "answer"]
        gaps = ", ".join(f"{seconds:.1f}" for seconds in self._disturber.without_leader)
        for name, figures in {
            "account": Counter(line.kind for line in lines),
            "ends": Counter(line["cause"] for line in ends),
            "answers": Counter(answers),
            "events": Counter(event.kind for event in events),
            "grants ended": why,
            "operator": self._operator.answers,
            "tenants": sum((t.answers for t in self._tenants), Counter[Any]()),
            "done to it": self._disturber.done,
        }.items():
            self._say(f"{name}: {dict(figures)}")
        factor = self._witness.factor
        self._say(f"without a leader after its kill: {gaps or '-'} s (at most {LEADER_SECONDS})")
        self._say(f"deadlines of {ORPHAN_SECONDS} and {LEADER_SECONDS} s were times {factor:.1f}")


async def chaos(folder: Path, controllers: int) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)

    say(f"SLUICE_CHAOS_SEED={SEED}, {NODES} nodes, {SECONDS:.0f} s, {controllers} controller(s)")
    cluster = Cluster(
        folder,
        seed=SEED,
        nodes=NODES,
        callers=CALLERS,
        controllers=controllers,
        node_timeout_seconds=NODE_TIMEOUT_SECONDS,
    )
    try:
        await asyncio.to_thread(cluster.start)
        if not cluster.network.can_cut:
            say("no network namespaces here (root, ip, nsenter): no cable is cut")
        run = Run(cluster, say)
        violations = await run.live()
        await run.close()
    finally:
        cluster.close()
    for violation in sorted(violations, key=lambda v: v.at)[:SHOWN]:
        say(f"VIOLATION {violation.kind} at {violation.at:.2f}: {violation.text}")
    kinds = dict(Counter(violation.kind for violation in violations))
    assert not violations, f"{kinds}; SLUICE_CHAOS_SEED={SEED}"


async def test_three_controllers_over_etcd(tmp_path: Path) -> None:
    if not shutil.which("etcd"):
        pytest.skip("etcd is not installed")
    await chaos(tmp_path, 3)


async def test_one_controller_on_sqlite(tmp_path: Path) -> None:
    await chaos(tmp_path, 1)
