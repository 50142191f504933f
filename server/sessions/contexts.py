# SPDX-License-Identifier: Apache-2.0
"""Has suspended sessions' contexts leave their GPUs by the driver's checkpoint, and come back.

Made by sessions.lifecycle for sessions.suspending, which holds a grant's lock meanwhile: after all
of its sessions' memory has gone to the host, `take_off`; before any of it comes back,
`bring_back`. checkpoints.caller makes the calls. It promises that no context leaves that might not
come back (sessions.context_rules), that all of a grant's leave or none where that is known before,
that one whose checkpoint failed stands still as before, and that one which could not be restored
ends with the reason. What a call that got lost has done is learned from the process, by a later
server too: a session's record says that its context may be away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sluice.resources.ends import End, EndCause
from sluice.resources.suspended_contexts import ContextPlace, Stays, words
from sluice.server.checkpoints.caller import Answer, Caller, Lost, Unavailable
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.host_memory.pieces import NoSwapMemory
from sluice.server.sessions.context_rules import LEFT_MIB, Rules, left_mib, room_mib
from sluice.server.sessions.moving import exchanged, gpu_of
from sluice.server.sessions.records import Session
from sluice.server.sessions.standing import Standing
from sluice.server.sessions.suspension_steps import for_all
from sluice.server.sessions.swap_memory import Booking, SwapMemory

#: A session that stands still has no call under way.
LOCK_MS = 5000
#: For a call; the driver moves what is left at some 2 GiB a second.
CALL_SECONDS, CALL_SECONDS_PER_GIB = 30.0, 10.0
#: How long what a lost call has come to is waited for.
SETTLE_SECONDS = 30.0
#: The same of a restore on another GPU that an earlier server asked for, which takes a second.
MOVE_SETTLE_SECONDS = 10.0
LOOK_SECONDS = 0.2
MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where the context of a session that is out is; nothing decided yet: it is about to leave.

    UNKNOWN: it may be anywhere, and is booked as if it stayed.
    """

    where: ContextPlace = ContextPlace.LEAVING
    why: Stays = Stays.NONE
    note: str = ""  # what went wrong, in the driver's words
    left_mib: int = 0  # that the driver keeps in the host's memory


def stays(why: Stays, note: str = "") -> Place:
    """Of one that stays."""
    return Place(ContextPlace.STAYS, why, note)


class _Failed(Exception):
    """A call was not done; `state` is the process' from then on, "": nobody knows.

    `lost`: nobody answered it, and the driver may carry it out yet.
    """

    def __init__(self, text: str, state: str, *, lost: bool = False) -> None:
        super().__init__(text)
        self.state = state
        self.lost = lost


class Contexts:
    """Of the sessions of this server."""

    def __init__(
        self,
        caller: Caller,
        gpus: Callable[[], Sequence[LocalGpu]],
        swap: SwapMemory,
        rules: Rules,
        write: Callable[[Session], None],
        end: Callable[[Session, End], None],
    ) -> None:
        """`write` stores a session's record (raises OSError), `end` ends a session."""
        self._caller = caller
        self._gpus = gpus
        self._swap = swap
        self._rules = rules
        self._write = write
        self._end = end
        self._places: dict[str, Place] = {}
        #: What workers say, by session; sessions.suspending's.
        self.standings: Mapping[str, Standing] = {}
        #: Has a session's worker do what makes its checkpoint fast. Raises OrderRefused.
        self.prepare: Callable[[Session], Awaitable[None]] = _as_it_is
        #: Told that a session is on this GPU, and was on another.
        self.on_moved: Callable[[Session, str], None] = lambda session, gpu: None

    # what there is

    def of(self, session: Session) -> Place:
        """Where its context is."""
        return self._places.get(session.id) or Place()

    def is_off(self, session: Session) -> bool:
        """Whether it has left."""
        return self.of(session).where is ContextPlace.OFF

    def mib(self, session: Session, gpu_uuid: str) -> int:
        """What its context takes of a GPU now."""
        overhead = self._overheads().get(gpu_uuid, 0)
        return min(overhead, LEFT_MIB) if self.is_off(session) else overhead

    def mib_by_place(self, sessions: Sequence[Session]) -> list[int]:
        """What a grant's contexts take, vGPU by vGPU."""
        found = [0] * (len(sessions[0].vgpus) if sessions else 0)
        for session in sessions:
            for place in session.places:
                found[place] += self.mib(session, session.vgpus[place].gpu_uuid)
        return found

    def of_grant(self, sessions: Sequence[Session]) -> Place:
        """Of a grant: the first that says more than that it is off, else that."""
        places = [self.of(session) for session in sessions]
        for where in (ContextPlace.UNKNOWN, ContextPlace.STAYS, ContextPlace.LEAVING):
            for place in places:
                if place.where is where:
                    return place
        return places[0] if places else Place()

    def _overheads(self) -> dict[str, int]:
        return {gpu.uuid: gpu.context_overhead_mib for gpu in self._gpus()}

    def adopt(self, session: Session) -> None:
        """Of an earlier server: where its context may be away, `take_off` finds it out."""
        away = session.context_away
        where = ContextPlace.UNKNOWN if away else ContextPlace.STAYS
        self._places[session.id] = Place(where, Stays.RESTARTED)

    def leave(self, session: Session) -> None:
        """It has ended."""
        self._places.pop(session.id, None)

    def _lives(self, session: Session) -> bool:
        return session.id in self.standings

    def _put(self, session: Session, place: Place) -> None:
        if self._lives(session):
            self._places[session.id] = place

    # they leave

    async def take_off(self, sessions: Sequence[Session], *, promised: bool) -> None:
        """All of a grant that is suspended, or none. What is in the way is shown, not raised.

        `promised`: others may be given the room that they would need to come back.
        """
        if not await self.find_out(sessions):
            return  # nobody knows yet, or it has been ended
        there = [s for s in sessions if self._lives(s) and not self.is_off(s)]
        if not there:
            return
        found = self._rules.why_not(there, self.standings, self._gpus(), promised=promised)
        if found.why is Stays.NONE and not await self._book(there):
            found = replace(found, why=Stays.HOST_MEMORY)
        if found.why is not Stays.NONE:
            self._stay(there, stays(found.why, found.note))
            return
        for session in there:
            left = self._left_mib(session)
            self._put(session, Place(ContextPlace.LEAVING, left_mib=left))
        try:
            for session in there:
                self._mark(session, away=True)
            await for_all(there, self.prepare)
            await self._lock(there)
        except Unavailable as none:
            self._stay(there, stays(Stays.UNAVAILABLE, str(none)))
            return
        except (OSError, OrderRefused, _Failed) as error:
            self._stay(there, stays(Stays.FAILED, str(error)))
            return
        await asyncio.gather(*(self._take_off(session) for session in there))

    async def find_out(self, sessions: Sequence[Session]) -> bool:
        """Asks the driver for those that may be anywhere; False: of some nobody knows yet."""
        unknown = [s for s in sessions if self.of(s).where is ContextPlace.UNKNOWN]
        await asyncio.gather(*(self._find_out(session) for session in unknown))
        return not any(self.of(s).where is ContextPlace.UNKNOWN for s in unknown)

    def _left_mib(self, session: Session) -> int:
        standing = self.standings.get(session.id) or Standing()
        return left_mib(standing, self._overheads(), session)

    def _host_mib(self, session: Session) -> int:
        """The host's memory for what the driver moves there, and what the worker has moved."""
        standing = self.standings.get(session.id) or Standing()
        return standing.host_mib + self._left_mib(session)

    async def _book(self, sessions: Sequence[Session]) -> bool:
        try:
            await self._swap.book(lambda: Booking({s.id: self._host_mib(s) for s in sessions}))
        except NoSwapMemory:
            return False
        return True

    def _stay(self, sessions: Sequence[Session], place: Place) -> None:
        for session in sessions:
            before = self.of(session)
            if before.where is ContextPlace.OFF:
                continue
            self._put(session, place)
            self._unbook(session, before)
            if place.why not in (Stays.OFF, Stays.NOTHING_BOOKED):
                session.log.write(f"its context stays on the GPU: {words(place.why, place.note)}")
            if session.context_away:
                self._mark(session, away=False, strictly=False)

    def _unbook(self, session: Session, before: Place) -> None:
        if before.left_mib:
            self._swap.lower(session.id, before.left_mib)

    def _mark(self, session: Session, *, away: bool, strictly: bool = True) -> None:
        """For a later server. Raises OSError where it has to be known."""
        session.context_away = away
        if not self._lives(session):
            return  # its record is gone
        try:
            self._write(session)
        except OSError as error:
            if strictly:
                raise OSError(f"its record cannot be written: {error}") from error
            session.log.write(f"its record cannot be written: {error}")

    async def _lock(self, sessions: Sequence[Session]) -> None:
        """All, or none. Raises Unavailable, _Failed."""
        done = await asyncio.gather(
            *(self._do("lock", session, "locked") for session in sessions), return_exceptions=True
        )
        failed = [each for each in done if isinstance(each, BaseException)]
        if not failed:
            return
        for session, outcome in zip(sessions, done, strict=True):
            if not isinstance(outcome, BaseException):
                await self._unlock(session)
        raise failed[0]

    async def _take_off(self, session: Session) -> None:
        place = self.of(session)
        try:
            answer = await self._do("checkpoint", session, "checkpointed")
        except (_Failed, Unavailable) as failed:
            await self._not_taken_off(session, str(failed), getattr(failed, "state", ""))
            return
        self._put(session, replace(place, where=ContextPlace.OFF))
        session.log.write(f"its context has left the GPU: checkpoint {answer.seconds:.3f} s")

    async def _not_taken_off(self, session: Session, why: str, state: str) -> None:
        if state == "locked":
            await self._unlock(session)
        elif state == "failed":
            self._lose(session, f"the driver failed at its checkpoint: {why}")
            return
        elif state != "running":
            before = self.of(session)
            unknown = replace(before, where=ContextPlace.UNKNOWN, why=Stays.FAILED, note=why)
            self._put(session, unknown)
            return
        self._stay([session], stays(Stays.FAILED, why))

    async def _unlock(self, session: Session) -> None:
        try:
            await self._do("unlock", session, "running")
        except (_Failed, Unavailable) as failed:
            self._lose(session, f"its calls stay blocked: {failed}")

    # they come back

    async def bring_back(self, sessions: Sequence[Session], to: str = "") -> None:
        """All of a grant whose memory is about to come back.

        `to`: on this GPU, in the place of its one; sessions.moving says which these are. Raises
        OrderRefused: not now, or a session was lost by it and has been ended.
        """
        if not await self.find_out(sessions):
            raise OrderRefused(
                "the driver does not say whether its context is on its GPU; it is asked again"
            )
        away = [session for session in sessions if self.is_off(session)]
        await self._need_room(away, to)
        await for_all(away, partial(self._bring_back, to=to))
        for session in sessions:
            self._places.pop(session.id, None)

    async def _need_room(self, sessions: Sequence[Session], to: str) -> None:
        """A restore that finds no room is never made up for. Raises OrderRefused."""
        needed: dict[str, int] = {}
        software = {gpu.uuid for gpu in self._gpus() if gpu.software}
        for session in sessions:
            own = {session.vgpus[place].gpu_uuid for place in session.places}
            for gpu in {to} if to else own:
                more = self.of(session).left_mib + room_mib(software=gpu in software)
                needed[gpu] = needed.get(gpu, 0) + more
        for gpu, mib in needed.items():
            try:
                free = await self._caller.free_mib(gpu)
            except (Unavailable, Lost) as error:
                raise OrderRefused(f"its context cannot be brought back now: {error}") from None
            if free is not None and free < mib:
                raise OrderRefused(
                    f"{free} MiB of {gpu} are free, and {mib} are needed for its context to come "
                    "back safely: somebody has more of the GPU than is booked"
                )

    async def _bring_back(self, session: Session, to: str) -> None:
        began, to = time.monotonic(), to or gpu_of(session)
        try:
            if session.moving_to:
                await self._settle(session)
            if not self._is_back(session):
                await self._restore(session, to)
            await self._do("unlock", session, "running")
        except Unavailable as none:
            self._stay_put(session)
            raise OrderRefused(f"session {session.id}: {none}") from None
        except _Failed as failed:
            if failed.state == "checkpointed":  # it was not heard, or it is under way still
                if failed.lost:
                    self._put(session, replace(self.of(session), where=ContextPlace.UNKNOWN))
                else:
                    self._stay_put(session)
                raise OrderRefused(f"session {session.id}: {failed}") from None
            self._lose(session, f"the driver could not restore its context: {failed}")
            raise OrderRefused(
                f"session {session.id} has ended: the driver could not restore its context: "
                f"{failed}"
            ) from None
        self._unbook(session, self.of(session))
        self._places.pop(session.id, None)
        self._mark(session, away=False, strictly=False)
        session.log.write(f"its context is back on the GPU: {time.monotonic() - began:.3f} s")
        if gpu_of(session) != to:
            raise OrderRefused(
                f"session {session.id} is on GPU {gpu_of(session)} by an order before this one"
            )

    def _is_back(self, session: Session) -> bool:
        return self.of(session).where is ContextPlace.LEAVING

    async def _restore(self, session: Session, to: str) -> None:
        """Where it was, or on another GPU. Raises _Failed, Unavailable, OrderRefused."""
        gpus = None
        if to != (own := gpu_of(session)):
            gpus = exchanged(session.worker.record.sees, own, to)
            self._mark_moving(session, to)
        try:
            answer = await self._do("restore", session, "locked", gpus)
        except _Failed as failed:
            if failed.state != "locked":
                raise
            # a call of an earlier server was carried out meanwhile, which left it where it was
            self._stay_put(session)
            return
        self._arrive(session)
        session.log.write(f"restore {answer.seconds:.3f} s")

    async def _settle(self, session: Session) -> None:
        """An earlier call to have it elsewhere is carried out in time, or nobody has heard it."""
        if self._is_back(session):
            return
        found = await self._settled(session, "locked", "", MOVE_SETTLE_SECONDS)
        if found.state in ("locked", "running"):
            self._arrive(session)
            self._put(session, replace(self.of(session), where=ContextPlace.LEAVING))
        elif found.state == "checkpointed":
            self._stay_put(session)
        else:
            raise _Failed(found.status or "its process has ended", found.state)

    def _mark_moving(self, session: Session, to: str) -> None:
        """For a later server, before the driver is asked. Raises OrderRefused."""
        session.moving_to = to
        try:
            self._mark(session, away=True)
        except OSError as error:
            session.moving_to = ""
            raise OrderRefused(f"session {session.id}: {error}") from None

    def _stay_put(self, session: Session) -> None:
        """It was not restored anywhere."""
        if session.moving_to:
            session.moving_to = ""
            self._mark(session, away=True, strictly=False)

    def _arrive(self, session: Session) -> None:
        """The driver has restored it: on another GPU, where it was asked for that."""
        if not session.moving_to or not self._lives(session):
            return
        before = gpu_of(session)
        session.moved(session.moving_to)
        self._mark(session, away=True, strictly=False)
        session.log.write(f"its context has moved from GPU {before} to GPU {gpu_of(session)}")
        self.on_moved(session, gpu_of(session))

    # calls

    async def _find_out(self, session: Session) -> None:
        """Where a context is that may be anywhere; what is in between is ended."""
        place = self.of(session)
        try:
            answer = await self._caller.state(session.worker.record)
        except (Unavailable, Lost) as error:
            self._put(session, replace(place, note=str(error)))
            return
        if answer.state == "checkpointed":
            self._found_off(session)
        elif answer.state in ("locked", "running"):
            self._arrive(session)
            if answer.state == "locked" and not await self._unlock_found(session):
                self._found_off(session)
                return
            self._unbook(session, place)
            self._put(session, Place())
        elif answer.state == "failed":
            self._lose(session, "the driver says that its checkpoint has failed")

    def _found_off(self, session: Session) -> None:
        """An earlier call to restore it may be under way: bring_back waits for that."""
        self._put(session, Place(ContextPlace.OFF, left_mib=self._left_mib(session)))
        if self._lives(session):
            self._swap.adopt(session.id, self._host_mib(session))

    async def _unlock_found(self, session: Session) -> bool:
        """False: it was about to leave by an earlier call, and has left."""
        try:
            await self._do("unlock", session, "running")
        except (_Failed, Unavailable) as failed:
            state = getattr(failed, "state", "")
            if state == "locked":
                state = (await self._settled(session, "checkpointed", "", SETTLE_SECONDS)).state
            if state == "checkpointed":
                return False
            self._lose(session, f"its calls stay blocked: {failed}")
        return True

    async def _do(
        self, what: str, session: Session, wanted: str, gpus: Mapping[str, str] | None = None
    ) -> Answer:
        """A call, until it is known what came of it. Raises _Failed, Unavailable."""
        seconds = CALL_SECONDS + CALL_SECONDS_PER_GIB * self.of(session).left_mib / MIB_PER_GIB
        lock_ms = LOCK_MS if what == "lock" else 0
        is_lost = False
        try:
            with self._swap.moving():
                answer = await self._caller.call(
                    what, session.worker.record, seconds, lock_ms, gpus
                )
        except Lost as lost:
            is_lost = True
            most = LOCK_MS / 1000 + LOOK_SECONDS if what == "lock" else SETTLE_SECONDS
            answer = await self._settled(session, wanted, str(lost), most)
        if answer.is_gone:
            raise _Failed("its process has ended", "")
        if answer.status:
            raise _Failed(f"{what}: {answer.status}", answer.state, lost=is_lost)
        return answer

    async def _settled(self, session: Session, wanted: str, why: str, most: float) -> Answer:
        """What a lost call comes to: the driver carries it out in time, or has not heard of it."""
        end, answer = time.monotonic() + most, Answer(why, "", 0.0)
        while time.monotonic() < end:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                now = await self._caller.state(session.worker.record)
            except Lost:
                continue
            if now.state == wanted:
                return replace(now, status="")
            if now.is_gone or now.state == "failed":
                return replace(now, status=now.status or why)
            answer = replace(now, status=why)
        return answer

    def _lose(self, session: Session, why: str) -> None:
        text = f"it could not be suspended or resumed: {why}"
        self._end(session, End(EndCause.SUSPENSION_FAILED, text))


async def _as_it_is(session: Session) -> None:
    del session
