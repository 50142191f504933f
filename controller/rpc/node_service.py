# SPDX-License-Identifier: Apache-2.0
"""The gRPC service that servers speak to: registration streams and grant requests.

Started by controller.service. It owns one ServerLink per connected server, through which the REST
handlers speak to servers. It promises that a server's newest stream is the one that counts, and
that what a server reports reaches the grant service in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial

import grpc

from sluice.config.peer_lines import CONTROLLER as PEERS
from sluice.config.version import own_version
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.admission.refusals import not_a_servers
from sluice.controller.pool.decisions import Decisions, Refused
from sluice.controller.pool.grants.adoption import ReportedSession
from sluice.controller.pool.model import GpuKey, Node
from sluice.controller.rpc.announcing import answers_for_relay
from sluice.controller.rpc.messages import (
    answer_message,
    factor_of,
    gpu_of,
    holding_of,
    job_key,
    labels_of,
    machine_of,
    memory_of,
    request_of,
    session_of,
    shared_as,
    suspension_of,
    vgpu_report_of,
)
from sluice.controller.rpc.server_link import ANSWERS, NotConnected, ServerLink
from sluice.controller.rpc.viewing import preview, views_of
from sluice.controller.store.store import DeposedError
from sluice.resources.ends import End, EndCause, read_cause
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

log = logging.getLogger("sluice.controller")

#: What waits for a server that reports and does not read: a pool's worth of orders, and more.
MOST_UNREAD_ORDERS = 20_000


class PoolService(pool_pb2_grpc.PoolServicer):
    """What controller/proto/pool.proto promises to servers."""

    def __init__(
        self, grant_service: GrantService, heartbeat_seconds: int, key_seconds: int = 60
    ) -> None:
        self._grant_service = grant_service
        self._key_seconds = key_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self.links: dict[str, ServerLink] = {}
        # ids of requests over REST whose node is yet to take its session: what a server reported
        # before it was told cannot name it
        self.under_way: set[str] = set()

    def link_of(self, node: str) -> ServerLink:
        """The stream of a node's server. Raises NotConnected."""
        if (link := self.links.get(node)) is None:
            raise NotConnected(node)
        return link

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
        if refusal := not_a_servers(wanted):
            PEERS.warning("gRPC: another's job", wanted.node, "%s", refusal.message)
            yield answer_message(refusal)
            return
        if wanted.relay:
            relaying = answers_for_relay(
                self._grant_service, self.links, self.under_way, wanted, self._key_seconds
            )
            async with contextlib.aclosing(relaying):
                async for message in relaying:
                    yield message
            return
        answers = self._grant_service.request(wanted)
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
        why = End(EndCause.WITHDRAWN, request.reason)

        def release() -> Decisions:
            nonlocal was_live
            if request.grant_id:
                grant = self._grant_service.pool.grants.get(request.grant_id)
                was_live = grant is not None and grant.ended is None
                return self._grant_service.pool.lifecycle.release(request.grant_id, why)
            return self._grant_service.pool.requests.withdraw(request.request_id, why)

        await self._grant_service.step(release)
        return rpc.GrantReleased(was_live=was_live)

    async def View(  # noqa: N802
        self,
        request: rpc.ViewRequest,
        context: grpc.aio.ServicerContext[rpc.ViewRequest, rpc.ViewAnswer],
    ) -> rpc.ViewAnswer:
        """What a client of the node is shown: its sessions on other nodes, or what it would get."""
        pool, node = self._grant_service.pool, request.request.node
        if request.session_ids:
            known = (pool.sessions.get(each) for each in request.session_ids)
            own = [s for s in known if s and node in (s.node, s.relay)]
            return rpc.ViewAnswer(sessions=await views_of(pool, self.links, own))
        shown = await preview(pool, self.links, request_of(request.request))
        if isinstance(shown, Refused):
            return rpc.ViewAnswer(status=int(shown.status), message=shown.message)
        return rpc.ViewAnswer(sessions=shown)

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
                    self._grant_service.pool.membership.seen(node)
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
                del self._grant_service.links[node]
                self._grant_service.pool.membership.disconnected(node)

    async def _register(self, inventory: rpc.Inventory, link: ServerLink) -> None:
        name = inventory.node
        if (older := self.links.get(name)) and older is not link:
            text = "node %s opened a second stream; the first is closed"
            PEERS.warning("gRPC: second stream", name, text, name)
            older.close()
        link.hands_over = inventory.hands_over
        link.ends_sessions = inventory.ends_sessions
        link.tells_views = inventory.tells_views
        link.changes_requests = inventory.changes_requests
        self.links[name] = link
        self._grant_service.links[name] = link
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
            takes_parts=inventory.takes_parts,
            swap_mib=inventory.swap_mib,
            moves_sessions=inventory.moves_sessions,
            memory_oversubscription=factor_of(inventory),
        )
        shared_as(node, inventory.sharing)
        await self._grant_service.step(
            lambda: self._grant_service.pool.membership.register(
                node,
                [gpu_of(name, gpu) for gpu in inventory.gpus],
                [
                    report
                    for report in map(partial(session_of, name), inventory.sessions)
                    if self._is_of(name, report.session.id, report.session.grant_id, report)
                ],
                [*inventory.pending_requests, *self.under_way],
                [job_key(hold) for hold in inventory.holds],
                {gpu.uuid for gpu in inventory.gpus if gpu.let_go},
                [suspension_of(each) for each in inventory.suspensions],
            )
        )

    def _take(self, node: str, kind: str | None, report: rpc.NodeReport, link: ServerLink) -> None:
        # none of these is answered, so none waits for the disk: a node's ends share their commits
        pool = self._grant_service.pool
        if kind == "heartbeat":
            link.orders.put_nowait(
                rpc.Order(heartbeat_seen=rpc.HeartbeatSeen(beat=report.heartbeat.beat))
            )
        elif kind == "session_started":
            started = report.session_started
            if not self._is_of(node, started.session_id):
                return
            self._grant_service.begin(
                lambda: pool.lifecycle.session_started(
                    started.session_id, started.client_pid, started.channel
                )
            )
        elif kind == "session_connection":
            connection = report.session_connection
            if not self._is_of(node, connection.session_id):
                return
            since = connection.disconnected_since or None
            self._grant_service.begin(
                lambda: pool.lifecycle.session_connection(
                    connection.session_id, since, connection.channel
                )
            )
        elif kind == "session_ended":
            ended = report.session_ended
            if not self._is_of(node, ended.session_id, ended.grant_id):
                return
            why = End(read_cause(ended.cause), ended.reason)
            self._grant_service.begin(
                lambda: pool.lifecycle.session_ended(ended.session_id, ended.grant_id, why, node)
            )
        elif kind == "grant_suspension":
            standing = suspension_of(report.grant_suspension)
            if self._is_of(node, "", standing.grant_id):
                self._grant_service.begin(lambda: pool.lifecycle.suspension(node, standing))
        elif kind == "guest_standing":
            guest = report.guest_standing
            if self._is_of(node, "", guest.grant_id):
                self._grant_service.begin(
                    lambda: pool.lifecycle.guest_standing(node, guest.grant_id, paused=guest.paused)
                )
        elif kind == "job_held":
            pool.lifecycle.job_held(job_key(report.job_held), node)
        elif kind == "job_released":
            released = job_key(report.job_released)
            self._grant_service.begin(lambda: pool.lifecycle.job_released(released, node))
        elif kind == "gpu_condition":
            gpu = report.gpu_condition
            self._grant_service.begin(
                lambda: pool.membership.gpu_condition(
                    GpuKey(node, gpu.uuid), gpu.fault, gpu.held, gpu.note
                )
            )
        elif kind == "sharing":
            shared = shared_as(Node(node, "", 0, "", 0), report.sharing)
            self._grant_service.begin(lambda: pool.membership.sharing(shared))
        elif kind == "handed_over":
            done = report.handed_over
            key = GpuKey(node, done.gpu_uuid)
            self._grant_service.begin(
                lambda: pool.switching.handed_over(key, done.error, done.generation)
            )
        elif kind == "native_holdings":
            holdings = [holding_of(each) for each in report.native_holdings.holdings]

            def reconcile() -> Decisions:
                pool.native_gpus.report(node, holdings)
                return Decisions()

            self._grant_service.begin(reconcile)
        elif kind == "vgpu_times":
            # kept in memory: no step, and nothing to store
            times = [vgpu_report_of(each) for each in report.vgpu_times.times]
            pool.lifecycle.vgpu_times(node, times)
        elif kind == "grant_memories":
            memories = [memory_of(each) for each in report.grant_memories.memories]
            pool.lifecycle.memories(node, memories)
        elif kind == "guest_machines":
            machines = [machine_of(node, each) for each in report.guest_machines.machines]
            self._grant_service.begin(lambda: pool.machines.report(node, machines))
        elif kind in ANSWERS:
            link.answered(ANSWERS[kind], getattr(report, kind))

    def _is_of(
        self, node: str, session_id: str, grant_id: str = "", report: ReportedSession | None = None
    ) -> bool:
        """Whether what a node reports is its own, as far as the ledger knows it."""
        pool = self._grant_service.pool
        session, grant = pool.sessions.get(session_id), pool.grants.get(grant_id)
        if session and session.node != node:
            owner = session.node
        elif grant and node not in grant.nodes:
            if report and pool.membership.may_be_part(report):
                return True
            owner = grant.node
        else:
            return True
        PEERS.warning(
            "gRPC: another's session",
            node,
            "node %s reported session %s of grant %s, which are of node %s; not believed",
            *(node, session_id, grant_id, owner),
        )
        return False
