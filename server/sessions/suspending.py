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
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from sluice.config.peer_lines import SERVER as PEERS
from sluice.resources.suspended_contexts import ContextPlace, words
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.orders import OrderRefused
from sluice.server.sessions.common_stop import CommonStop
from sluice.server.sessions.contexts import Contexts
from sluice.server.sessions.given_orders import GivenOrder, GivenOrders
from sluice.server.sessions.kept_memory import KeptMemory
from sluice.server.sessions.moved_memory import MovedMemory
from sluice.server.sessions.moving import NONE_MOVES, MoveRules, Moves, gpu_of
from sluice.server.sessions.records import Session, run_at_once
from sluice.server.sessions.standing import ARBITER, OUT, RUNNING, STOPPED, UNDER_WAY, Standing
from sluice.server.sessions.suspension_steps import ANSWER_SECONDS, SuspensionSteps, for_all
from sluice.server.sessions.swap_memory import SwapMemory
from sluice.server.workers.packets import Message

log = logging.getLogger("sluice.server")

SUSPENDED = "suspended"  # a grant all of whose sessions are out
#: Between two tries to have all of a grant go on some of whose sessions are out.
AGAIN_SECONDS = 10.0


class Suspensions:
    """The sessions of this server that are suspended, or on their way."""

    def __init__(
        self,
        sessions_of: Callable[[str], list[Session]],
        report: Callable[[rpc.NodeReport], None],
        swap: SwapMemory,
        drain_seconds: float,
        contexts: Contexts,
        moves: MoveRules = NONE_MOVES,
    ) -> None:
        self._sessions_of = sessions_of
        self._grant_ids: dict[str, str] = {}  # by session
        self._report = report
        self.swap = swap
        self._standing: dict[str, Standing] = {}
        self.memory = MovedMemory(sessions_of, self._standing)
        self.contexts = contexts
        self._moves = moves
        contexts.standings = self._standing
        self._steps = SuspensionSteps(swap, drain_seconds, self._of)
        contexts.prepare = self._steps.delist
        self.kept = KeptMemory(swap, self._steps, self._of, self.lock)
        self._busy: set[str] = set()  # grants whose steps are under way
        self._locks: dict[str, asyncio.Lock] = {}  # by grant: one order at a time
        #: Grants that are out, in part or whole, for others on their GPUs: to the pool they run.
        self.swapped: set[str] = set()
        #: Told of grants whose memory moved without the arbiter's order (sessions.residency).
        self.on_moved: Callable[[str], None] = lambda grant_id: None
        #: Of gpus.host_gpus: why a GPU can have no context back now.
        self.why_closed: Callable[[str], str] = lambda uuid: ""
        #: Whether a grant that is resumed comes in when the arbiter says so.
        self.comes_in_later: Callable[[str], bool] = lambda grant_id: False
        #: Of sessions.turn_pages: a grant comes to a cut within, and stays for, so many seconds.
        self.hold: Callable[[str, float, float], Awaitable[bool]] = _hold_nothing
        self.go_on: Callable[[str], None] = lambda grant_id: None
        self._stops = CommonStop(
            *(self._steps, self._of, drain_seconds),
            hold=lambda *how: self.hold(*how),
            go_on=lambda grant_id: self.go_on(grant_id),
        )
        self._orders = GivenOrders()
        self._tasks: set[asyncio.Task[None]] = set()
        self._completing: set[str] = set()  # grants that are out in part

    # sessions come and go

    def follow(self, session: Session, status: Message | None = None) -> None:
        """Hears what its worker says; `status`: of one that an earlier server began."""
        standing = self._standing[session.id] = Standing()
        self._grant_ids[session.id] = session.grant_id
        if status:
            standing.take(status, _memory_of(session))
            standing.owed = int(standing.state in UNDER_WAY)
            if standing.state in (OUT, *UNDER_WAY):
                self.swap.adopt(session.id, standing.host_mib)
                if standing.moved_by == ARBITER:
                    self.swapped.add(session.grant_id)
                self.contexts.adopt(session)
        self.kept.follow(session)
        session.worker.on_suspension = lambda message: self._hear(session, message)
        if standing.state == STOPPED:  # whoever stopped it has ended
            self._steps.tell(session, self._steps.wake_order(session))

    def leave(self, session: Session) -> None:
        """Its process has ended, and what it had of the host's memory is back."""
        self.swap.give(session.id)
        self.contexts.leave(session)
        self.kept.leave(session)
        self._grant_ids.pop(session.id, None)
        standing = self._standing.pop(session.id, None)
        if standing and standing.waiter and not standing.waiter.done():
            standing.waiter.set_exception(OrderRefused(f"session {session.id} ended meanwhile"))
        if session.grant_id not in self._grant_ids.values():
            self.swapped.discard(session.grant_id)
            self._locks.pop(session.grant_id, None)
            self._orders.keep(self._grant_ids.values())

    # what there is

    def is_out(self, grant_id: str) -> bool:
        """Whether all that runs for a grant is suspended."""
        if grant_id in self.swapped:
            return False
        sessions = self._sessions_of(grant_id)
        return bool(sessions) and all(self._of(s).state == OUT for s in sessions)

    def is_off(self, grant_id: str, gpu_uuid: str) -> bool:
        """Whether nothing of a grant is on a GPU that is its sessions', nor about to be."""
        sessions = self._sessions_of(grant_id)
        if not self.is_out(grant_id) or not all(self.contexts.is_off(s) for s in sessions):
            return False
        if any(self.memory.staying(grant_id, self.contexts.is_off)):
            return False  # others have it open
        going = self._orders.moving_to(grant_id)
        return not self._is_busy(grant_id) or going not in ("", gpu_uuid)

    def may_run(self, grant_id: str) -> bool:
        """Whether it runs, or an order about it is under way, by which it may."""
        return not self.is_out(grant_id) or self._is_busy(grant_id)

    def _is_busy(self, grant_id: str) -> bool:
        return grant_id in self._busy or self._orders.is_busy(grant_id)

    def _is_in_part(self, grant_id: str) -> bool:
        """Whether some of it is suspended and some runs: a server ended between two, or a step."""
        sessions = self._sessions_of(grant_id)
        states = {self._of(s).state for s in sessions if s.id in self._standing}
        return grant_id not in self.swapped and states == {OUT, RUNNING}

    def messages(self) -> list[rpc.GrantSuspension]:
        """Of the grants that do not simply run, or of which an order was carried out."""
        found = [self.message(grant_id) for grant_id in sorted({*self._grant_ids.values()})]
        return [each for each in found if each.busy or each.serial or each.state != RUNNING]

    def message(self, grant_id: str, error: str = "") -> rpc.GrantSuspension:
        """How a grant stands, for the controller."""
        sessions = self._sessions_of(grant_id)
        state = SUSPENDED if self.is_out(grant_id) else RUNNING
        place = self.contexts.of_grant(sessions)
        out = state == SUSPENDED
        moves = self._moves_of(sessions) if out else Moves()
        return rpc.GrantSuspension(
            grant_id=grant_id,
            state=state,
            error=error,
            staying_mib=self.memory.staying(grant_id, self.contexts.is_off) if out else [],
            busy=self._is_busy(grant_id),
            context=place.where if out else "",
            context_why=place.why if out else "",
            context_note=place.note if out else "",
            context_mib=self.contexts.mib_by_place(sessions) if out else [],
            gpu_uuids=self._gpus_of(sessions),
            moves_to=moves.gpus,
            moves_not=moves.why_not,
            serial=self._orders.done_of(grant_id),
            moving_to=self._orders.moving_to(grant_id),
        )

    def _gpus_of(self, sessions: Sequence[Session]) -> list[str]:
        """Of each vGPU: where contexts are, of a job that has moved in part, and all follow."""
        there = [session for session in sessions if not self.contexts.is_off(session)]
        return [vgpu.gpu_uuid for session in (there or sessions)[:1] for vgpu in session.vgpus]

    def _moves_of(self, sessions: Sequence[Session]) -> Moves:
        """Where a grant that is out may come back beside its own GPU."""
        place = self.contexts.of_grant(sessions)
        off = place.where is ContextPlace.OFF
        return self._moves.of(
            sessions, self._standing, None if off else words(place.why, place.note)
        )

    # orders

    def begin(self, grant_id: str, order: GivenOrder) -> None:
        """Suspends or resumes what runs for a grant; a report says what came of it."""
        if self._orders.is_done(grant_id, order):
            self._report(rpc.NodeReport(grant_suspension=self.message(grant_id)))
        elif self._orders.put(grant_id, order):
            self._run(self._carry_out_orders(grant_id))

    async def _carry_out_orders(self, grant_id: str) -> None:
        while order := self._orders.take(grant_id):
            await self._carry_out(grant_id, order)
        self._orders.keep(self._grant_ids.values())

    async def find_contexts(self) -> None:
        """The GPUs are known: where contexts are that an earlier server had leave is found out.

        Those that are there still are to leave now. What it left in part is brought back whole.
        """
        for grant_id in {*self._grant_ids.values()}:
            sessions = self._sessions_of(grant_id)
            self._complete(grant_id)
            if not any(session.context_away for session in sessions):
                continue
            with contextlib.suppress(TimeoutError):  # then it is booked as if it stayed
                await asyncio.wait_for(self.contexts.find_out(sessions), ANSWER_SECONDS)
            self._run(self._take_off(grant_id, promised=False))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_off(self, grant_id: str, *, promised: bool) -> None:
        """The contexts of a grant that is out follow its memory; a report says so."""
        async with self.lock(grant_id):
            if grant_id in self._busy or not self.is_out(grant_id):
                return
            try:
                await self.contexts.take_off(self._sessions_of(grant_id), promised=promised)
            except Exception:
                log.exception("the contexts of grant %s", grant_id)
            if self.is_out(grant_id):
                self.on_moved(grant_id)
                self._report(rpc.NodeReport(grant_suspension=self.message(grant_id)))

    def _complete(self, grant_id: str) -> None:
        """One that is out in part goes on whole, or is suspended whole; its contexts stay."""
        if self._is_in_part(grant_id) and grant_id not in self._completing:
            self._completing.add(grant_id)
            self._run(self._bring_the_rest(grant_id))

    async def _bring_the_rest(self, grant_id: str) -> None:
        try:
            while self._is_in_part(grant_id):
                await self._carry_out(grant_id, None)
                if self._is_in_part(grant_id):
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._completing.discard(grant_id)

    async def _carry_out(self, grant_id: str, order: GivenOrder | None) -> None:
        """`order`: None where nobody gave one; all of it goes on, or its contexts stay."""
        if grant_id in self._busy and order is None:
            return
        error, suspend = "", order is not None and order.suspend
        self._busy.add(grant_id)
        try:
            async with self.lock(grant_id):
                to = order.to if order else ""
                await (self.suspend(grant_id) if suspend else self.resume(grant_id, to))
        except OrderRefused as refused:
            error = str(refused)
        except Exception as problem:
            log.exception("grant %s was not %s", grant_id, "suspended" if suspend else "resumed")
            error = f"its server failed: {problem}"
        finally:
            self._busy.discard(grant_id)
        if order:
            self._orders.finish(grant_id, order, refused=bool(error))
        elif self.is_out(grant_id):
            for session in self._sessions_of(grant_id):
                self.contexts.adopt(session)
        if error:
            self.on_moved(grant_id)
        self._report(rpc.NodeReport(grant_suspension=self.message(grant_id, error)))
        if order and self.is_out(grant_id) and not self._orders.is_busy(grant_id):
            await self._take_off(grant_id, promised=order.promised)
        self._complete(grant_id)

    def lock(self, grant_id: str) -> asyncio.Lock:
        """Held by whoever takes steps of a grant."""
        return self._locks.setdefault(grant_id, asyncio.Lock())

    async def suspend(self, grant_id: str) -> None:
        """Suspends all sessions of a grant. Raises OrderRefused: all go on."""
        sessions = await self._ready(grant_id)
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
            await self._move_all_out(grant_id, sessions)
        except Exception:
            if not swapped:  # else it comes in when it is its turn, as before
                with contextlib.suppress(OrderRefused):
                    await for_all(sessions, self._steps.wake)
            raise
        self.swapped.discard(grant_id)
        self.on_moved(grant_id)
        for session in sessions:
            standing = self._of(session)
            session.log.write(
                f"suspended: {standing.movable_mib} MiB went to the host, "
                f"{sum(standing.staying_mib)} MiB and its context stay on the GPU"
            )

    async def _move_all_out(self, grant_id: str, sessions: Sequence[Session]) -> None:
        await self._stops.stop(grant_id, sessions)
        await for_all(sessions, self._steps.plan_all)
        await self.kept.book(sessions)
        await for_all(sessions, self._steps.move_out)

    async def resume(self, grant_id: str, to: str = "") -> None:
        """Resumes all sessions of a grant, on this GPU, where one is named.

        Raises OrderRefused: all are suspended still.
        """
        sessions = await self._ready(grant_id)
        if movers := [session for session in sessions if to and gpu_of(session) != to]:
            self._check_move(grant_id, movers, to)
        if self.is_out(grant_id):
            for gpu in {to or gpu_of(s) for s in sessions if self.contexts.is_off(s)}:
                if why := self.why_closed(gpu):
                    raise OrderRefused(f"nothing comes back on GPU {gpu}: {why}")
            await self.contexts.bring_back(sessions, to)
            sessions = await self._ready(grant_id)
        moved = any(self.memory.out_by_gpu(grant_id).values())
        if moved and self.is_out(grant_id) and self.comes_in_later(grant_id):
            await for_all(sessions, self._steps.leave_to_arbiter)
            self.swapped.add(grant_id)
            self.on_moved(grant_id)
            for session in sessions:
                session.log.write("resumed: its memory comes in when it has work, and its turn")
            return
        await self._come_back(grant_id, sessions)
        self.on_moved(grant_id)
        for session in sessions:
            session.log.write("resumed")

    def _check_move(self, grant_id: str, sessions: Sequence[Session], to: str) -> None:
        """Raises OrderRefused: these of a grant's sessions cannot come back on this GPU."""
        if not self.is_out(grant_id):
            raise OrderRefused(f"grant {grant_id} is not suspended, and moves only then")
        moves = self._moves_of(sessions)
        if to not in moves.gpus:
            why = moves.why_not or f"it sees {', '.join(moves.gpus)} beside its own GPU"
            raise OrderRefused(f"grant {grant_id} does not move to GPU {to}: {why}")

    async def _come_back(self, grant_id: str, sessions: Sequence[Session]) -> None:
        self.memory.begin_coming(grant_id)
        try:
            if grant_id not in self.swapped:
                self.on_moved(grant_id)  # whoever begins meanwhile finds the room taken
            await for_all(sessions, self._steps.wake)
        except OrderRefused as refused:
            if any(self._of(session).state == RUNNING for session in sessions):
                await self._suspend_again(grant_id, sessions, refused)
            raise
        finally:
            self.memory.end_coming(grant_id)

    async def _suspend_again(
        self, grant_id: str, sessions: Sequence[Session], why: OrderRefused
    ) -> None:
        """Some of a job came back and some did not: those that did are taken out once more."""
        back = [session for session in sessions if self._of(session).state == RUNNING]
        try:
            await self._move_all_out(grant_id, back)
        except OrderRefused as again:
            raise OrderRefused(
                f"grant {grant_id} runs in part: {why}; and the rest cannot be suspended: {again}"
            ) from again

    # for others on its GPUs

    async def swap_out(self, grant_id: str, wanted: Mapping[str, int]) -> None:
        """Has at least so many MiB of a grant out, by GPU, as far as they move; it stands still.

        Raises OrderRefused: it is as it was. The caller holds the lock.
        """
        sessions = await self._ready(grant_id)
        if self.is_out(grant_id):
            return  # it is suspended, which frees more
        fresh = grant_id not in self.swapped
        self.swapped.add(grant_id)
        left = Counter(wanted)
        try:
            await self._stops.stop(grant_id, sessions)
            for session in sessions:
                await self._swap_out(session, left)
            if not any(self.memory.out_by_gpu(grant_id).values()):
                raise OrderRefused(f"nothing of grant {grant_id} can be moved off its GPUs")
        except Exception:
            if fresh:  # what finds no room any more comes in when it is its turn
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
        await self._steps.plan(session, targets)
        await self.kept.book([session])
        await self._steps.move_out(session, ARBITER)

    async def swap_in(self, grant_id: str) -> None:
        """Has all of it come in, under the lock. Raises OrderRefused: it is as it was."""
        if grant_id in self.swapped:
            await self._come_back(grant_id, await self._ready(grant_id))
            self.swapped.discard(grant_id)
        elif self.is_out(grant_id):
            raise OrderRefused(f"grant {grant_id} is suspended, and comes in when it is resumed")

    # within

    async def _ready(self, grant_id: str) -> list[Session]:
        """Its sessions, with no step under way. Raises OrderRefused."""
        sessions = self._sessions_of(grant_id)
        if not sessions:
            raise OrderRefused(f"no session of grant {grant_id} is open here")
        if opening := [session.id for session in sessions if session.opening]:
            raise OrderRefused(f"session {', '.join(opening)} is being opened; try again")
        await for_all(sessions, self._steps.finish)
        return sessions

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
        standing.take(message, _memory_of(session))
        if standing.waiter and not standing.waiter.done():
            standing.waiter.set_result(message)
            return
        # nobody here ordered it: an earlier server did
        if standing.state == STOPPED:
            self._steps.tell(session, self._steps.wake_order(session))
            return
        if standing.state == RUNNING:
            self.swap.settle(session.id, 0, standing.kept_mib)
            self.kept.look()
            if all(self._of(s).state == RUNNING for s in self._sessions_of(session.grant_id)):
                self.swapped.discard(session.grant_id)
        self.on_moved(session.grant_id)
        if session.grant_id in self.swapped:
            return
        if not self._is_busy(session.grant_id):
            told = self.message(session.grant_id, message.get("message"))
            self._report(rpc.NodeReport(grant_suspension=told))
            self._complete(session.grant_id)


async def _hold_nothing(grant_id: str, seconds: float, lasts_seconds: float) -> bool:
    return False


def _memory_of(session: Session) -> list[int]:
    return [session.vgpus[place].memory_mib for place in session.places]
