# SPDX-License-Identifier: Apache-2.0
"""The guard of the gRPC service: which server calls, and that it speaks for its own node only.

Put before the pool's service by controller.service. A server shows a certificate of the operator's
CA, whose common name is its node's name, or a node token in its metadata; where neither is wanted
(see access.py), it is believed, as every process of the host could be the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import grpc

from sluice.config.peer_lines import CONTROLLER as PEERS
from sluice.controller.auth.access import Access, Caller, Denied
from sluice.controller.auth.audit import DENIED
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.call_ids import name_call
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

METADATA_KEY = "authorization"
FIRST_REPORT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guard looks at while this controller leads."""

    access: Access
    pool: Pool


class NodeGuard(pool_pb2_grpc.PoolServicer):
    """The pool's service behind a check of who calls."""

    def __init__(self, inner: Any, guarded: Callable[[], Awaitable[Guarded | None]]) -> None:
        self._inner = inner
        # None: this controller does not lead, and what is behind refers to the one that does
        self._guarded = guarded

    async def Register(  # noqa: N802
        self,
        request_iterator: AsyncIterator[rpc.NodeReport],
        context: grpc.aio.ServicerContext[rpc.NodeReport, rpc.Order],
    ) -> AsyncIterator[rpc.Order]:
        """Serves one server's stream; every inventory in it must be of the caller's node."""
        guarded = await self._guarded()
        reports = request_iterator
        if guarded:
            caller = await self._caller(guarded, context)
            # the first report is looked at here, as only here a refusal can be told
            try:
                reports = aiter(request_iterator)
                first = await asyncio.wait_for(anext(reports, None), FIRST_REPORT_SECONDS)
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"no inventory came within {FIRST_REPORT_SECONDS:g} s; send it first",
                )
            if first is None:
                return
            if first.HasField("inventory"):
                await self._only_for(guarded, caller, first.inventory.node, context)
            reports = _own_reports(first, request_iterator, caller)
        async for order in self._inner.Register(reports, context):
            yield order

    async def RequestGrant(  # noqa: N802
        self,
        request: rpc.GrantRequest,
        context: grpc.aio.ServicerContext[rpc.GrantRequest, rpc.GrantAnswer],
    ) -> AsyncIterator[rpc.GrantAnswer]:
        """Answers a client's request that its own server passes on."""
        name_call(context, request.request_id)
        if guarded := await self._guarded():
            caller = await self._caller(guarded, context)
            await self._only_for(guarded, caller, request.node, context)
        async for answer in self._inner.RequestGrant(request, context):
            yield answer

    async def ReleaseGrant(  # noqa: N802
        self,
        request: rpc.GrantRelease,
        context: grpc.aio.ServicerContext[rpc.GrantRelease, rpc.GrantReleased],
    ) -> rpc.GrantReleased:
        """Gives a grant of the caller's node back."""
        name_call(context, request.request_id)
        if guarded := await self._guarded():
            caller = await self._caller(guarded, context)
            if node := _node_of(guarded.pool, request):
                await self._only_for(guarded, caller, node, context)
        released: rpc.GrantReleased = await self._inner.ReleaseGrant(request, context)
        return released

    async def View(  # noqa: N802
        self,
        request: rpc.ViewRequest,
        context: grpc.aio.ServicerContext[rpc.ViewRequest, rpc.ViewAnswer],
    ) -> rpc.ViewAnswer:
        """Shows a client of the caller's node what it has."""
        name_call(context, "")
        if guarded := await self._guarded():
            caller = await self._caller(guarded, context)
            await self._only_for(guarded, caller, request.request.node, context)
        answer: rpc.ViewAnswer = await self._inner.View(request, context)
        return answer

    async def _caller(self, guarded: Guarded, context: Any) -> Caller:
        address = _address(context.peer())
        names = context.auth_context().get("x509_common_name", [])
        if names:
            name = names[0].decode()
            return Caller(f"certificate {name}", frozenset({"node"}), address, node=name)
        metadata = dict(context.invocation_metadata() or ())
        given = metadata.get(METADATA_KEY)
        try:
            if given is None:
                caller = guarded.access.without_token(address)
            else:
                caller = guarded.access.by_token(str(given).partition(" ")[2].strip(), address)
        except Denied as denied:
            what = f"gRPC from {address}: {denied}"
            if denied.subject:
                await _audit(guarded, denied.subject, what)
            else:
                PEERS.warning("gRPC: no token", address, "refused %s", what)
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                f"{denied}; a server's is named by [controller] token_file in server.conf",
            )
        if "node" not in caller.roles:
            await _audit(guarded, caller.id, f"gRPC is for nodes: {caller}")
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{caller.id} is no node's token; make one with `sluice token create --role node`",
            )
        return caller

    async def _only_for(self, guarded: Guarded, caller: Caller, node: str, context: Any) -> None:
        if caller.node and caller.node != node:
            await _audit(guarded, caller.id, f"spoke for node {node}: {caller}")
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{caller.id} is of node {caller.node} and speaks for no other, not for {node}; "
                "[server] node_name must be the name in the certificate or token",
            )


async def _own_reports(
    first: rpc.NodeReport, others: AsyncIterator[rpc.NodeReport], caller: Caller
) -> AsyncIterator[rpc.NodeReport]:
    yield first
    async for report in others:
        if report.HasField("inventory") and caller.node not in ("", report.inventory.node):
            text = "%s reported node %s; its stream is closed"
            PEERS.warning("gRPC: another's node", caller.id, text, caller, report.inventory.node)
            return
        yield report


def _node_of(pool: Pool, request: rpc.GrantRelease) -> str:
    """Whose grant a release is about: the one that is named, or that a request was given."""
    if not request.grant_id:
        return pool.requests.node_of(request.request_id)
    grant = pool.grants.get(request.grant_id)
    return grant.node if grant else ""


@lru_cache(maxsize=4096)
def _address(peer: str) -> str:
    # ipv4:10.0.0.3:1234 or ipv6:%5Bfd00::3%5D:1234
    address = peer.partition(":")[2].rpartition(":")[0]
    return address.replace("%5B", "").replace("%5D", "").strip("[]")


async def _audit(guarded: Guarded, subject: str, text: str) -> None:
    await guarded.access.audit.refused(DENIED, subject, text)
