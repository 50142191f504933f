# SPDX-License-Identifier: Apache-2.0
"""Relayed sessions whose clients have a connection of their own to this host: guests, by vsock.

Used by sessions.relays. A relay carries one such connection and ends with it. Where the session
outlives its connections its client comes back by another, proves to this server that it is its own
(listeners.resumption), and gets another relay, which proves the same to the node with the key that
this server has for that; the guest never learns it. Meanwhile the session waits here, for as long
as its node would, and asks the node now and then whether it is over there. A server that starts
anew while one waits knows it no more: its client is told that it is over, and its node ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial

from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.server.sessions.farewell import NotHeardError, is_over
from sluice.server.sessions.records import NOT_STARTED, Session, StreamWay
from sluice.server.sessions.relay_processes import RelayProcesses
from sluice.server.workers.session_start import ConnectedSocket, Resuming
from sluice.server.workers.worker import Worker, WorkerError

#: For the connection to the node, its proof, and RDMA before that.
RESUME_SECONDS = 60.0
LOOK_SECONDS = 0.1
LEAST_PAUSE_SECONDS = 1.0  # that one which loses its relays all the time has to wait for another
#: Between two questions to the node whether the session is over there.
FIRST_QUESTION_SECONDS, LAST_QUESTION_SECONDS = 0.2, 5.0
#: As native/api/control.yaml bounds it, less one for a second attempt.
MOST_EPOCH = 0xFFFF0000 - 1


@dataclass(slots=True)
class _Comings:
    """Of one session: its client's newest connection, and who waits for the next.

    `newest` is a descriptor of ours and its epoch; `taking` has one after another carried on.
    """

    newest: tuple[int, int] | None = None
    taking: asyncio.Task[None] | None = None
    waiting: asyncio.Task[None] | None = None

    def replace(self, newest: tuple[int, int] | None) -> None:
        """Closes what nobody has taken."""
        if self.newest:
            os.close(self.newest[0])
        self.newest = newest


class RelayedStreams:
    """Every relayed session of a client with a connection."""

    def __init__(
        self,
        processes: RelayProcesses,
        ended: Callable[[Session, End], None],
        in_background: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`ended` ends a session here; `in_background` keeps a task until it is done."""
        self._processes = processes
        self._tell_ended = ended
        self._in_background = in_background
        self._comings: dict[str, _Comings] = {}

    def follow(self, session: Session, way: StreamWay | None) -> None:
        """Its relay's end is waited for; without a way the session ends with it."""
        relay = session.worker
        if way is not None:
            self._comings.setdefault(session.id, _Comings())
            relay.follow_break(partial(self._broken, session, way))
        relay.on_exit = partial(self._exited, session, way)

    def resume(self, session: Session, descriptor: int, epoch: int) -> None:
        """Its client has another connection and has proved it; a copy of the descriptor is kept.

        Of several that come meanwhile the newest counts.
        """
        comings = self._comings.get(session.id)
        if comings is None or not isinstance(session.way, StreamWay):
            return
        comings.replace((os.dup(descriptor), epoch))
        if comings.taking is None:
            comings.taking = self._in_background(self._take(session, session.way, comings))

    def forget(self, session: Session) -> None:
        """It has ended."""
        if comings := self._comings.pop(session.id, None):
            comings.replace(None)
            if comings.waiting:
                comings.waiting.cancel()

    async def _take(self, session: Session, way: StreamWay, comings: _Comings) -> None:
        try:
            while comings.newest and session.why is None:
                await asyncio.sleep(_pause(way))
                if comings.newest and session.why is None:
                    await self._take_newest(session, way, comings)
        finally:
            comings.taking = None
            comings.replace(None)

    async def _take_newest(self, session: Session, way: StreamWay, comings: _Comings) -> None:
        assert comings.newest
        (descriptor, epoch), comings.newest = comings.newest, None
        try:
            if epoch > MOST_EPOCH:
                raise WorkerError(f"epoch {epoch} is more than {MOST_EPOCH}")
            await self._carry_on(session, way, descriptor, epoch)
        except (WorkerError, OSError) as error:
            session.log.write(f"does not go on yet: {error}", logging.WARNING)
        finally:
            os.close(descriptor)

    async def _carry_on(
        self, session: Session, way: StreamWay, descriptor: int, epoch: int
    ) -> None:
        """Another relay, by the client's new connection; raises WorkerError, OSError."""
        self._processes.replace(session.worker)
        self._wait(session, way, by_client=False)
        relay = await self._processes.start(session.log.path)
        relay.on_exit = lambda worker, _: self._processes.forget(worker)
        session.worker = relay
        way.relays += 1
        self._processes.write(session)
        try:
            resuming = Resuming(way.key, epoch, way.grace_seconds)
            channel = ConnectedSocket(descriptor)
            await self._processes.go_on(session, way, channel, resuming, RESUME_SECONDS)
        except (WorkerError, OSError) as error:
            relay.end(NOT_STARTED, grace=0)
            if isinstance(error, WorkerError) and error.status == CudaStatus.SYSTEM_NOT_READY:
                session.why = session.why or End(EndCause.NODE_LOST, str(error))
            raise
        if session.why or session.id not in self._comings:
            relay.end(session.why or NOT_STARTED, grace=0)
            return
        comings = self._comings[session.id]
        if comings.waiting:
            comings.waiting.cancel()
            comings.waiting = None
        session.disconnected_since = 0.0
        self.follow(session, way)
        session.log.write(f"goes on by relay {relay.id}, epoch {epoch}")
        if relay.exited:
            self._exited(session, way, relay, relay.why or NOT_STARTED)

    def _broken(self, session: Session, way: StreamWay) -> None:
        self._wait(session, way, by_client=session.worker.broken_by == "client")

    def _exited(self, session: Session, way: StreamWay | None, relay: Worker, why: End) -> None:
        """Its relay has ended: as it was told, for good, or with its connection."""
        self._processes.forget(relay)
        if way is None or session.why or relay.why:
            self._tell_ended(session, session.why or why)
        else:
            self._wait(session, way, by_client=False)

    def _wait(self, session: Session, way: StreamWay, *, by_client: bool) -> None:
        """Until its client comes back, or will not."""
        comings = self._comings.get(session.id)
        if comings is None or comings.waiting:
            return
        session.disconnected_since = session.disconnected_since or time.time()
        comings.waiting = self._in_background(self._await_client(session, way, by_client))

    async def _await_client(self, session: Session, way: StreamWay, by_client: bool) -> None:
        began = time.monotonic()
        grace = min(way.closed_seconds, way.grace_seconds) if by_client else way.grace_seconds
        question, pause = began, FIRST_QUESTION_SECONDS
        silence = ""
        while session.why is None:
            now = time.monotonic()
            if now - began > grace:
                session.why = _too_late(by_client, grace, silence)
            elif now >= question:
                try:
                    over = await is_over(
                        session.id, session.relayed_to, way, self._processes.ca_file
                    )
                    silence = ""
                except (NotHeardError, ssl.SSLError) as error:
                    over, silence = False, str(error)
                if over:
                    session.why = session.why or _over(session, by_client)
                question, pause = now + pause, min(2 * pause, LAST_QUESTION_SECONDS)
            else:
                await asyncio.sleep(LOOK_SECONDS)
        if session.worker.exited:
            self._tell_ended(session, session.why)
        else:
            session.worker.on_exit = partial(self._exited, session, None)
            session.worker.end(session.why)


def _pause(way: StreamWay) -> float:
    """Seconds until another relay may follow; fewer than it takes until the client is given up.

    Its node takes what was closed for the end of its program before long.
    """
    longest = max(LEAST_PAUSE_SECONDS, way.closed_seconds / 2)
    return min(longest, way.pace.wait_seconds(time.monotonic()))


def _too_late(by_client: bool, grace_seconds: int, silence: str) -> End:
    if silence:
        return End(
            EndCause.NODE_LOST, f"its connection broke, and none followed in time: {silence}"
        )
    text = f"its client did not come back within {grace_seconds} s"
    return End(EndCause.CLIENT_ENDED if by_client else EndCause.CLIENT_LOST, text)


def _over(session: Session, by_client: bool) -> End:
    if by_client:
        return End(EndCause.CLIENT_ENDED, "the client closed its session")
    where = f"node {session.relayed_to}"
    return End(EndCause.NODE_LOST, f"the session is over on {where}: its worker ended there")
