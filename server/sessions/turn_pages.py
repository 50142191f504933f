# SPDX-License-Identifier: Apache-2.0
"""The pages by which workers and the arbiter hand turns on the GPUs to and fro.

Used by sessions.registry and sessions.opening; started by service where [throttle] has it. It
makes a page and a bell for each session, keeps descriptors of both, and tells the arbiter
(native/arbiter/) of every session: again after each connection, as the arbiter may have been
started anew. What each grant has had is asked of the arbiter; nobody here reads a page. A session
without one, or without an arbiter, runs as if it was alone on its GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sluice.config.peer_lines import SERVER as PEERS
from sluice.config.server_gpus import ThrottleSection
from sluice.protocol.control import ARBITER_SENT
from sluice.protocol.frames import (
    TURN_PAGE_BOUNDED_AT,
    TURN_PAGE_BYTES,
    TURN_PAGE_MAGIC,
)
from sluice.resources.vgpu_request import Sharing, turns_of
from sluice.server.sessions.records import Session, largest_share
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerStarter
from sluice.server.workers.session_start import TurnPage
from sluice.server.workers.standing_process import StandingKind, StandingProcess

KIND = StandingKind("arbiter", ARBITER_SENT, "shares of compute are not kept")
MS_PER_SECOND = 1000
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(slots=True)
class _Place:
    session: Session
    turns: TurnPage


@dataclass(slots=True)
class _Hold:
    """What a grant's sessions are told; on the clock of time.monotonic()."""

    still: asyncio.Future[None]  # they stand still
    until: float


class TurnPages:
    """The sessions of this host whose time on the GPUs is divided."""

    def __init__(
        self,
        section: ThrottleSection,
        starter: WorkerStarter,
        run_dir: Path,
        log_dir: Path,
        there: Callable[[bool], None] = lambda is_there: None,
    ) -> None:
        """`there` is told when the arbiter comes and goes."""
        self._section = section
        self._places: dict[str, _Place] = {}
        self._there = there
        #: Of sessions.residency, where memory moves: what a session's is to the arbiter, how much
        #: there is, and who is told of what is to move.
        self.memory_of: Callable[[Session], dict[str, str]] = lambda session: {}
        self.settings_of_memory: Callable[[], list[Message]] = list
        self.on_move: Callable[[Message], None] = lambda message: None
        #: Whether one that begins asks for all that it takes, as more is promised than there is:
        #: the arbiter may hear of it late.
        self.asks_at_first: Callable[[Session], bool] = lambda session: False
        self._holds: dict[str, _Hold] = {}  # by grant
        self.arbiter = StandingProcess(
            KIND,
            starter,
            run_dir,
            log_dir,
            self._hear,
            self._tell_everything,
            lambda: there(False),
        )

    def make(self, session: Session) -> TurnPage:
        """A page for a session that begins; its descriptors stay this object's. Raises OSError."""
        turns = make_page(session.id)
        self._places[session.id] = _Place(session, turns)
        if self.asks_at_first(session):
            bounded = (1 << len(session.places)) - 1
            os.pwrite(turns.page, struct.pack("<I", bounded), TURN_PAGE_BOUNDED_AT)
        return turns

    def begin(self, session: Session) -> None:
        """The session's worker has its page."""
        if place := self._places.get(session.id):
            self._join(place)

    def adopt(self, session: Session, turns: TurnPage | None) -> None:
        """A session of an earlier server, with what its worker showed (None: it has no page)."""
        if turns:
            self._places[session.id] = _Place(session, turns)
            self._join(self._places[session.id])

    async def found(self, seconds: float) -> None:
        """Waits a while for the arbiter: what a server tells first is better whole."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.arbiter.connected.wait(), seconds)

    def leave(self, session_id: str) -> None:
        """The session's worker has ended, or never had a session."""
        if place := self._places.pop(session_id, None):
            self.arbiter.tell(Message("leave", {"id": session_id}))
            _close(place.turns)

    def resize(self, sessions: Iterable[Session]) -> None:
        """Sessions of a grant have other shares."""
        for session in sessions:
            if session.id in self._places:
                self.arbiter.tell(
                    Message("share", {"tenant": session.grant_id, **self._share(session)})
                )

    def sessions(self) -> list[Session]:
        """Those that the arbiter knows."""
        return [place.session for place in self._places.values()]

    def join_all(self) -> None:
        """Tells the arbiter of every session, as it may know none."""
        for place in self._places.values():
            self._join(place)

    def join_again(self, grant_id: str) -> None:
        """Something is otherwise with a grant's memory than the arbiter was told."""
        for place in self._places.values():
            if place.session.grant_id == grant_id and not place.session.opening:
                self._join(place)

    def move(self, session: Session) -> None:
        """A session that stands still is on other GPUs than before: to the arbiter it is new."""
        if place := self._places.get(session.id):
            self.arbiter.tell(Message("leave", {"id": session.id}))
            self._join(place)

    async def hold(self, grant_id: str, seconds: float, lasts_seconds: float) -> bool:
        """Has the sessions of a grant come to a consistent cut, and gives them no turn.

        Waits so many seconds for that; false: they have not, or there is no arbiter. Until go_on(),
        or for `lasts_seconds`: a server that ends keeps nobody held. One caller at a time of each
        grant.
        """
        if not self.arbiter.is_connected:
            return False
        still = asyncio.get_running_loop().create_future()
        self._holds[grant_id] = _Hold(still, time.monotonic() + lasts_seconds)
        self._tell_hold(grant_id)
        try:
            await asyncio.wait_for(still, seconds)
        except TimeoutError:
            return False
        return True

    def go_on(self, grant_id: str) -> None:
        """The sessions of a grant have turns again."""
        if self._holds.pop(grant_id, None):
            self.arbiter.tell(Message("hold", {"tenant": grant_id, "for_ms": "0"}))

    def _tell_hold(self, grant_id: str) -> None:
        left = self._holds[grant_id].until - time.monotonic()
        if left > 0:
            lasts = {"tenant": grant_id, "for_ms": str(int(left * MS_PER_SECOND))}
            self.arbiter.tell(Message("hold", lasts))

    async def figures(self) -> Message:
        """What each grant has had, and how long it waited; raises NoAnswerError."""
        return await self.arbiter.ask(Message("figures"), "figures")

    def let_go(self) -> None:
        """The server stops: the arbiter and the workers go on."""
        self.arbiter.close()
        for place in self._places.values():
            _close(place.turns)
        self._places.clear()

    def _share(self, session: Session) -> dict[str, str]:
        """A tenant's share is one number."""
        sharing = turns_of(self._section.sharing, *(vgpu.sharing for vgpu in session.vgpus))
        percent = largest_share(session.vgpus)
        return {"percent": str(percent), "capped": str(int(sharing is Sharing.CAPPED))}

    def _join(self, place: _Place) -> None:
        session, turns = place.session, place.turns
        if session.worker.exited:
            return
        gpus = dict.fromkeys(session.vgpus[number].gpu_uuid for number in session.places)
        fields = {"id": session.id, "tenant": session.grant_id, "gpus": ",".join(gpus)}
        self.arbiter.tell(
            Message("join", {**fields, **self._share(session), **self.memory_of(session)}),
            [turns.page, turns.bell, session.worker.pidfd],
        )

    def _tell_everything(self) -> None:
        settings = {
            "period_ms": str(self._section.period_ms),
            "together": str(int(self._section.run_together)),
        }
        self.arbiter.tell(Message("settings", settings))
        for message in self.settings_of_memory():
            self.arbiter.tell(message)
        self.join_all()
        for grant_id in self._holds:  # the arbiter before this one may have been killed meanwhile
            self._tell_hold(grant_id)
        self._there(True)

    def _hear(self, message: Message) -> None:
        if message.verb == "move":
            self.on_move(message)
        elif message.verb == "still":
            hold = self._holds.get(message.get("tenant"))
            if hold and not hold.still.done():
                hold.still.set_result(None)
        elif message.verb == "error":
            text = "the arbiter refused: session %s: %s"
            name, why = message.get("id"), message.get("message")
            PEERS.warning("arbiter refuses", name, text, name, why)


def make_page(session_id: str) -> TurnPage:
    """A page on which nothing has been said, and its bell; raises OSError."""
    page = os.memfd_create(f"sluice-turns-{session_id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(page, TURN_PAGE_BYTES)
        os.pwrite(page, struct.pack("<Q", TURN_PAGE_MAGIC), 0)
        fcntl.fcntl(page, fcntl.F_ADD_SEALS, SEALS)
        return TurnPage(page, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    except OSError:
        os.close(page)
        raise


def _close(turns: TurnPage) -> None:
    for descriptor in (turns.page, turns.bell):
        with contextlib.suppress(OSError):
            os.close(descriptor)
