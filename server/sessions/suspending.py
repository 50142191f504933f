# SPDX-License-Identifier: Apache-2.0
"""Suspends what runs for a grant, and resumes it: all of its sessions together, or none.

Called by sessions.lifecycle on the controller's order. A worker takes three steps (`suspend` stops
it at a consistent cut, `move_out` takes its memory to the host, `wake` undoes either) and says by
`suspension` what came of each; this is who orders them and remembers what was said. It promises
that what cannot be suspended goes on as it was, with a reason, that a failed resume leaves the
session suspended, and that the controller hears of each change, also of those that it did not
order (an earlier server's).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sluice.config.peer_lines import SERVER as PEERS
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.orders import OrderRefused
from sluice.server.sessions.records import Session, run_at_once
from sluice.server.sessions.standing import (
    ARBITER,
    CONTROLLER,
    OUT,
    RUNNING,
    STOPPED,
    UNDER_WAY,
    Standing,
    seconds_for,
)
from sluice.server.sessions.swap_memory import NoSwapMemory, SwapMemory
from sluice.server.workers.packets import Message

log = logging.getLogger("sluice.server")

SUSPENDED = "suspended"  # a grant all of whose sessions are out
#: Beyond the time that a session has to come to a stop.
ANSWER_SECONDS = 10.0


class Suspensions:
    """The sessions of this server that are suspended, or on their way."""

    def __init__(
        self,
        sessions_of: Callable[[str], list[Session]],
        report: Callable[[rpc.NodeReport], None],
        swap: SwapMemory,
        drain_seconds: float,
    ) -> None:
        self._sessions_of = sessions_of
        self._grant_ids: dict[str, str] = {}  # by session
        self._report = report
        self.swap = swap
        self._drain_seconds = drain_seconds
        self._standing: dict[str, Standing] = {}
        self._busy: set[str] = set()  # grants whose steps are under way
        self._locks: dict[str, asyncio.Lock] = {}  # by grant: one order at a time
        #: Grants that are out, in part or whole, for others on their GPUs: to the pool they run.
        self.swapped: set[str] = set()
        #: Told of grants whose memory moved without the arbiter's order (sessions.residency).
        self.on_moved: Callable[[str], None] = lambda grant_id: None
        #: Whether a grant that is resumed comes in when the arbiter says so.
        self.comes_in_later: Callable[[str], bool] = lambda grant_id: False
        #: Of sessions.turn_pages: a grant comes to a cut within, and stays for, so many seconds.
        self.hold: Callable[[str, float, float], Awaitable[bool]] = _hold_nothing
        self.go_on: Callable[[str], None] = lambda grant_id: None
        self._tasks: set[asyncio.Task[None]] = set()

    # sessions come and go

    def follow(self, session: Session, status: Message | None = None) -> None:
        """Hears what its worker says; `status`: of one that an earlier server began."""
        standing = self._standing[session.id] = Standing()
        self._grant_ids[session.id] = session.grant_id
        if status:
            standing.take(status, len(session.places))
            standing.owed = int(standing.state in UNDER_WAY)
            if standing.state in (OUT, *UNDER_WAY):
                self.swap.adopt(session.id, standing.host_mib)
                if standing.moved_by == ARBITER:
                    self.swapped.add(session.grant_id)
        session.worker.on_suspension = lambda message: self._hear(session, message)
        if standing.state == STOPPED:
            self._tell(session, Message("wake"))  # whoever stopped it has ended

    def leave(self, session: Session) -> None:
        """Its process has ended, and what it had of the host's memory is back."""
        self.swap.give(session.id)
        self._grant_ids.pop(session.id, None)
        standing = self._standing.pop(session.id, None)
        if standing and standing.waiter and not standing.waiter.done():
            standing.waiter.set_exception(OrderRefused(f"session {session.id} ended meanwhile"))
        if session.grant_id not in self._grant_ids.values():
            self.swapped.discard(session.grant_id)
            self._locks.pop(session.grant_id, None)

    # what there is

    def is_out(self, grant_id: str) -> bool:
        """Whether all that runs for a grant is suspended."""
        if grant_id in self.swapped:
            return False
        sessions = self._sessions_of(grant_id)
        return bool(sessions) and all(self._of(s).state == OUT for s in sessions)

    def messages(self) -> list[rpc.GrantSuspension]:
        """Of the grants that do not simply run."""
        found = [self.message(grant_id) for grant_id in sorted({*self._grant_ids.values()})]
        return [each for each in found if each.busy or each.state != RUNNING]

    def out_by_gpu(self, grant_id: str) -> dict[str, int]:
        """MiB of a grant that are in host memory, by the UUIDs of all its GPUs here."""
        found: Counter[str] = Counter()
        for session in self._sessions_of(grant_id):
            standing = self._standing.get(session.id) or Standing()
            out = standing.out or (0,) * len(session.places)
            for place, mib in zip(session.places, out, strict=False):
                found[session.vgpus[place].gpu_uuid] += mib if standing.state == OUT else 0
        return dict(found)

    def missing_by_gpu(self, grant_id: str) -> dict[str, int]:
        """MiB that a grant found too few on its GPUs when it was to come in, by their UUIDs."""
        found: Counter[str] = Counter()
        for session in self._sessions_of(grant_id):
            standing = self._standing.get(session.id) or Standing()
            for place, mib in zip(session.places, standing.missing, strict=False):
                vgpu = session.vgpus[place]
                # a worker that was taken over says what it likes
                found[vgpu.gpu_uuid] += min(mib, vgpu.memory_mib)
        return dict(found)

    def take_steps(self, grant_id: str) -> str:
        """What the steps of a grant's sessions took since this was asked, in words."""
        told = []
        for session in self._sessions_of(grant_id):
            if (standing := self._standing.get(session.id)) and standing.taken:
                told.append(f"session {session.id}: {', '.join(standing.taken)}")
                standing.taken.clear()
        return "; ".join(told)

    def message(self, grant_id: str, error: str = "") -> rpc.GrantSuspension:
        """How a grant stands, for the controller."""
        sessions = self._sessions_of(grant_id)
        state = SUSPENDED if self.is_out(grant_id) else RUNNING
        staying: Counter[int] = Counter()
        for session in sessions if state == SUSPENDED else ():
            for place, mib in zip(session.places, self._of(session).staying_mib, strict=False):
                # a worker that was taken over says what it likes
                staying[place] += min(mib, session.vgpus[place].memory_mib)
        count = len(sessions[0].vgpus) if sessions else 0
        return rpc.GrantSuspension(
            grant_id=grant_id,
            state=state,
            error=error,
            staying_mib=[staying[place] for place in range(count)],
            busy=grant_id in self._busy,
        )

    # orders

    def begin(self, grant_id: str, *, suspend: bool) -> None:
        """Suspends or resumes what runs for a grant; a report says what came of it."""
        task = asyncio.create_task(self._carry_out(grant_id, suspend=suspend))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, grant_id: str, *, suspend: bool) -> None:
        if grant_id in self._busy:
            return  # its report comes; an order that does not fit it is given again
        error = ""
        self._busy.add(grant_id)
        try:
            async with self.lock(grant_id):
                await (self.suspend(grant_id) if suspend else self.resume(grant_id))
        except OrderRefused as refused:
            error = str(refused)
        except Exception as problem:
            log.exception("grant %s was not %s", grant_id, "suspended" if suspend else "resumed")
            error = f"its server failed: {problem}"
        finally:
            self._busy.discard(grant_id)
        self._report(rpc.NodeReport(grant_suspension=self.message(grant_id, error)))

    def lock(self, grant_id: str) -> asyncio.Lock:
        """Held by whoever takes steps of a grant."""
        return self._locks.setdefault(grant_id, asyncio.Lock())

    async def suspend(self, grant_id: str) -> None:
        """Suspends all sessions of a grant. Raises OrderRefused: all go on."""
        sessions = self._ready(grant_id)
        if self.is_out(grant_id):
            return
        if not self.swap.limit_mib:
            raise OrderRefused("this node suspends nothing: set [suspend] swap_mib")
        if any(run_at_once(session.vgpus) for session in sessions):
            raise OrderRefused(
                f"grant {grant_id} runs at once with others (MPS), which cannot be taken apart; "
                "end it instead"
            )
        swapped = grant_id in self.swapped
        try:
            await self._stop_all(grant_id, sessions)
            await self._all(sessions, self._plan_all)
            self._book(sessions)
            await self._all(sessions, self._move_out)
        except OrderRefused:
            if not swapped:  # else it comes in when it is its turn, as before
                with contextlib.suppress(OrderRefused):
                    await self._all(sessions, self._wake)
            raise
        self.swapped.discard(grant_id)
        self.on_moved(grant_id)
        for session in sessions:
            standing = self._of(session)
            session.log.write(
                f"suspended: {standing.movable_mib} MiB went to the host, "
                f"{sum(standing.staying_mib)} MiB and its context stay on the GPU"
            )

    async def resume(self, grant_id: str) -> None:
        """Resumes all sessions of a grant. Raises OrderRefused: all are suspended still."""
        sessions = self._ready(grant_id)
        moved = any(self.out_by_gpu(grant_id).values())
        if moved and self.is_out(grant_id) and self.comes_in_later(grant_id):
            await self._all(sessions, self._leave_to_arbiter)
            self.swapped.add(grant_id)
            self.on_moved(grant_id)
            for session in sessions:
                session.log.write("resumed: its memory comes in when it has work, and its turn")
            return
        await self._come_back(grant_id, sessions)
        self.on_moved(grant_id)
        for session in sessions:
            session.log.write("resumed")

    async def _come_back(self, grant_id: str, sessions: Sequence[Session]) -> None:
        try:
            await self._all(sessions, self._wake)
        except OrderRefused as refused:
            if any(self._of(session).state == RUNNING for session in sessions):
                await self._suspend_again(grant_id, sessions, refused)
            raise

    async def _suspend_again(
        self, grant_id: str, sessions: Sequence[Session], why: OrderRefused
    ) -> None:
        """Some of a job came back and some did not: those that did are taken out once more."""
        back = [session for session in sessions if self._of(session).state == RUNNING]
        try:
            await self._stop_all(grant_id, back)
            await self._all(back, self._plan_all)
            self._book(back)
            await self._all(back, self._move_out)
        except OrderRefused as again:
            raise OrderRefused(
                f"grant {grant_id} runs in part: {why}; and the rest cannot be suspended: {again}"
            ) from again

    # for others on its GPUs

    async def swap_out(self, grant_id: str, wanted: Mapping[str, int]) -> None:
        """Has at least so many MiB of a grant out, by GPU, as far as they move; it stands still.

        Raises OrderRefused: it is as it was. The caller holds the lock.
        """
        sessions = self._ready(grant_id)
        if self.is_out(grant_id):
            return  # it is suspended, which frees more
        fresh = grant_id not in self.swapped
        self.swapped.add(grant_id)
        left = Counter(wanted)
        try:
            await self._stop_all(grant_id, sessions)
            for session in sessions:
                await self._swap_out(session, left)
            if not any(self.out_by_gpu(grant_id).values()):
                raise OrderRefused(f"nothing of grant {grant_id} can be moved off its GPUs")
        except OrderRefused:
            if fresh:
                with contextlib.suppress(OrderRefused):
                    await self._come_back(grant_id, sessions)
                self.swapped.discard(grant_id)
            raise

    async def _swap_out(self, session: Session, left: Counter[str]) -> None:
        """Its part of what is wanted; what it has out counts."""
        standing = self._of(session)
        targets = []
        for place, movable in zip(session.places, standing.movable, strict=False):
            gpu = session.vgpus[place].gpu_uuid
            targets.append(min(left[gpu], movable))
            left[gpu] -= targets[-1]
        await self._plan(session, targets)
        self._book([session])
        await self._move_out(session, ARBITER)

    async def swap_in(self, grant_id: str) -> None:
        """Has all of it come in, under the lock. Raises OrderRefused: it is as it was."""
        if grant_id in self.swapped:
            await self._come_back(grant_id, self._ready(grant_id))
            self.swapped.discard(grant_id)

    # steps of a session

    def _book(self, sessions: Sequence[Session]) -> None:
        try:
            self.swap.take({s.id: self._of(s).host_mib for s in sessions})
        except NoSwapMemory as none:
            raise OrderRefused(str(none)) from None

    async def _stop_all(self, grant_id: str, sessions: Sequence[Session]) -> None:
        """All of them; those of a job at one cut, as they wait for each other in collectives.

        Lagging ranks go on until nothing waits for a peer, none passes its gate any more, and then
        each is stopped. Raises OrderRefused.
        """
        running = [s for s in sessions if self._of(s).state not in (STOPPED, OUT)]
        job = len(sessions) > 1 or any(len(s.places) > 1 for s in sessions)
        if not job or not running:
            return await self._all(sessions, self._stop)
        try:
            if not await self._stop_at_cut(grant_id, running):
                # somebody had begun more just then: once more
                await self._all([s for s in running if self._of(s).state == STOPPED], self._wake)
                await self._stop_at_cut(grant_id, running, again=False)
        finally:
            self.go_on(grant_id)  # who was stopped begins nothing with it

    async def _stop_at_cut(
        self, grant_id: str, sessions: Sequence[Session], *, again: bool = True
    ) -> bool:
        """False: they did not stop although they had come to their cut, and it is tried again."""
        began, seconds = time.monotonic(), self._drain_seconds
        still = await self.hold(grant_id, seconds, 2 * seconds + ANSWER_SECONDS)
        for session in sessions:
            self._of(session).note("cut" if still else "no cut", time.monotonic() - began, "")
        try:
            await self._all(sessions, self._stop)
        except OrderRefused:
            if not (still and again):
                raise
            return False
        return True

    async def _stop(self, session: Session) -> None:
        if self._of(session).state in (STOPPED, OUT):
            return
        drain = Message("suspend", {"drain_ms": str(int(self._drain_seconds * 1000))})
        said = await self._step(session, drain, self._drain_seconds + ANSWER_SECONDS)
        if self._of(session).state != STOPPED:
            raise OrderRefused(
                f"session {session.id} does not come to a stop within [suspend] drain_seconds "
                f"({self._drain_seconds:g}): {said.get('message', 'no reason given')}"
            )

    async def _plan_all(self, session: Session) -> None:
        await self._plan(session, [])

    async def _plan(self, session: Session, out: Sequence[int]) -> None:
        """What is to be out in all, MiB by vGPU; none named: everything."""
        standing = self._of(session)
        if not standing.plans:
            standing.planned_mib = standing.movable_mib if standing.state != OUT else 0
            return
        fields = {f"vgpu.{n}.out_mib": str(mib) for n, mib in enumerate(out)}
        await self._step(session, Message("plan", {"vgpus": str(len(out)), **fields}))

    async def _leave_to_arbiter(self, session: Session) -> None:
        """Nothing of it moves; a later server is told that it is not suspended any more."""
        await self._plan(session, [0] * len(session.places))
        await self._move_out(session, ARBITER)

    async def _move_out(self, session: Session, by: str = CONTROLLER) -> None:
        standing = self._of(session)
        if standing.state == OUT and standing.moved_by == by and not standing.planned_mib:
            return
        with self.swap.moving():
            await self._move_planned(session, by)

    async def _move_planned(self, session: Session, by: str) -> None:
        standing = self._of(session)
        began = time.monotonic()
        try:
            pieces = await self.swap.pieces(standing.planned_mib)
        except NoSwapMemory as none:
            raise OrderRefused(f"session {session.id}: {none}") from None
        standing.taken.append(f"host memory {time.monotonic() - began:.3f} s")
        for memory, mib in pieces:
            fields = {"bytes": str(mib << 20), "descriptors": "memory"}
            session.worker.tell(Message("memory", fields), (memory,))
            os.close(memory)
        planned, before = standing.planned_mib, sum(standing.out)
        is_new = standing.plans
        order = Message("move_out", {"by": by})
        said = await self._step(session, order, seconds_for(planned))
        if standing.state != OUT or (is_new and planned and sum(standing.out) <= before):
            self.swap.adopt(session.id, sum(standing.out))
            raise OrderRefused(f"session {session.id}: {said.get('message', 'it did not move')}")

    async def _wake(self, session: Session) -> None:
        standing = self._of(session)
        if standing.state != RUNNING:
            said = await self._step(session, Message("wake"), seconds_for(standing.movable_mib))
            if standing.state != RUNNING:
                why = said.get("message", "it did not wake")
                raise OrderRefused(f"session {session.id}: {why}")
        self.swap.give(session.id)

    async def _step(
        self, session: Session, order: Message, seconds: float = ANSWER_SECONDS
    ) -> Message:
        """What its worker says about an order."""
        standing = self._of(session)
        standing.waiter = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        self._tell(session, order)
        try:
            said = await asyncio.wait_for(standing.waiter, seconds)
            standing.note(order.verb, time.monotonic() - began, said.get("steps"))
            return said
        except TimeoutError:
            raise OrderRefused(
                f"session {session.id}: its worker did not answer `{order.verb}` within "
                f"{seconds:g} s"
            ) from None
        finally:
            standing.waiter = None

    # within

    def _tell(self, session: Session, order: Message) -> None:
        self._of(session).owed += 1
        session.worker.tell(order)

    def _ready(self, grant_id: str) -> list[Session]:
        sessions = self._sessions_of(grant_id)
        if not sessions:
            raise OrderRefused(f"no session of grant {grant_id} is open here")
        if opening := [session.id for session in sessions if session.opening]:
            raise OrderRefused(f"session {', '.join(opening)} is being opened; try again")
        return sessions

    async def _all(self, sessions: Sequence[Session], step: Callable[[Session], object]) -> None:
        """The step for each, side by side; raises the first OrderRefused when all are done."""
        done = await asyncio.gather(*(_run(step, s) for s in sessions), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    def _of(self, session: Session) -> Standing:
        standing = self._standing.get(session.id)
        if standing is None:
            raise OrderRefused(f"session {session.id} ended meanwhile")
        return standing

    def _hear(self, session: Session, message: Message) -> None:
        standing = self._standing.get(session.id)
        if standing is None:
            return
        if not standing.owed:
            text = "session %s: its worker says how it stands, and nobody has asked"
            PEERS.warning("worker: suspension", session.id, text, session.id)
            return
        standing.owed -= 1
        standing.take(message, len(session.places))
        if standing.waiter and not standing.waiter.done():
            standing.waiter.set_result(message)
            return
        # nobody here ordered it: an earlier server did
        if standing.state == STOPPED:
            self._tell(session, Message("wake"))
            return
        if standing.state == RUNNING:
            self.swap.give(session.id)
            if all(self._of(s).state == RUNNING for s in self._sessions_of(session.grant_id)):
                self.swapped.discard(session.grant_id)
        self.on_moved(session.grant_id)
        if session.grant_id in self.swapped:
            return
        if session.grant_id not in self._busy:
            told = self.message(session.grant_id, message.get("message"))
            self._report(rpc.NodeReport(grant_suspension=told))


async def _hold_nothing(grant_id: str, seconds: float, lasts_seconds: float) -> bool:
    return False


async def _run(step: Callable[[Session], object], session: Session) -> None:
    outcome = step(session)
    if asyncio.iscoroutine(outcome):
        await outcome
