# SPDX-License-Identifier: Apache-2.0
"""The sessions whose workers run here: what each holds, what others are told of it, its end.

Filled by sessions.opening and sessions.lifecycle (those of an earlier server). From follow() on a
session ends with its worker's process and in no other way. It promises that whatever a session held
(its slot in the ledger, its user, what it shared, its client's pidfd, its cgroup) comes back then,
and that the controller hears of its begin and end.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink
from sluice.server.sessions.client_watch import forget_client, unwatch_client, watch_client
from sluice.server.sessions.code_cache import CodeCache, project_of
from sluice.server.sessions.figures import SessionFigures
from sluice.server.sessions.grant_ledgers import GrantLedgers
from sluice.server.sessions.node_links import NodeLinks
from sluice.server.sessions.records import NETWORK_CHANNELS, Session
from sluice.server.sessions.sharing import Sharing
from sluice.server.sessions.suspending import Suspensions
from sluice.server.sessions.time_reports import TimeReports
from sluice.server.sessions.turn_pages import TurnPages
from sluice.server.workers.packets import Message, close_descriptor
from sluice.server.workers.process import WorkerStarter

OUT_OF_HOST_MEMORY = (
    "the kernel ended the worker: the session used more host memory than [server] "
    "session_memory_mib of its node allows"
)


#: A break that is over by then is nobody's concern but the worker's.
SHORT_BREAK_MS = 1000


class SessionRegistry:
    """Every session whose worker runs here, by id."""

    def __init__(
        self,
        controller: ControllerLink,
        starter: WorkerStarter,
        code_cache: CodeCache | None,
        ended: Callable[[Session, End], None],
    ) -> None:
        """`ended` is told of each session's end, once everything of it is given back."""
        self._controller = controller
        self._starter = starter
        self._code_cache = code_cache
        self._told = ended
        self.sessions: dict[str, Session] = {}
        self.sharing = Sharing()
        self.sharing.is_away = self._is_away
        self.ledgers = GrantLedgers()
        self.links = NodeLinks()
        self.suspensions: Suspensions | None = None
        self.turns: TurnPages | None = None
        self.figures = SessionFigures()
        self.figures.on_heard = self._hear_connection
        self.on_opened: list[Callable[[Session], None]] = []
        self.times = TimeReports(self.sessions, self.figures, controller, lambda: self.turns)

    def of_grant(self, grant_id: str) -> list[Session]:
        """The sessions of a grant."""
        return [s for s in self.sessions.values() if s.grant_id == grant_id]

    def on_gpu(self, uuid: str) -> list[Session]:
        """The sessions that use a GPU."""
        return [
            session
            for session in self.sessions.values()
            if any(session.vgpus[place].gpu_uuid == uuid for place in session.places)
        ]

    def _is_away(self, session_id: str) -> bool:
        session = self.sessions.get(session_id)
        return session is not None and session.context_away

    def write(self, session: Session) -> None:
        """Stores what a later server needs of the session; raises OSError."""
        session.worker.record.session = session.to_record()
        self._starter.files.write(session.worker.record)

    def follow(self, session: Session, status: Message | None = None) -> None:
        """Hears of the session's worker and client from now on; its worker's end is its own.

        `status`: how a worker is that an earlier server began.
        """
        worker = session.worker
        worker.on_exit = lambda _, why: self._ended(session, why)
        self.sessions[session.id] = session
        worker.on_ended = lambda _, message: self._worker_says_ended(session, message)
        worker.on_code = lambda message, descriptor: self._code(session, message, descriptor)
        worker.follow_links(lambda message: self._link(session, message))
        self.sharing.join(session.id, session.sharing_domains(), worker)
        worker.follow_sharing(lambda message: self.sharing.take(session.id, message))
        if self.suspensions:
            self.suspensions.follow(session, status)
        watch_client(session)

    def opened(self, session: Session, seconds: float) -> None:
        """Its worker serves it, so long after it was asked to; raises OSError."""
        if self.turns:
            self.turns.begin(session)
        session.opening = False
        self.write(session)
        self.figures.begin(session)
        self.figures.started(session.requester.channel, seconds)
        self._controller.report(rpc.NodeReport(session_started=session.report()))
        for told in self.on_opened:
            told(session)

    def adopt(self, session: Session, status: Message) -> None:
        """Takes over a session of an earlier server, whose worker says how it is."""
        self.figures.begin(session, status)
        if session.part:
            self.ledgers.adopt(session.grant_id, session.ledger_slot, session.worker.take_ledger())
        if self.turns:
            self.turns.adopt(session, session.worker.take_turns())
        record = session.worker.record
        if record.uid is not None and not record.mps:
            users = self._starter.users
            users.adopt(record.id, users.key_of(session.grant_id, session.project), record.uid)
        self.follow(session, status)
        session.log.write(f"adopted: {session.requester.describe()}, worker {session.worker.id}")

    def moved(self, session: Session, gpu: str) -> None:
        """Its context is on this GPU now, and its worker, the arbiter and the figures are told."""
        places = {f"vgpu.{n}.device": gpu for n in range(len(session.places))}
        session.worker.tell(Message("moved", {"vgpus": str(len(session.places)), **places}))
        self.figures.change_gpu(session, gpu)
        if self.turns:
            self.turns.move(session)

    def let_go(self) -> None:
        """The server stops: sessions go on without it."""
        self.links.close()
        for session in self.sessions.values():
            unwatch_client(session)
            session.worker.let_go()
        if self.turns:
            self.turns.let_go()

    def _link(self, session: Session, message: Message) -> None:
        if message.verb == "link":
            self.links.dial(session, message)
            return
        # whoever dials for it hears so at once, and its key is good for nothing
        first = message.number("peer", -1)
        session.others = tuple(o for o in session.others if o.first_vgpu != first)
        try:
            self.write(session)
        except OSError as error:
            session.log.write(f"its record cannot be written: {error}", logging.ERROR)

    def _hear_connection(self, session: Session, status: Message) -> None:
        """Its worker says whether its client has a connection, and by which channel.

        Told on when that changes.
        """
        lost_ms = status.number("disconnected_ms")
        lost_ms = 0 if lost_ms < SHORT_BREAK_MS else lost_ms
        moved = self._hear_channel(session, status.get("channel"))
        if not moved and bool(lost_ms) == bool(session.disconnected_since):
            return
        session.disconnected_since = time.time() - lost_ms / 1000 if lost_ms else 0.0
        self._controller.report(
            rpc.NodeReport(
                session_connection=rpc.SessionConnection(
                    session_id=session.id,
                    disconnected_since=session.disconnected_since,
                    channel=session.requester.shown_channel,
                )
            )
        )

    def _hear_channel(self, session: Session, channel: str) -> bool:
        """Whether it goes by another channel than before: RDMA, or TCP where RDMA broke."""
        requester = session.requester
        if session.opening or channel == requester.channel or not requester.by_network:
            return False
        if channel not in NETWORK_CHANNELS:  # a worker that was taken over says what it likes
            return False
        self.figures.moved(session.id, channel)
        requester.channel = channel
        with contextlib.suppress(OSError):  # then a later server hears of it as this one did
            self.write(session)
        return True

    def _code(self, session: Session, message: Message, descriptor: int) -> None:
        project = project_of(session.requester)
        if self._code_cache is None:
            close_descriptor(descriptor)
        elif descriptor >= 0:
            self._code_cache.keep(project, descriptor)
        elif message.verb == "code_used":
            self._code_cache.used(project, message.get("name"))
        else:
            self._code_cache.damaged(project, message.get("name"))

    def _worker_says_ended(self, session: Session, message: Message) -> None:
        self.figures.hear(session.id, message)
        figures = " ".join(
            f"{key}={value}"
            for key, value in message.fields.items()
            if key not in ("reason", "cause")
        )
        session.log.write(f"the worker ends: {message.get('reason')} {figures}".rstrip())

    def _ended(self, session: Session, why: End) -> None:
        self.sessions.pop(session.id, None)
        self.times.end(session.id)
        self.figures.end(session.id)
        self.sharing.leave(session.id)
        self.links.leave(session.id)
        if self.suspensions:
            self.suspensions.leave(session)
        self.ledgers.leave(session.grant_id, session.ledger_slot)
        if self.turns:
            self.turns.leave(session.id)
        if cache := self._starter.compute_cache:
            cache.take_back(session.worker.id, session.tenant)
        self._starter.users.leave(session.worker.id)
        forget_client(session)
        if cgroups := self._starter.cgroups:
            if session.worker.why is None and cgroups.ran_out_of_memory(session.worker.id):
                why = End(EndCause.HOST_MEMORY, OUT_OF_HOST_MEMORY)
            cgroups.remove(session.worker.id)
        session.log.write(f"ended: {why}")
        self._controller.report_end(session.id, session.grant_id, why)
        session.gone.set()
        self._told(session, why)
