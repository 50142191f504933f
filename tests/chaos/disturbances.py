# SPDX-License-Identifier: Apache-2.0
"""What is done to a pool, and when: a plan from a seed, and how it is carried out.

Used by test_chaos.py. The plan is the same for the same seed and length; what it meets is not, as
processes run as fast as the machine lets them. A process that something is being done to already is
left alone. Everything is put right again at the end.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from .callers import PATIENCE_SECONDS
from .cluster import Cluster

LEADER = "leader"
MEAN_GAP_SECONDS = 2.5
CLOCK_MOST_SECONDS = 7200.0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One thing to do, and for how long."""

    at: float  # seconds from the beginning
    what: str  # kill, pause, cut, clock
    target: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.what} {self.target} for {self.seconds:.1f} s"


def make_plan(
    seed: int, seconds: float, names: list[str], *, can_cut: bool, longest: float
) -> list[Disturbance]:
    """What happens in a run of so many seconds."""
    dice = random.Random(seed)
    controllers = [LEADER, LEADER, *(n for n in names if n.startswith("controller"))]
    etcd = [name for name in names if name.startswith("etcd")]
    racks = [name for name in names if name.startswith("rack")]
    plan: list[Disturbance] = []
    at = 3.0
    while at < seconds:
        kind = dice.choices(("controller", "etcd", "rack", "clock"), (35, 20 * bool(etcd), 35, 8))[
            0
        ]
        what = dice.choices(("kill", "pause", "cut"), (5, 3, 3 if can_cut else 0))[0]
        if kind == "clock":
            wrong = dice.uniform(-CLOCK_MOST_SECONDS, CLOCK_MOST_SECONDS)
            plan.append(Disturbance(at, "clock", "wall", wrong))
        else:
            target = dice.choice({"controller": controllers, "etcd": etcd, "rack": racks}[kind])
            short = dice.uniform(0.2, 6.0)
            # now and then long enough for a node to be lost
            lasts = dice.uniform(1.0, longest) if kind == "rack" else short
            plan.append(Disturbance(at, what, target, lasts))
        at += dice.expovariate(1 / MEAN_GAP_SECONDS)
    return plan


class Disturber:
    """Carries a plan out."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._say = say
        self._busy: dict[str, float] = {}  # since when
        self._tasks: list[asyncio.Task[None]] = []
        self.done: Counter[str] = Counter()
        self.without_leader: list[float] = []  # seconds after a leader was killed

    async def run(self, plan: list[Disturbance]) -> None:
        """All of it; returns when everything is right again."""
        began = time.monotonic()
        for each in plan:
            await asyncio.sleep(max(0.0, began + each.at - time.monotonic()))
            self._tasks.append(asyncio.create_task(self._do(each)))
        await asyncio.gather(*self._tasks)
        self._cluster.set_clock(0.0)

    async def _do(self, each: Disturbance) -> None:
        if each.what == "clock":
            self._cluster.set_clock(each.seconds)
            self._say(f"the wall clock is wrong by {each.seconds:+.0f} s")
            self.done["clock"] += 1
            return
        leader = await self._leader()
        target = (leader or "controller0") if each.target == LEADER else each.target
        if target in self._busy:
            return
        self._busy[target] = time.monotonic()
        self._say(f"{each.what} {target} for {each.seconds:.1f} s{' (leads)' * (target == leader)}")
        kind = target.rstrip("0123456789")
        self.done[f"{each.what} {kind}"] += 1
        try:
            if each.what == "kill":
                await self._kill(target, each.seconds, leads=target == leader)
            elif each.what == "pause":
                self._cluster.send(target, signal.SIGSTOP)
                await asyncio.sleep(each.seconds)
                self._cluster.send(target, signal.SIGCONT)
            else:
                self._cluster.network.cut(target)
                await asyncio.sleep(each.seconds)
                self._cluster.network.join(target)
        finally:
            del self._busy[target]

    async def _kill(self, target: str, seconds: float, *, leads: bool) -> None:
        alone = all(name.startswith("rack") for name in self._busy if name != target)
        began = time.monotonic()
        self._cluster.kill(target)
        watch = None
        if leads and alone and len(self._cluster.controllers.processes) > 1:
            watch = asyncio.create_task(self._until_somebody_leads(target, began))
        await asyncio.sleep(seconds)
        self._cluster.start_process(target)
        if watch:
            await watch

    async def _until_somebody_leads(self, killed: str, began: float) -> None:
        while not (leader := await self._leader()) or leader == killed:
            others = [n for n in self._busy if n != killed and not n.startswith("rack")]
            if others:
                return  # something else has happened to who could lead: that is no measurement
            assert time.monotonic() - began < PATIENCE_SECONDS, f"nobody leads after {killed}"
            await asyncio.sleep(0.05)
        self.without_leader.append(time.monotonic() - began)
        self._say(f"{leader} leads {self.without_leader[-1]:.1f} s after {killed} was killed")

    async def _leader(self) -> str:
        async with httpx.AsyncClient(timeout=0.5) as client:

            async def leads(number: int, address: str) -> str:
                try:
                    answer = await client.get(f"http://{address}/v1/controller")
                except httpx.HTTPError:
                    return ""
                return f"controller{number}" if answer.json().get("leads") else ""

            addresses = self._cluster.controllers.rest
            found = await asyncio.gather(*(leads(n, a) for n, a in enumerate(addresses)))
        return next(filter(None, found), "")
