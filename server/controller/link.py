# SPDX-License-Identifier: Apache-2.0
"""This server's connection to the controller: the registration stream and the grant calls.

Used by service and sessions.lifecycle. It owns the gRPC channels and reconnects for ever, whoever
started first; each time it reports what really runs here. Of several controllers it finds the one
that leads: any other names it, and where none answers the next address is tried. It promises that a
grant whose answer was lost, or whose requester is gone, is given back, and that one which is ended
while its session is still being made does end.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from sluice.config.log_ids import METADATA_KEY, new_request_id
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End
from sluice.resources.vgpu_request import Sharing
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc
from sluice.server.controller.orders import GrantEnds, Orders, ServerSide
from sluice.server.controller.tls import ControllerCredentials
from sluice.server.sessions.open_session import RefusalError

log = logging.getLogger("sluice.server")

RETRY_SECONDS = 0.25
RETRY_MOST_SECONDS = 2.0
TURN_SECONDS = 0.01
COMPLAIN_EVERY_SECONDS = 30.0
SILENT_BEATS = 4
VIEW_SECONDS = 5.0
LEADER_KEY = "sluice-leader"  # in the trailing metadata of a controller that does not lead


@dataclass(frozen=True, slots=True)
class GrantedVgpu:
    """A slice of a GPU of this node."""

    gpu_uuid: str
    memory_mib: int
    compute_percent: int
    sharing: Sharing = Sharing.AUTO

    @classmethod
    def of(cls, vgpu: rpc.Vgpu) -> GrantedVgpu:
        """As the controller says it."""
        sharing = Sharing.heard(vgpu.sharing)
        return cls(vgpu.gpu_uuid, vgpu.memory_mib, vgpu.compute_percent, sharing)

    @property
    def message(self) -> rpc.Vgpu:
        """As the controller is told it."""
        return rpc.Vgpu(
            gpu_uuid=self.gpu_uuid,
            memory_mib=self.memory_mib,
            compute_percent=self.compute_percent,
            sharing=self.sharing.said,
        )


@dataclass(frozen=True, slots=True)
class OtherNode:
    """Another node that a session's client has vGPUs of; `first_vgpu` is the first of these."""

    first_vgpu: int
    session_id: str
    address: str
    port: int
    tls_name: str  # "": its data port has no TLS
    key: str = field(repr=False)  # hexadecimal; of the two sessions alone

    @classmethod
    def of(cls, message: rpc.OtherNode) -> OtherNode:
        """As the controller told it."""
        return cls(
            message.first_vgpu,
            message.session_id,
            message.address,
            message.port,
            message.tls_name,
            message.key,
        )


@dataclass(frozen=True, slots=True)
class LocalGrant:
    """What the controller granted to a client of this server."""

    grant_id: str
    session_id: str
    request_id: str
    vgpus: tuple[GrantedVgpu, ...]
    relay: rpc.RelayTarget | None = None  # where they are, if not here
    #: Where its client has vGPUs of other nodes, too: how many in all, and which is the first here.
    all_vgpus: int = 0
    first_vgpu: int = 0
    others: tuple[OtherNode, ...] = ()
    #: And of the grant: how many it has in all, and which of them these are.
    grant_vgpus: int = 0
    grant_places: tuple[int, ...] = ()


class ControllerLink:
    """The connection to the controller, or to the one of several that leads."""

    def __init__(
        self,
        targets: Sequence[str],
        side: ServerSide,
        wait_seconds: float,
        credentials: ControllerCredentials | None = None,
    ) -> None:
        self._credentials = credentials or ControllerCredentials()
        self._targets = list(targets)
        self._target = self._targets[0]
        self._side = side
        self._wait_seconds = wait_seconds
        self._connected = asyncio.Event()
        self._reports: asyncio.Queue[rpc.NodeReport | None] = asyncio.Queue()
        self._pending: set[str] = set()
        self._ends = GrantEnds(side.end_grant)
        self._orders = Orders(side, self._ends, self.report)
        self._unasked: list[
            tuple[float, object]
        ] = []  # requests that nobody was asked yet, oldest first
        self._asked: dict[grpc.aio.Call, str] = {}  # who was asked, by the call
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stub = self._stub_of(self._target)
        self._changed_since_inventory = False
        self._hung_up = False
        self._streams = 0  # how many there have been
        self._last_order = 0.0
        self._last_complaint = -COMPLAIN_EVERY_SECONDS
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_connected(self) -> bool:
        """Whether the controller has welcomed this server."""
        return self._connected.is_set()

    async def run(self) -> None:
        """Keeps the registration stream open, for ever."""
        self._in_background(self._orders.serve_hand_overs())
        delay = RETRY_SECONDS
        while True:
            leader = ""
            try:
                await self._stream()
            except grpc.aio.AioRpcError as error:
                leader = _leader_named(error)
                if not leader:
                    self._complain(error.details() or error.code().name)
            except Exception:
                log.exception("the controller's stream ended with an error")
            finally:
                was_connected = self._connected.is_set()
                self._connected.clear()
            if was_connected:
                delay = RETRY_SECONDS
                log.warning("the controller at %s is gone; sessions go on", self._target)
            self._turn_to(leader)
            for call, target in list(self._asked.items()):
                if target != self._target:
                    call.cancel()  # whoever was asked may be paused and never answer
            if len(self._targets) > 1:
                delay = RETRY_SECONDS  # one of them leads within seconds
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, RETRY_MOST_SECONDS)

    def _turn_to(self, leader: str) -> None:
        """The leader's address if one was named, else the next of the list."""
        if leader and leader != self._target:
            self._target = leader
        elif self._target in self._targets:
            place = self._targets.index(self._target) + 1
            self._target = self._targets[place % len(self._targets)]
        else:
            self._target = self._targets[0]

    def _stub_of(self, target: str) -> pool_pb2_grpc.PoolAsyncStub:
        if target not in self._channels:
            self._channels[target] = self._credentials.channel(target)
        return pool_pb2_grpc.PoolStub(self._channels[target])

    async def close(self) -> None:
        """Hangs up."""
        for task in list(self._tasks):
            task.cancel()
        self._orders.close()
        for channel in self._channels.values():
            await channel.close(grace=None)

    def report(self, report: rpc.NodeReport) -> None:
        """Reports a change; without a stream it is dropped, as the next inventory shows it."""
        if self._connected.is_set():
            self._reports.put_nowait(report)
        else:
            self._changed_since_inventory = True

    def report_end(self, session_id: str, grant_id: str, why: End) -> None:
        """Reports that a session runs no more; without its id: that nothing of the grant does."""
        ended = rpc.SessionEnded(
            session_id=session_id, grant_id=grant_id, reason=why.text, cause=why.cause
        )
        self.report(rpc.NodeReport(session_ended=ended))

    def report_inventory(self) -> None:
        """Reports everything anew, when GPUs have come or gone."""
        self.report(rpc.NodeReport(inventory=self._inventory()))

    @contextlib.asynccontextmanager
    async def grant(
        self, request: rpc.GrantRequest, tell: Callable[[str], None]
    ) -> AsyncIterator[LocalGrant]:
        """Asks for a grant and holds it until the block has made it a session.

        An exception inside the block, or cancellation, gives the grant back. Raises RefusalError
        with what the client is told.
        """
        request.request_id = request.request_id or new_request_id()
        self._pending.add(request.request_id)
        settled = False
        try:
            granted = await self._ask(request, tell)
            if why := self._ends.take_early(granted.grant_id):
                raise RefusalError(CudaStatus.SYSTEM_NOT_READY, why.text)
            with self._ends.making(granted.grant_id):
                yield granted
                settled = True
        finally:
            self._pending.discard(request.request_id)
            if not settled:
                self._in_background(self._give_back(request.request_id))

    async def view(self, request: rpc.ViewRequest) -> rpc.ViewAnswer:
        """What the controller shows to a client that only looks; raises RefusalError at once."""
        try:
            async with asyncio.timeout(VIEW_SECONDS):
                await self._connected.wait()
                answer: rpc.ViewAnswer = await self._stub.View(
                    request, metadata=self._named(new_request_id())
                )
                return answer
        except TimeoutError:
            why = f"has not answered within {VIEW_SECONDS:g} s; look at sluice-controller"
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                why = "is of an older release, which knows no views: update sluice-controller"
            else:
                why = f"does not answer: {error.details()}"
        raise RefusalError(CudaStatus.SYSTEM_NOT_READY, f"the controller at {self._target} {why}")

    async def _ask(self, request: rpc.GrantRequest, tell: Callable[[str], None]) -> LocalGrant:
        patience = time.monotonic() + self._wait_seconds
        begin = time.monotonic()
        pause = 0.0
        while True:
            await self._turn(begin, patience, pause)
            pause = RETRY_SECONDS
            # asked again of a controller that came back, it keeps its age and its deadline
            request.waited_seconds = time.monotonic() - begin
            call = self._stub.RequestGrant(request, metadata=self._named(request.request_id))
            self._asked[call] = self._target
            stream = self._streams
            try:
                async for answer in call:
                    kind = answer.WhichOneof("answer")
                    if kind == "waiting":
                        tell(answer.waiting.line)
                    elif kind == "refused":
                        raise RefusalError(answer.refused.status, answer.refused.message)
                    elif stream != self._streams:
                        # from before a new inventory, at which the controller may have given its
                        # room away; if not, the same grant comes again
                        log.info("a grant request is repeated: its answer is from before")
                        break
                    else:
                        granted = answer.granted
                        vgpus = tuple(map(GrantedVgpu.of, granted.vgpus))
                        relay = granted.relay if granted.HasField("relay") else None
                        return LocalGrant(
                            granted.grant_id, granted.session_id, request.request_id, vgpus, relay
                        )
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                log.info("a grant request is repeated: another controller leads")
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INTERNAL:
                    raise RefusalError(
                        CudaStatus.UNKNOWN, f"the controller failed: {error.details()}"
                    ) from error
                log.info("a grant request is repeated: %s", error.details())
                patience = max(patience, time.monotonic() + self._wait_seconds)
            finally:
                del self._asked[call]

    async def _turn(self, begin: float, patience: float, pause: float) -> None:
        """When the controller can be asked: after it was gone, what waits longer goes first."""
        own = (begin, object())
        bisect.insort(self._unasked, own, key=lambda each: each[0])
        try:
            await asyncio.sleep(pause)
            while True:
                if not self._connected.is_set():
                    await self._wait_connected(patience)
                if self._unasked[0] is own:
                    return
                await asyncio.sleep(TURN_SECONDS)
        finally:
            self._unasked.remove(own)

    async def _wait_connected(self, until: float) -> None:
        try:
            # not wait_for, which on Python 3.11 may lose the cancellation of a client that is gone
            async with asyncio.timeout(max(0.0, until - time.monotonic()) or 0.001):
                await self._connected.wait()
        except TimeoutError:
            raise RefusalError(
                CudaStatus.SYSTEM_NOT_READY,
                f"sluice-server cannot reach the controller at {', '.join(self._targets)} (tried "
                f"for {self._wait_seconds:g} s); start sluice-controller or set [controller] in "
                "/etc/sluice/server.conf",
            ) from None

    async def _give_back(self, request_id: str) -> None:
        # without a connection nothing needs to be said: the next inventory does not name it
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._stub.ReleaseGrant(
                rpc.GrantRelease(request_id=request_id, reason="the client went away"),
                timeout=5,
                metadata=self._named(request_id),
            )

    def _named(self, request_id: str) -> tuple[tuple[str, str], ...]:
        return (*self._credentials.metadata, (METADATA_KEY, request_id))

    async def _stream(self) -> None:
        # a queue of its own: the last stream's sender may still wait at the last one
        self._reports = asyncio.Queue()
        # made before the stream opens: what is asked for later is asked for over this stream
        self._streams += 1
        first = rpc.NodeReport(inventory=self._inventory())
        self._stub = self._stub_of(self._target)
        self._credentials.renew()
        call = self._stub.Register(
            _outgoing(first, self._reports), metadata=self._credentials.metadata
        )
        self._hung_up = False
        beats: asyncio.Task[None] | None = None
        try:
            async for order in call:
                self._last_order = time.monotonic()
                kind = order.WhichOneof("order")
                if kind == "welcome":
                    log.info("joined the pool of the controller at %s", self._target)
                    self._connected.set()
                    if self._changed_since_inventory:
                        self.report_inventory()
                    seconds = max(1, order.welcome.heartbeat_seconds)
                    self._side.report_holdings()
                    beats = beats or asyncio.create_task(self._beat(seconds, call))
                else:
                    self._orders.take(order)
        except asyncio.CancelledError:
            # gRPC says so too of a call that _beat has given up
            if not self._hung_up or _is_cancelled():
                raise
        finally:
            if beats:
                beats.cancel()
            call.cancel()
            self._reports.put_nowait(None)  # the sender waits for it no longer

    async def _beat(self, seconds: int, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        beat = 0
        while True:
            await asyncio.sleep(seconds)
            beat += 1
            self._reports.put_nowait(rpc.NodeReport(heartbeat=rpc.Heartbeat(beat=beat)))
            if time.monotonic() - self._last_order > SILENT_BEATS * seconds:
                log.warning("the controller is silent; connecting anew")
                self._hung_up = True
                call.cancel()
                return

    def _inventory(self) -> rpc.Inventory:
        self._changed_since_inventory = False
        inventory = self._side.inventory()
        inventory.pending_requests.extend(self._pending)
        return inventory

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _complain(self, detail: str) -> None:
        now = time.monotonic()
        if now - self._last_complaint >= COMPLAIN_EVERY_SECONDS:
            self._last_complaint = now
            log.warning(
                "the controller at %s does not answer (%s); trying for ever",
                ", ".join(self._targets),
                detail,
            )


async def _outgoing(
    first: rpc.NodeReport, reports: asyncio.Queue[rpc.NodeReport | None]
) -> AsyncIterator[rpc.NodeReport]:
    yield first
    while (report := await reports.get()) is not None:
        yield report


def _leader_named(error: grpc.aio.AioRpcError) -> str:
    metadata: Any = error.trailing_metadata() or ()
    return next((str(value) for key, value in metadata if key == LEADER_KEY), "")


def _is_cancelled() -> bool:
    """Whether the running task is cancelled, not only a call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
