# SPDX-License-Identifier: Apache-2.0
"""A pool and a node's server that suspend and move grants, with orders and reports under way.

Each line between the two keeps its turn, and may break with all that is on it; the controller may
be restarted with what it has stored, or without. A Model does what a seeded random number says, and
raises AssertionError where the books are not what they are made of, more is promised or really
there than a GPU has, or an order does not fit how its grant stands.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ends import GONE
from pool_bench import FakeClock

from sluice.controller.pool.decisions import Decisions, EndOrder, Granted, GrantRequest
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendedContexts,
    SuspendOrder,
    SuspensionState,
)
from sluice.controller.pool.impossible import Impossible, Over, Unknown
from sluice.controller.pool.model import (
    Event,
    Gpu,
    GpuKey,
    GpuMode,
    GpuSwitch,
    Grant,
    GrantState,
    Node,
    OwnerKind,
    Quota,
    Reservation,
    Session,
    SessionState,
    Vgpu,
    as_it_is,
)
from sluice.controller.pool.pool import Pool, ReportedSession, Snapshot
from sluice.resources.suspended_contexts import ContextPlace, Stays

MIB, CONTEXT, LEFT, STAYING = 8000, 500, 4, 50
ALL = ("a-gpu0", "a-gpu1", "a-gpu2")
FAULT = "XID 79"
REFUSED = (Impossible, Unknown, Over)


@dataclass
class Held:
    """What the server runs for a grant."""

    session: Session
    vgpu: Vgpu  # as it is when it runs
    request: GrantRequest
    gpu: str
    out: bool = False
    off: bool = False  # of one that is out: its context has left
    serial: int = 0
    moving_to: str = ""

    @property
    def mib(self) -> int:
        """That it really has of its GPU."""
        if self.out:
            return LEFT if self.off else CONTEXT + STAYING
        return self.vgpu.memory_mib + CONTEXT


@dataclass
class Server:
    """A node, and what is under way between it and the controller."""

    held: dict[str, Held] = field(default_factory=dict)
    orders: deque[SuspendOrder | EndOrder] = field(default_factory=deque)
    reports: deque[ReportedSuspension] = field(default_factory=deque)
    faults: dict[str, str] = field(default_factory=dict)

    def says(self, grant_id: str, error: str = "") -> ReportedSuspension:
        """How a grant stands."""
        held = self.held[grant_id]
        contexts = None
        if held.out:
            others = tuple(uuid for uuid in ALL if uuid != held.gpu) if held.off else ()
            place = ContextPlace.OFF if held.off else ContextPlace.LEAVING
            mib = LEFT if held.off else CONTEXT
            contexts = SuspendedContexts(place, Stays.NONE, "", (mib,), others)
        return ReportedSuspension(
            grant_id,
            suspended=held.out,
            error=error,
            staying_mib=(0 if held.off else STAYING,) if held.out else (),
            contexts=contexts,
            gpu_uuids=(held.gpu,),
            serial=held.serial,
            moving_to=held.moving_to,
        )

    def carry_out(self, order: SuspendOrder, refuses: bool) -> None:
        """An order, or it is refused; a report follows either."""
        held = self.held.get(order.grant_id)
        if held is None:
            return
        assert order.serial > held.serial, f"given twice: {order}, {held}"
        assert held.out is order.resume, f"it does not fit: {order}, {held}"
        held.serial, held.moving_to, error = order.serial, order.moving_to, ""
        there = order.gpu_uuid or held.gpu
        if refuses or (order.resume and self.faults.get(there)):
            error, held.moving_to = "refused", ""
        elif not order.resume:
            held.out, held.off = True, False
        elif there != held.gpu and not held.off:
            error = "its context is there"
        else:
            held.out, held.off, held.gpu = False, False, there
        self.reports.append(self.says(order.grant_id, error))


class Model:
    """Both, and what is done to them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._ids = itertools.count(1)
        self._requests = itertools.count(1)
        self._options: dict[str, Any] = {
            "node_timeout_seconds": 1e9,
            "max_suspended_seconds": self.dice.choice((0, 500)),
            "ageing_seconds": self.dice.choice((0.0, 50.0)),
        }
        self.clock = FakeClock()
        self.stored: dict[Any, Any] = {}
        self.server = Server()
        self.asked: dict[str, GrantRequest] = {}  # those that wait, and those that run
        self.paused: set[str] = set()  # grants whose VMs stand still
        self.stood: set[str] = set()  # those that ever did, or whose move may be long given up
        self.done: list[str] = []
        self.begin(Snapshot())
        self.limited = {project for project in "xyz" if self.dice.random() < 0.3}
        for project in "xyz":
            most = 12_000 if project in self.limited else 0
            quota = Quota(project, memory_mib=most, may_preempt=True)
            self.take(self.pool.limits.set_quota(quota))

    def begin(self, snapshot: Snapshot) -> None:
        """A controller begins, and the server comes to it with what it runs."""
        self.pool = Pool(
            self.clock, lambda: f"{next(self._ids):016x}", snapshot=snapshot, **self._options
        )
        self.returns()

    def returns(self) -> None:
        """The stream is another: what was on the one before is lost."""
        server = self.server
        server.orders.clear()
        server.reports.clear()
        node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=50_000, moves_sessions=True)
        gpus = [
            Gpu("a", u, "M", MIB, context_overhead_mib=CONTEXT, fault=server.faults.get(u, ""))
            for u in ALL
        ]
        sessions = [
            ReportedSession(
                replace(held.session, state=SessionState.RUNNING),
                (replace(held.vgpu, gpu_uuid=held.gpu, overhead_mib=0),),
                held.request.request_id,
                held.request.priority,
                project=held.request.project,
            )
            for held in server.held.values()
        ]
        suspensions = [server.says(grant_id) for grant_id in server.held]
        self.take(self.pool.membership.register(node, gpus, sessions, suspensions=suspensions))
        for grant_id in sorted(self.paused & server.held.keys()):
            self.take(self.pool.lifecycle.guest_standing("a", grant_id, paused=True))

    def take(self, decisions: Decisions) -> None:
        """What was decided goes its way."""
        self.server.orders += [*decisions.suspends, *decisions.ends]
        for request_id, answer in decisions.answers.items():
            request = self.asked.pop(request_id)
            if isinstance(answer, Granted):
                [vgpu] = answer.grant.vgpus
                self.server.held[answer.grant.id] = Held(
                    as_it_is(answer.session), vgpu, request, vgpu.gpu_uuid
                )
                self.take(self.pool.lifecycle.session_started(answer.session.id, 7, "shm"))

    def store(self) -> None:
        """What has changed is kept, as far as it is stored."""
        for change in self.pool.take_changes():
            if isinstance(change, Event) and change.kind == "grant.not_moved":
                # what waits for its project's quota or its VM keeps nobody from its place, nor does
                # what was given up, and is remembered by the server alone
                limited = self.pool.grants[change.subject].project in self.limited
                limited |= change.subject in self.stood
                assert limited or "% free" not in change.text, f"it was given away: {change}"
            key = getattr(change, "id", None) or getattr(change, "key", None)
            if isinstance(change, Grant):
                change = replace(change, contexts=None)
            if isinstance(change, Node):
                change, key = replace(change, swap_mib=0, moves_sessions=False), change.name
            if isinstance(change, Node | Gpu | Grant | Session | GpuSwitch | Quota | Reservation):
                key = change.project if isinstance(change, Quota) else key
                self.stored[type(change), key] = change

    def snapshot(self) -> Snapshot:
        """Of what is stored, as a controller finds it."""

        def of(kind: type) -> list[Any]:
            return [as_it_is(r) for r in self.stored.values() if type(r) is kind]

        return Snapshot(
            *(of(Node), of(Gpu), of(Grant), of(Session)),
            reservations=of(Reservation),
            switches=of(GpuSwitch),
            quotas=of(Quota),
        )

    # what may happen

    def step(self) -> None:
        """Something."""
        acts: dict[Callable[[], None], float] = {
            self.ask: 5, self.suspend: 3, self.resume: 4, self.move: 4, self.deliver: 14,
            self.report: 14, self.leave: 5, self.end: 1.5, self.drain: 0.6, self.wait: 1,
            self.fail: 0.3, self.breaks: 0.3, self.restart: 0.3, self.lose_store: 0.1,
            self.pause: 0.6, self.reserve: 0.4,
        }  # fmt: skip
        [act] = self.dice.choices([*acts], [*acts.values()])
        self.done.append(act.__name__)
        with contextlib.suppress(*REFUSED):
            act()
        self.store()

    def any_of(self, which: Callable[[Held], bool] = lambda _: True) -> str:
        """A grant that the server runs; "": there is none."""
        return self.dice.choice([""] + [g for g, held in self.server.held.items() if which(held)])

    def ask(self) -> None:
        dice, request_id = self.dice, f"r{next(self._requests)}"
        request = self.asked[request_id] = GrantRequest(
            request_id=request_id,
            project=dice.choice("xyz"),
            memory_mib=dice.choice((1000, 3000, 6000)),
            compute_percent=dice.choice((10, 30, 60)),
            priority=dice.randrange(4),
            preempt=dice.random() < 0.4,
            wait_seconds=dice.choice((0, -1)),
        )
        self.take(self.pool.requests.submit(request))

    def suspend(self) -> None:
        self.take(self.pool.lifecycle.suspend(self.any_of(), "by a test"))

    def resume(self) -> None:
        self.take(self.pool.lifecycle.resume(self.any_of()))

    def move(self) -> None:
        uuid = self.dice.choice(("", *ALL))
        self.take(self.pool.lifecycle.move(self.any_of(), uuid, "by a test"))

    def deliver(self) -> None:
        """An order comes to the server."""
        if not self.server.orders:
            return
        order = self.server.orders.popleft()
        if isinstance(order, SuspendOrder):
            self.server.carry_out(order, self.dice.random() < 0.15)
        elif self.server.held.pop(order.grant_id, None):
            self.take(self.pool.lifecycle.session_ended("", order.grant_id, order.why))

    def report(self) -> None:
        """A report comes to the controller."""
        if self.server.reports:
            self.take(self.pool.lifecycle.suspension("a", self.server.reports.popleft()))

    def leave(self) -> None:
        """A context leaves its GPU."""
        if grant_id := self.any_of(lambda held: held.out and not held.off):
            self.server.held[grant_id].off = True
            self.server.reports.append(self.server.says(grant_id))

    def end(self) -> None:
        if grant_id := self.any_of():
            del self.server.held[grant_id]
            self.take(self.pool.lifecycle.session_ended("", grant_id, GONE))

    def pause(self) -> None:
        """A VM stands still, or goes on."""
        if (grant_id := self.any_of()) and self.dice.random() < 0.5:
            self.paused.add(grant_id)
            self.stood.add(grant_id)
            self.take(self.pool.lifecycle.guest_standing("a", grant_id, paused=True))
        elif self.paused:
            self.go_on(min(self.paused))

    def go_on(self, grant_id: str) -> None:
        self.paused.discard(grant_id)
        self.take(self.pool.lifecycle.guest_standing("a", grant_id, paused=False))

    def reserve(self) -> None:
        """Somebody who comes later has room kept, or gives it back."""
        number = f"reservation{next(self._requests)}"
        held = [r for r in self.pool.reservations.values() if not r.ended]
        if held:
            self.take(self.pool.reserving.end_reservation(held[0].id, "by a test"))
            return
        memory_mib, now = self.dice.choice((1000, 3000)), self.clock.wall()
        reservation = Reservation(
            *(number, OwnerKind.PROJECT, "later", "later", 1, memory_mib, 10, 5, "", now)
        )
        _, decisions = self.pool.reserving.reserve(reservation, wait=False)
        self.take(decisions)

    def drain(self) -> None:
        mode = self.dice.choice((GpuMode.DRAINED, GpuMode.POOLED, GpuMode.POOLED))
        self.take(self.pool.switching.switch_gpu(GpuKey("a", self.dice.choice(ALL)), mode))

    def wait(self) -> None:
        self.clock.seconds += self.dice.choice((1, 11, 100))
        self.take(self.pool.expire())

    def fail(self) -> None:
        """A GPU fails, or is well again; what is on it ends there at once."""
        uuid, server = self.dice.choice(ALL), self.server
        server.faults[uuid] = self.dice.choice(("", "", FAULT))
        self.take(
            self.pool.membership.gpu_condition(GpuKey("a", uuid), server.faults[uuid], "", "")
        )
        lost = [g for g, h in server.held.items() if h.gpu == uuid and not h.off]
        for grant_id in lost if server.faults[uuid] else ():
            del server.held[grant_id]
            self.take(self.pool.lifecycle.session_ended("", grant_id, GONE))

    def breaks(self) -> None:
        self.pool.membership.disconnected("a")
        self.returns()

    def restart(self) -> None:
        self.forget_waiting()
        self.store()
        self.begin(self.snapshot())

    def lose_store(self) -> None:
        self.forget_waiting()
        self.stored.clear()
        self.stood |= self.server.held.keys()
        self.begin(Snapshot())

    def forget_waiting(self) -> None:
        """Who waited asks the next controller, as others do here."""
        self.asked.clear()

    # what has to be so

    def check(self) -> None:
        """At any time."""
        pool = self.pool
        live = [grant for grant in pool.grants.values() if grant.state is GrantState.LIVE]
        for uuid in ALL:
            key = GpuKey("a", uuid)
            vgpus = [vgpu for grant in live for at, vgpu in grant.placed() if at == key]
            booked = sum(vgpu.memory_mib + vgpu.overhead_mib for vgpu in vgpus)
            percent = sum(vgpu.compute_percent for vgpu in vgpus)
            kept = pool._ledger.places.used_of(key)
            claimed = pool._scheduler.claims.on_gpu(key)
            reserved = pool._ledger.reservations.undrawn_on(key)
            usage = pool._ledger.allocations.usage(key)
            booked += reserved.memory_mib
            percent += reserved.compute_percent
            assert usage.memory_mib == booked + kept[0] + claimed[0], uuid
            assert usage.compute_percent == percent + kept[1] + claimed[1], uuid
            assert booked + kept[0] <= MIB, (uuid, booked, kept)
            assert percent <= 100, (uuid, percent)
            real = sum(held.mib for held in self.server.held.values() if held.gpu == uuid)
            assert real <= MIB, (uuid, "really", real)

    def calm_down(self) -> None:
        """Nothing more happens to it: all is carried out, and everybody comes to run, or ends."""
        for grant_id in sorted(self.paused):
            self.go_on(grant_id)
        for reservation in list(self.pool.reservations.values()):
            if not reservation.ended:
                self.take(self.pool.reserving.end_reservation(reservation.id, "by a test"))
        for uuid in ALL:
            self.server.faults.clear()
            self.take(self.pool.membership.gpu_condition(GpuKey("a", uuid), "", "", ""))
            with contextlib.suppress(*REFUSED):
                self.take(self.pool.switching.switch_gpu(GpuKey("a", uuid), GpuMode.POOLED))
        for _ in range(400):
            self._carry_all_out()
            self.clock.seconds += 12
            self.take(self.pool.expire())
            self.check()
            suspended = [
                grant
                for grant in self.pool.grants.values()
                if grant.state is GrantState.LIVE and grant.suspension is not SuspensionState.NONE
            ]
            for grant in suspended:
                if grant.suspension is SuspensionState.SUSPENDED and not grant.resumes:
                    self.take(self.pool.lifecycle.resume(grant.id))
            if not (suspended or self.asked or self.server.orders):
                break
            running = [g for g, held in self.server.held.items() if not held.out]
            if running and not self.server.orders:
                del self.server.held[running[0]]
                self.take(self.pool.lifecycle.session_ended("", running[0], GONE))
        else:
            raise AssertionError(f"not everybody came to run: {suspended}, {self.asked}")
        live = {g.id for g in self.pool.grants.values() if g.state is GrantState.LIVE}
        assert live == self.server.held.keys(), "what runs is what is booked"
        assert not self.pool._ledger.places._booked, "nobody is on his way"

    def _carry_all_out(self) -> None:
        while self.server.orders or self.server.reports:
            if self.server.orders:
                order = self.server.orders.popleft()
                if isinstance(order, SuspendOrder):
                    self.server.carry_out(order, False)
                elif self.server.held.pop(order.grant_id, None):
                    self.take(self.pool.lifecycle.session_ended("", order.grant_id, order.why))
            while self.server.reports:
                self.report()
        for grant_id, held in list(self.server.held.items()):
            if held.out and not held.off:
                held.off = True
                self.server.reports.append(self.server.says(grant_id))
                self.report()
