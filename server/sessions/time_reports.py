# SPDX-License-Identifier: Apache-2.0
"""Asks every second what vGPUs have had of their GPUs' time, and tells the controller.

Made by sessions.registry and run by server.service; the sums are sessions.vgpu_time's. Workers say
what they measured, the arbiter who waited. It promises that a worker or arbiter that does not
answer holds up nobody's figures but its own, that at most MOST_ASKED workers are asked in a second,
and that the controller hears of what changed only, at most once a second and before a session's
end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass

from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink
from sluice.server.sessions.figures import SessionFigures
from sluice.server.sessions.records import Session
from sluice.server.sessions.turn_pages import TurnPages
from sluice.server.sessions.vgpu_time import TenantTime, VgpuTime
from sluice.server.workers.packets import Message
from sluice.server.workers.standing_process import NoAnswerError
from sluice.server.workers.worker import WorkerError

log = logging.getLogger("sluice.server")

EVERY_SECONDS = 1.0
ANSWER_SECONDS = 0.3  # that a round waits for answers; later ones are in the next round's report
WORKER_SECONDS = 2.0
#: One that did not answer is asked again after so many rounds: what it has not read is kept for it.
SILENT_ROUNDS = 60
#: In a second. With more sessions each is asked less often, and its short window is longer.
MOST_ASKED = 200
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class _Told:
    used_us: int
    waited_us: int | None
    share_1s: float
    share_60s: float


class Told:
    """What the controller knows of each vGPU: which reports it still needs."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], _Told] = {}
        self._before: dict[tuple[str, int], _Told] = {}  # over earlier streams

    def tell_again(self) -> None:
        """There is another stream, and perhaps another controller that knows nothing."""
        self._before.update(self._told)
        self._told.clear()

    def changed(self, vgpus: Iterable[VgpuTime]) -> list[rpc.VgpuTime]:
        """The reports of those that are otherwise than was told; they are told by that."""
        reports = []
        for vgpu in vgpus:
            key = vgpu.grant_id, vgpu.place
            now = _Told(
                round(vgpu.used * MICRO),
                round(vgpu.waited * MICRO) if vgpu.waited_known else None,
                round(vgpu.share_1s, 4),
                round(vgpu.share_60s, 4),
            )
            if self._told.get(key) == now:
                continue
            self._told[key] = now
            before = self._before.get(key)
            waited_before = before.waited_us if before else None
            if waited_before is None:
                waited_before = round(vgpu.waited_before * MICRO)
            reports.append(
                rpc.VgpuTime(
                    grant_id=vgpu.grant_id,
                    number=vgpu.place,
                    used_us=now.used_us,
                    waited_us=now.waited_us,
                    share_1s=now.share_1s,
                    share_60s=now.share_60s,
                    counted_used_us=before.used_us if before else round(vgpu.before * MICRO),
                    counted_waited_us=waited_before,
                )
            )
        return reports

    def forget(self, grant_id: str, place: int) -> None:
        """It is gone."""
        self._told.pop((grant_id, place), None)
        self._before.pop((grant_id, place), None)


class TimeReports:
    """The rounds in which everybody is asked."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        figures: SessionFigures,
        controller: ControllerLink,
        turns: Callable[[], TurnPages | None],
    ) -> None:
        self._sessions = sessions
        self._figures = figures
        self._controller = controller
        self._turns = turns
        self._told = Told()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._silent: dict[str, int] = {}  # rounds for which a session is not asked
        self._next = 0  # where the next round begins
        self.on_round: list[Callable[[], None]] = []
        #: Told of the arbiter's figures, and when the controller is to be told of everything again.
        self.on_figures: Callable[[Message], None] = lambda figures: None
        self.on_told_again: Callable[[], None] = lambda: None
        #: Told of every grant whose work runs on beyond its turn, and for how many seconds.
        self.on_overdue: Callable[[str, float], None] = lambda grant_id, seconds: None

    async def run(self) -> None:
        """A round each second, for ever."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.take_round()

    async def take_round(self) -> None:
        """Asks, waits for a moment and reports what is known by then."""
        for session in self._this_round():
            self._ask(session.id, self._ask_worker(session))
        if (turns := self._turns()) and self._figures.times.vgpus:
            self._ask("", self._ask_arbiter(turns))
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=ANSWER_SECONDS)
        self._figures.times.look()
        self._report(self._figures.times.vgpus.values())
        for listener in self.on_round:
            listener()

    def tell_again(self) -> None:
        """The controller has welcomed this server: it is told of every vGPU with the next round."""
        self._told.tell_again()
        self.on_told_again()

    def end(self, session_id: str) -> None:
        """A session's worker has exited: what it had is told before that it ended."""
        vgpus = list(self._figures.times.of(session_id))
        self._report(vgpus)
        self._silent.pop(session_id, None)
        for vgpu in vgpus:
            if vgpu.sessions <= {session_id}:
                self._told.forget(vgpu.grant_id, vgpu.place)

    def _report(self, vgpus: Iterable[VgpuTime]) -> None:
        if not self._controller.is_connected:
            return  # the sums stay, and are told when it is there again
        if times := self._told.changed(vgpus):
            self._controller.report(rpc.NodeReport(vgpu_times=rpc.VgpuTimes(times=times)))

    def _this_round(self) -> list[Session]:
        for session_id, rounds in list(self._silent.items()):
            self._silent[session_id] = rounds - 1
            if rounds <= 1:
                del self._silent[session_id]
        sessions = [s for s in self._sessions.values() if not s.opening]
        if len(sessions) > MOST_ASKED:
            begin = self._next % len(sessions)
            self._next = begin + MOST_ASKED
            sessions = [*sessions[begin:], *sessions[:begin]][:MOST_ASKED]
        return [s for s in sessions if s.id not in self._asking and s.id not in self._silent]

    def _ask(self, name: str, question: Coroutine[None, None, None]) -> None:
        if name in self._asking:
            question.close()
            return
        self._asking[name] = asyncio.create_task(question)
        self._asking[name].add_done_callback(lambda _: self._asking.pop(name, None))

    async def _ask_worker(self, session: Session) -> None:
        try:
            status = await session.worker.status(WORKER_SECONDS)
        except WorkerError:
            if session.id in self._sessions:
                self._silent[session.id] = SILENT_ROUNDS
        else:
            self._figures.hear(session.id, status)

    async def _ask_arbiter(self, turns: TurnPages) -> None:
        try:
            figures = await turns.figures()
        except NoAnswerError as error:
            self._figures.times.arbiter_is_silent()
            log.debug("who waits for turns is not known: %s", error)
            return
        tenants = tenants_of(figures)
        self._figures.times.hear_arbiter(tenants)
        self.on_figures(figures)
        for grant_id, tenant in tenants.items():
            if tenant.overdue > 0:
                self.on_overdue(grant_id, tenant.overdue)


def tenants_of(figures: Message) -> dict[str, TenantTime]:
    """The arbiter's answer, by grant."""
    return {
        figures.get(f"{key}.id"): TenantTime(
            held=figures.number(f"{key}.held_us") / MICRO,
            waited=figures.number(f"{key}.waited_us") / MICRO,
            turns=figures.number(f"{key}.turns"),
            overdue=figures.number(f"{key}.overdue_us") / MICRO,
            together=figures.number(f"{key}.together_us") / MICRO,
        )
        for key in (f"tenant.{n}" for n in range(figures.number("tenants")))
    }
