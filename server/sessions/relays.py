# SPDX-License-Identifier: Apache-2.0
"""Sessions of this host whose GPUs are another host's: each has a sluice-relay process here.

Used by sessions.lifecycle, which asks the controller, and by sessions.adoption. Such a session is
the GPU node's server's to account for; here it is a client's slot, or its connection
(sessions.relayed_streams), and the process that carries its bytes. Where its node lets a session
outlive its connections, a relay that has lost its own, or has been killed, is followed by another,
which goes on in the same slot; the server on the node learns no key for that (docs/protocol.md,
"When a connection breaks"). It promises that a session's end, however it came, leaves no process,
no descriptor and no cgroup.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.listeners.resumption import key_of
from sluice.server.sessions.client_watch import forget_client, unwatch_client, watch_client
from sluice.server.sessions.farewell import NotHeardError, say_ended
from sluice.server.sessions.open_session import RefusalError, with_key
from sluice.server.sessions.opening import (
    SessionGrant,
    SessionRequest,
    end_unopened,
    new_session,
)
from sluice.server.sessions.records import (
    ENDED_UNSEEN,
    NOT_STARTED,
    RelayedWay,
    Session,
    StreamWay,
)
from sluice.server.sessions.relay_processes import RelayProcesses
from sluice.server.sessions.relayed_streams import RelayedStreams
from sluice.server.workers.packets import close_descriptor
from sluice.server.workers.process import WorkerStarter
from sluice.server.workers.session_start import (
    Channel,
    ConnectedSocket,
    RelayStart,
    Resuming,
    SharedRegion,
)
from sluice.server.workers.worker import Worker, WorkerError

log = logging.getLogger("sluice.server")

#: Between two tries to start a relay that follows another.
AGAIN_SECONDS = 0.5
#: Each relay that follows has so many attempts at a connection, each with a number of its own.
ATTEMPTS = 1 << 16
MOST_FOLLOWING = (1 << 16) - 2
#: As server.conf bounds it: it is another node's word.
MOST_GRACE_SECONDS = 86400
#: Ends that a session's node gave, or that it has had before its relay.
NODES_OWN = (EndCause.NODE_LOST, EndCause.WORKER_FAILED, EndCause.NOT_TAKEN)
#: For the connection, the handshake, and a worker that has to be started there.
OPEN_SECONDS = 150.0


class Relays:
    """Every relayed session whose client is on this host."""

    def __init__(
        self,
        starter: WorkerStarter,
        run_dir: Path,
        log_dir: Path,
        ended: Callable[[Session, End], None],
        ca_file: Path | None = None,
    ) -> None:
        """`ended` is told of each session's end; `ca_file`: whose certificates data ports show."""
        self._processes = RelayProcesses(starter, run_dir, log_dir, ca_file)
        self.files = self._processes.files
        self._told = ended
        self.sessions: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.streams = RelayedStreams(self._processes, self._ended, self._in_background)

    async def open(
        self, request: SessionRequest, grant: SessionGrant, target: rpc.RelayTarget
    ) -> Session:
        """Has a granted session carried to its node; raises RefusalError.

        The grant and the descriptors are the caller's: the session keeps copies.
        """
        try:
            with ExitStack() as undo:
                session = await self._with_relay(request, grant, target, undo)
                try:
                    await self._start(session, request, target)
                    session.opening = False
                    self._processes.write(session)
                except (WorkerError, OSError) as error:
                    session.log.write(f"did not start: {error}", logging.ERROR)
                    raise
                undo.pop_all()  # it is open
                if session.worker.is_broken:
                    self._broken(session)
        except (WorkerError, OSError) as error:
            said = error.status if isinstance(error, WorkerError) else 0
            status = said or CudaStatus.OPERATING_SYSTEM
            text = f"session {grant.granted.session_id} on {target.node}: {error}"
            raise RefusalError(status, text) from error
        requester, relay = session.requester, session.worker
        session.log.write(
            f"started: {requester.describe()} over {requester.channel}, relay {relay.id} pid "
            f"{relay.record.pid} to node {target.node} at {target.address}:{target.port}"
        )
        return session

    async def _with_relay(
        self,
        request: SessionRequest,
        grant: SessionGrant,
        target: rpc.RelayTarget,
        undo: ExitStack,
    ) -> Session:
        """The session with a relay that is ready and followed; raises WorkerError, OSError."""
        requester = request.requester.copy()
        undo.callback(requester.close)
        relay = await self._processes.start()
        undo.callback(relay.end, NOT_STARTED, grace=0)
        own = replace(request, requester=requester)
        session = new_session(self._processes.log_dir, own, grant, relay, relayed_to=target.node)
        self._processes.write(session)
        self._follow(session)
        undo.pop_all()  # all of it comes back with the relay's end from now on
        undo.push(partial(end_unopened, session))
        return session

    async def _start(
        self, session: Session, request: SessionRequest, target: rpc.RelayTarget
    ) -> None:
        """Has the relay carry the session; raises WorkerError, OSError."""
        channel, resumable = request.channel, True
        if isinstance(channel, ConnectedSocket):
            # of its terms the node's are those that count
            channel, resumable = ConnectedSocket(channel.descriptor), bool(session.resume_key)
        with ExitStack() as opened:
            start = RelayStart(
                session_id=session.id,
                grant_id=session.grant_id,
                channel_name=session.requester.channel,
                channel=channel,
                request=with_key(request.asked, target.key, resumable=resumable),
                node=target.node,
                address=target.address,
                port=target.port,
                tls=target.tls,
                ca=self._processes.open_ca(opened) if target.tls else -1,
                client_pidfd=session.requester.pidfd,
            )
            started = await session.worker.start_session(start, OPEN_SECONDS)
        if grace := min(started.number("network_grace_seconds"), MOST_GRACE_SECONDS):
            self._outlive(session, request.channel, target, grace)

    def _outlive(
        self, session: Session, channel: Channel, target: rpc.RelayTarget, grace_seconds: int
    ) -> None:
        """It outlives its relay from now on."""
        key = key_of(target.key, session.id).hex()
        if isinstance(channel, SharedRegion):
            session.resume_key = key
            session.way = RelayedWay(
                address=target.address,
                port=target.port,
                tls=target.tls,
                grace_seconds=grace_seconds,
                region_bytes=channel.region_bytes,
                slot=channel.slot,
                slots=channel.slots,
                region_id=channel.region_id,
                region=os.dup(channel.descriptor),
            )
            return
        session.way = StreamWay(
            address=target.address,
            port=target.port,
            tls=target.tls,
            grace_seconds=grace_seconds,
            closed_seconds=channel.resume.closed_seconds if channel.resume else 0,
            key=key,
        )
        self.streams.follow(session, session.way)

    async def _go_on(self, session: Session, way: RelayedWay) -> None:
        """Has another relay carry a session whose last one cannot; it ends if none can."""
        session.disconnected_since = session.disconnected_since or time.time()
        began = time.monotonic()
        while session.why is None:
            left = way.grace_seconds - (time.monotonic() - began)
            if left <= 0 or way.relays >= MOST_FOLLOWING:
                session.why = End(EndCause.NODE_LOST, "no relay could go on with it in time")
                break
            try:
                await asyncio.sleep(min(left, way.pace.wait_seconds(time.monotonic())))
                await self._follow_up(session, way, left)
            except (WorkerError, OSError) as error:
                session.log.write(f"no other relay goes on with it: {error}", logging.WARNING)
                # a relay that was told, or that found the session over, has said why it ends
                session.why = session.why or session.worker.why
            else:
                session.disconnected_since = 0.0
                return
            if session.why is None:
                await asyncio.sleep(AGAIN_SECONDS)
        if session.worker.exited:
            self._ended(session, session.why)
        else:
            session.worker.on_exit = partial(self._exited, session)
            session.worker.end(session.why)

    async def _follow_up(self, session: Session, way: RelayedWay, seconds: float) -> None:
        """One relay more; raises WorkerError, OSError."""
        before = session.worker
        if way.region < 0:
            way.region = before.take_region()
        if way.region < 0:
            raise WorkerError(f"relay {before.id} has not shown its client's region")
        relay = await self._processes.start(session.log.path)
        if session.why:
            relay.end(session.why, grace=0)
            raise WorkerError("it ends")
        session.worker = relay
        way.relays += 1
        self._processes.write(session)
        relay.on_exit = lambda worker, _: self._processes.forget(worker)  # start_session() hears it
        self._processes.replace(before)
        channel = SharedRegion(way.region, way.region_bytes, way.slot, way.slots, way.region_id)
        resuming = Resuming(session.resume_key, way.relays * ATTEMPTS, int(seconds) or 1)
        await self._processes.go_on(session, way, channel, resuming, seconds + OPEN_SECONDS)
        if relay.exited:
            raise WorkerError(f"relay {relay.id} ended as soon as it went on")
        relay.on_exit = partial(self._exited, session)
        relay.follow_break(partial(self._broken, session))

    def adopt(self, session: Session, *, is_broken: bool = False) -> None:
        """Takes over a session that an earlier server opened; `is_broken`: its relay waits."""
        self._processes.adopt(session.worker)
        if isinstance(session.way, RelayedWay):
            session.way.region = session.worker.take_region()
        if other := self.sessions.get(session.id):
            # the earlier server ended between starting one relay and letting the other go
            last = session if is_broken or _is_older(session, other) else other
            self._processes.replace(last.worker)
            now, before = session.way, other.way
            if isinstance(now, RelayedWay) and isinstance(before, RelayedWay) and now.region < 0:
                now.region, before.region = before.region, -1
            forget_client(last)
            if last is session:
                return
        self._follow(session)
        session.log.write(f"adopted: {session.requester.describe()}, relay {session.worker.id}")
        if is_broken:
            self._broken(session)
        if session.requester.channel == "shm" and session.requester.pidfd < 0:
            session.end(ENDED_UNSEEN)

    def let_go(self) -> None:
        """The server stops: sessions go on without it."""
        for task in self._tasks:
            task.cancel()
        for session in self.sessions.values():
            unwatch_client(session)
            session.worker.let_go()

    def _follow(self, session: Session) -> None:
        self.sessions[session.id] = session
        if session.requester.channel == "vsock":
            way = session.way if isinstance(session.way, StreamWay) else None
            self.streams.follow(session, way)
            return
        session.worker.on_exit = partial(self._exited, session)
        session.worker.follow_break(partial(self._broken, session))
        watch_client(session)

    def _broken(self, session: Session) -> None:
        """Its relay has lost its connection."""
        if isinstance(session.way, RelayedWay) and session.why is None and not session.opening:
            self._begin_to_go_on(session)

    def _exited(self, session: Session, worker: Worker, why: End) -> None:
        """Its relay has ended; one that did so without a word was killed, and is followed."""
        goes_on = isinstance(session.way, RelayedWay) and not session.opening
        if goes_on and worker.why is None and session.why is None:
            session.log.write(f"relay {worker.id} ended without a word; another goes on with it")
            self._processes.forget(worker)
            self._begin_to_go_on(session)
        else:
            self._ended(session, session.why or why)

    def _begin_to_go_on(self, session: Session) -> None:
        assert isinstance(session.way, RelayedWay)
        # from now on nobody else hears of its relay
        session.worker.on_exit = lambda worker, _: self._processes.forget(worker)
        session.worker.follow_break(None)
        self._in_background(self._go_on(session, session.way))

    def _ended(self, session: Session, why: End) -> None:
        if self.sessions.pop(session.id, None) is None:
            return
        forget_client(session)
        self.streams.forget(session)
        if isinstance(session.way, RelayedWay):
            close_descriptor(session.way.region)
            session.way.region = -1
        if session.way and why.cause not in NODES_OWN:
            self._in_background(self._tell_node(session, session.way))
        self._processes.forget(session.worker)
        session.log.write(f"ended: {why}")
        session.gone.set()
        self._told(session, why)

    async def _tell_node(self, session: Session, way: RelayedWay | StreamWay) -> None:
        """Else it waits for a client that does not come back."""
        key = bytes.fromhex(way.key if isinstance(way, StreamWay) else session.resume_key)
        try:
            await say_ended(session.id, session.relayed_to, way, key, self._processes.ca_file)
        except (NotHeardError, ssl.SSLError) as error:
            session.log.write(f"its node does not hear of its end: {error}", logging.WARNING)

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_older(session: Session, other: Session) -> bool:
    """Whether another relay follows this one's: where a client has a connection, neither waits."""
    one, two = session.way, other.way
    return isinstance(one, StreamWay) and isinstance(two, StreamWay) and one.relays < two.relays
