# SPDX-License-Identifier: Apache-2.0
"""The gRPC service that servers speak to: registration streams and grant requests.

Started by controller.service. It owns one ServerLink per connected server, through which REST
handlers send assignments and log requests. It promises that a server's newest stream is the one
that counts, and that what a server reports reaches the desk in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator

import grpc

from sluice.config.log_ids import request_id
from sluice.config.peer_lines import CONTROLLER as PEERS
from sluice.config.version import own_version
from sluice.controller.announcing import answers_for_relay
from sluice.controller.desk import GrantDesk
from sluice.controller.messages import (
    answer_message,
    gpu_of,
    holding_of,
    job_key,
    labels_of,
    machine_of,
    request_of,
    session_of,
    vgpu_messages,
)
from sluice.controller.pool.decisions import Decisions, EndOrder, Granted, Handover, ResizeOrder
from sluice.controller.pool.model import GpuKey, Node
from sluice.controller.store.store import DeposedError
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

log = logging.getLogger("sluice.controller")

#: What waits for a server that reports and does not read: a pool's worth of orders, and more.
MOST_UNREAD_ORDERS = 20_000


class ServerSilent(Exception):
    """The server's stream ended before it answered, or it did not answer in time."""


class ServerGone(Exception):
    """The server did not answer: whether it did what it was told is not known."""


class ServerLink:
    """One server's open stream."""

    def __init__(self) -> None:
        self.hands_over = False  # an older server does not
        self.orders: asyncio.Queue[rpc.Order | None] = asyncio.Queue()
        # no call of an earlier stream is answered on this one by mistake
        self._calls = itertools.count(secrets.randbits(62))
        self._assignments: dict[str, asyncio.Future[str]] = {}
        self._logs: dict[int, asyncio.Future[rpc.LogText]] = {}
        self._resizes: dict[str, asyncio.Future[str]] = {}
        self._native: dict[int, asyncio.Future[rpc.NativeDone | None]] = {}
        self._gpu_orders: dict[int, asyncio.Future[str]] = {}

    def end_grant(self, order: EndOrder) -> None:
        """Tells the server to end what it runs for a grant."""
        self.orders.put_nowait(
            rpc.Order(
                end_grant=rpc.EndGrant(
                    grant_id=order.grant_id, reason=order.reason, request_id=request_id()
                )
            )
        )

    def hand_over(self, order: Handover) -> bool:
        """Tells the server to let a GPU go, or that it is back; False if it does not know how."""
        if self.hands_over:
            self.orders.put_nowait(
                rpc.Order(
                    hand_over=rpc.HandOver(
                        gpu_uuid=order.uuid,
                        generation=order.generation,
                        back=order.back,
                        to_native=order.to_native,
                        pci_address=order.pci_address,
                    )
                )
            )
        return self.hands_over

    async def assign(self, granted: Granted, key: str, key_seconds: int, timeout: float) -> str:
        """Gives the server a session to expect; returns "" or why it will not take it."""
        session = granted.session
        taken = asyncio.get_running_loop().create_future()
        self._assignments[session.id] = taken
        self.orders.put_nowait(
            rpc.Order(
                assignment=rpc.Assignment(
                    session_id=session.id,
                    grant_id=granted.grant.id,
                    key=key,
                    key_seconds=key_seconds,
                    vgpus=vgpu_messages(granted.grant),
                    host=session.host,
                    program=session.program,
                    priority=granted.grant.priority,
                    job=granted.grant.job,
                    job_domain=granted.grant.job_domain,
                    job_processes=granted.grant.job_processes,
                    chosen=session.chosen,
                    request_id=request_id(),
                    project=granted.grant.project,
                    relay=session.relay,
                    domain_uuid=session.domain_uuid,
                    domain_name=session.domain_name,
                    client_pid=session.client_pid,
                    client_uid=session.client_uid,
                )
            )
        )
        try:
            return await asyncio.wait_for(taken, timeout)
        except TimeoutError:
            return f"it did not answer within {timeout:g} s"
        finally:
            del self._assignments[session.id]

    async def read_log(self, session_id: str, tail_bytes: int, timeout: float) -> rpc.LogText:
        """Fetches the end of a session's log from the server."""
        call = next(self._calls)
        text = asyncio.get_running_loop().create_future()
        self._logs[call] = text
        self.orders.put_nowait(
            rpc.Order(read_log=rpc.ReadLog(call=call, session_id=session_id, tail_bytes=tail_bytes))
        )
        try:
            return await asyncio.wait_for(text, timeout)
        except TimeoutError:
            return rpc.LogText(call=call, error=f"no answer within {timeout:g} s")
        finally:
            del self._logs[call]

    async def resize(self, order: ResizeOrder, timeout: float) -> str:
        """Has the server change what runs; returns "" or why it stays as it is.

        Raises ServerGone when it does not say which.
        """
        done = asyncio.get_running_loop().create_future()
        self._resizes[order.grant_id] = done
        vgpus = [
            rpc.Vgpu(
                gpu_uuid=v.gpu_uuid, memory_mib=v.memory_mib, compute_percent=v.compute_percent
            )
            for v in order.vgpus
        ]
        self.orders.put_nowait(
            rpc.Order(resize_grant=rpc.ResizeGrant(grant_id=order.grant_id, vgpus=vgpus))
        )
        try:
            return await asyncio.wait_for(done, timeout)
        except TimeoutError:
            raise ServerGone(f"its server did not answer within {timeout:g} s") from None
        finally:
            del self._resizes[order.grant_id]

    async def native(self, order: rpc.NativeOrder, timeout: float) -> rpc.NativeDone:
        """Has the server put a GPU into a VM or take it out; raises ServerSilent."""
        order.call = next(self._calls)
        done = asyncio.get_running_loop().create_future()
        self._native[order.call] = done
        self.orders.put_nowait(rpc.Order(native=order))
        try:
            answer: rpc.NativeDone | None = await asyncio.wait_for(done, timeout)
        except TimeoutError:
            raise ServerSilent(f"its server did not answer within {timeout:g} s") from None
        finally:
            del self._native[order.call]
        if answer is None:
            raise ServerSilent("the stream of its server ended")
        return answer

    def native_done(self, message: rpc.NativeDone) -> None:
        """The server's answer to native()."""
        waiter = self._native.get(message.call)
        if waiter and not waiter.done():
            waiter.set_result(message)

    async def order_gpu(self, uuid: str, *, clear: bool, timeout: float) -> str:
        """Has the server clear a GPU's fault, or check it; returns "" or why it will not."""
        call = next(self._calls)
        taken = asyncio.get_running_loop().create_future()
        self._gpu_orders[call] = taken
        order = rpc.GpuOrder(call=call, uuid=uuid, clear=clear)
        self.orders.put_nowait(rpc.Order(gpu_order=order))
        try:
            return await asyncio.wait_for(taken, timeout)
        except TimeoutError:
            return f"its server did not answer within {timeout:g} s"
        finally:
            del self._gpu_orders[call]

    def gpu_order_taken(self, message: rpc.GpuOrderTaken) -> None:
        """The server's answer to order_gpu()."""
        waiter = self._gpu_orders.get(message.call)
        if waiter and not waiter.done():
            waiter.set_result(message.error)

    def grant_resized(self, message: rpc.GrantResized) -> None:
        """The server's answer to resize()."""
        waiter = self._resizes.get(message.grant_id)
        if waiter and not waiter.done():
            waiter.set_result(message.error)

    def assignment_taken(self, message: rpc.AssignmentTaken) -> None:
        """The server's answer to assign()."""
        waiter = self._assignments.get(message.session_id)
        if waiter and not waiter.done():
            waiter.set_result(message.error)

    def log_text(self, message: rpc.LogText) -> None:
        """The server's answer to read_log()."""
        waiter = self._logs.get(message.call)
        if waiter and not waiter.done():
            waiter.set_result(message)

    def close(self) -> None:
        """Ends the stream and whoever waits for the server."""
        self.orders.put_nowait(None)
        for taken in self._assignments.values():
            if not taken.done():
                taken.set_result("its stream ended")
        for done in (*self._resizes.values(), *self._gpu_orders.values()):
            if not done.done():
                done.set_exception(ServerGone("its server's stream ended"))
        for native in self._native.values():
            if not native.done():
                native.set_result(None)
        for text in self._logs.values():
            if not text.done():
                text.set_result(rpc.LogText(error="its stream ended"))


class PoolService(pool_pb2_grpc.PoolServicer):
    """What controller/proto/pool.proto promises to servers."""

    def __init__(self, desk: GrantDesk, heartbeat_seconds: int, key_seconds: int = 60) -> None:
        self._desk = desk
        self._key_seconds = key_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self.links: dict[str, ServerLink] = {}
        # ids of requests over REST whose node is yet to take its session: what a server reported
        # before it was told cannot name it
        self.under_way: set[str] = set()

    async def Register(  # noqa: N802
        self,
        request_iterator: AsyncIterator[rpc.NodeReport],
        context: grpc.aio.ServicerContext[rpc.NodeReport, rpc.Order],
    ) -> AsyncIterator[rpc.Order]:
        """Serves one server's stream until either side ends it."""
        link = ServerLink()
        reader = asyncio.create_task(self._read(request_iterator, link, context.peer()))
        try:
            while (order := await link.orders.get()) is not None:
                yield order
        finally:
            reader.cancel()

    async def RequestGrant(  # noqa: N802
        self,
        request: rpc.GrantRequest,
        context: grpc.aio.ServicerContext[rpc.GrantRequest, rpc.GrantAnswer],
    ) -> AsyncIterator[rpc.GrantAnswer]:
        """Answers a client's request; the server cancels the call when its client is gone."""
        if request.node not in self.links:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"node {request.node} has no registration stream; open it first",
            )
        wanted = request_of(request)
        if wanted.relay:
            relaying = answers_for_relay(
                self._desk, self.links, self.under_way, wanted, self._key_seconds
            )
            async with contextlib.aclosing(relaying):
                async for message in relaying:
                    yield message
            return
        answers = self._desk.request(wanted)
        try:
            async for answer in answers:
                yield answer_message(answer)
        finally:
            await answers.aclose()

    async def ReleaseGrant(  # noqa: N802
        self,
        request: rpc.GrantRelease,
        context: grpc.aio.ServicerContext[rpc.GrantRelease, rpc.GrantReleased],
    ) -> rpc.GrantReleased:
        """Gives a grant back; doing it twice does no harm."""
        was_live = False

        def release() -> Decisions:
            nonlocal was_live
            if request.grant_id:
                grant = self._desk.pool.grants.get(request.grant_id)
                was_live = grant is not None and grant.ended is None
                return self._desk.pool.release(request.grant_id, request.reason)
            return self._desk.pool.withdraw(request.request_id, request.reason)

        await self._desk.step(release)
        return rpc.GrantReleased(was_live=was_live)

    async def _read(
        self, reports: AsyncIterator[rpc.NodeReport], link: ServerLink, peer: str
    ) -> None:
        node = ""
        try:
            async for report in reports:
                kind = report.WhichOneof("report")
                if link.orders.qsize() >= MOST_UNREAD_ORDERS:
                    text = "%s reports on and does not read its orders; closing its stream"
                    PEERS.warning("gRPC: orders unread", node or peer, text, node or peer)
                    return
                if kind == "inventory":
                    node = report.inventory.node
                    await self._register(report.inventory, link)
                elif not node:
                    text = "%s sent %s before its inventory; closing its stream"
                    PEERS.warning("gRPC: no inventory", peer, text, peer, kind)
                    return
                else:
                    self._desk.pool.seen(node)
                    self._take(node, kind, report, link)
        except asyncio.CancelledError:
            raise
        except DeposedError:
            log.info("the stream of %s ends: this controller no longer leads", node or peer)
        except Exception:
            text = "the stream of %s ended with an error"
            PEERS.exception("gRPC: a stream failed", node or peer, text, node or peer)
        finally:
            link.close()
            if node and self.links.get(node) is link:
                del self.links[node]
                del self._desk.links[node]
                self._desk.pool.disconnected(node)

    async def _register(self, inventory: rpc.Inventory, link: ServerLink) -> None:
        name = inventory.node
        if (older := self.links.get(name)) and older is not link:
            text = "node %s opened a second stream; the first is closed"
            PEERS.warning("gRPC: second stream", name, text, name)
            older.close()
        link.hands_over = inventory.hands_over
        self.links[name] = link
        self._desk.links[name] = link
        link.orders.put_nowait(
            rpc.Order(
                welcome=rpc.Welcome(
                    heartbeat_seconds=self._heartbeat_seconds, controller_version=own_version()
                )
            )
        )
        node = Node(
            name=name,
            address=inventory.data_address,
            port=inventory.data_port,
            version=inventory.version,
            vgpu_count=inventory.vgpu_count,
            labels=labels_of(inventory.labels),
            data_tls=inventory.data_tls,
        )
        await self._desk.step(
            lambda: self._desk.pool.register(
                node,
                [gpu_of(name, gpu) for gpu in inventory.gpus],
                [
                    session_of(name, session)
                    for session in inventory.sessions
                    if self._is_of(name, session.session_id, session.grant_id)
                ],
                [*inventory.pending_requests, *self.under_way],
                [job_key(hold) for hold in inventory.holds],
                {gpu.uuid for gpu in inventory.gpus if gpu.let_go},
            )
        )

    def _take(self, node: str, kind: str | None, report: rpc.NodeReport, link: ServerLink) -> None:
        # none of these is answered, so none waits for the disk: a node's ends share their commits
        pool = self._desk.pool
        if kind == "heartbeat":
            link.orders.put_nowait(
                rpc.Order(heartbeat_seen=rpc.HeartbeatSeen(beat=report.heartbeat.beat))
            )
        elif kind == "session_started":
            started = report.session_started
            if not self._is_of(node, started.session_id):
                return
            self._desk.begin(
                lambda: pool.session_started(
                    started.session_id, started.client_pid, started.channel
                )
            )
        elif kind == "session_ended":
            ended = report.session_ended
            if not self._is_of(node, ended.session_id, ended.grant_id):
                return
            self._desk.begin(
                lambda: pool.session_ended(ended.session_id, ended.grant_id, ended.reason)
            )
        elif kind == "job_held":
            pool.job_held(job_key(report.job_held), node)
        elif kind == "job_released":
            released = job_key(report.job_released)
            self._desk.begin(lambda: pool.job_released(released, node))
        elif kind == "assignment_taken":
            link.assignment_taken(report.assignment_taken)
        elif kind == "gpu_condition":
            gpu = report.gpu_condition
            self._desk.begin(
                lambda: pool.gpu_condition(GpuKey(node, gpu.uuid), gpu.fault, gpu.held, gpu.note)
            )
        elif kind == "gpu_order_taken":
            link.gpu_order_taken(report.gpu_order_taken)
        elif kind == "grant_resized":
            link.grant_resized(report.grant_resized)
        elif kind == "handed_over":
            done = report.handed_over
            key = GpuKey(node, done.gpu_uuid)
            self._desk.begin(lambda: pool.operations.handed_over(key, done.error, done.generation))
        elif kind == "native_done":
            link.native_done(report.native_done)
        elif kind == "native_holdings":
            holdings = [holding_of(each) for each in report.native_holdings.holdings]

            def reconcile() -> Decisions:
                pool.operations.attachments.report(node, holdings)
                return Decisions()

            self._desk.begin(reconcile)
        elif kind == "guest_machines":
            machines = [machine_of(node, each) for each in report.guest_machines.machines]
            self._desk.begin(lambda: pool.operations.machines.report(node, machines))
        elif kind == "log_text":
            link.log_text(report.log_text)

    def _is_of(self, node: str, session_id: str, grant_id: str = "") -> bool:
        """Whether what a node reports is its own, as far as the books know it."""
        session = self._desk.pool.sessions.get(session_id)
        grant = self._desk.pool.grants.get(session.grant_id if session else grant_id)
        found = session or grant
        if found is None or found.node == node:
            return True
        PEERS.warning(
            "gRPC: another's session",
            node,
            "node %s reported session %s of grant %s, which are of node %s; not believed",
            *(node, session_id, grant_id, found.node),
        )
        return False
