# SPDX-License-Identifier: Apache-2.0
"""The kubelet's plugin: prepares the claims of this node's pods, and takes them back.

Run by __main__.py (`sluice-kubernetes node`), one on each node that has a sluice-server. The
scheduler has chosen the devices; preparing keeps exactly those in the pool (a part of the cluster's
reservation), has this host's server let the claim's processes in, and writes a CDI specification.
It keeps nothing in memory: each step may be asked for again, after a restart of anything, and
answers the same.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from sluice.kubernetes.cdi_files import CdiFiles
from sluice.kubernetes.claims import ClaimError, Wanted, read_claim
from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.naming import claim_label, project_of
from sluice.kubernetes.server_socket import ServerError, ServerSocket
from sluice.pool_client.async_client import AsyncPoolClient
from sluice.pool_client.errors import PoolError, Refused
from sluice.rpc import dra_v1_pb2 as dra
from sluice.rpc import dra_v1_pb2_grpc as dra_grpc

log = logging.getLogger("sluice.kubernetes")

SWEEP_SECONDS = 60.0
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TROUBLES = (ClaimError, ClusterError, PoolError, ServerError, OSError)


class NodePlugin(dra_grpc.DRAPluginServicer):
    """What the kubelet calls (k8s.io/kubelet/pkg/apis/dra/v1)."""

    def __init__(
        self,
        section: ClusterSection,
        cluster: Cluster,
        pool: AsyncPoolClient,
        server: ServerSocket,
        files: CdiFiles,
    ) -> None:
        self._section = section
        self._cluster = cluster
        self._pool = pool
        self._server = server
        self._files = files
        self._locks: dict[str, asyncio.Lock] = {}

    async def NodePrepareResources(  # noqa: N802
        self, request: dra.NodePrepareResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> dra.NodePrepareResourcesResponse:
        """Prepares claims, each for itself."""
        answer = dra.NodePrepareResourcesResponse()

        async def one(claim: dra.Claim) -> None:
            found = answer.claims[claim.uid]
            try:
                found.devices.extend(await self._in_turn(claim, self._prepare))
            except _TROUBLES as error:
                found.error = str(error)
                log.warning("claim %s/%s: %s", claim.namespace, claim.name, error)

        await asyncio.gather(*map(one, request.claims))
        return answer

    async def NodeUnprepareResources(  # noqa: N802
        self,
        request: dra.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> dra.NodeUnprepareResourcesResponse:
        """Takes claims back, each for itself."""
        answer = dra.NodeUnprepareResourcesResponse()

        async def one(claim: dra.Claim) -> None:
            found = answer.claims[claim.uid]
            try:
                await self._in_turn(claim, self._unprepare)
            except _TROUBLES as error:
                found.error = str(error)
                log.warning("claim %s/%s: %s", claim.namespace, claim.name, error)

        await asyncio.gather(*map(one, request.claims))
        return answer

    async def sweep(self) -> int:
        """Takes back what no claim of the cluster stands behind; returns how many.

        A kubelet that lost its state never asks for it. Raises ServerError, ClusterError,
        PoolError, OSError.
        """
        files = self._files.uids()
        prepared = await self._server.claims()
        swept = 0
        for uid in files - prepared.keys():  # its server's record went first, or never was
            self._files.remove(uid)
            swept += 1
        for uid, whole_name in prepared.items():
            namespace, _, name = whole_name.partition("/")
            try:
                found = await self._cluster.claim(namespace, name)
            except ClusterError as error:
                if not error.is_not_found:
                    raise
            else:
                if found["metadata"]["uid"] == uid:
                    continue
            await self._in_turn(dra.Claim(uid=uid, namespace=namespace, name=name), self._unprepare)
            swept += 1
        return swept

    async def sweep_for_ever(self) -> None:
        """Now and then, until cancelled."""
        while True:
            try:
                if swept := await self.sweep():
                    log.info("%d claim(s) that the cluster has no more: taken back", swept)
            except _TROUBLES as error:
                log.warning("leftovers are looked for later: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _in_turn(
        self, claim: dra.Claim, step: Callable[[dra.Claim], Awaitable[list[dra.Device]]]
    ) -> list[dra.Device]:
        """One step of a claim at a time."""
        if not _UID.fullmatch(claim.uid):  # names files
            raise ClaimError(f"{claim.uid[:40]!r} is no UID of a claim")
        lock = self._locks.setdefault(claim.uid, asyncio.Lock())
        try:
            async with lock:
                return await step(claim)
        finally:
            if not lock.locked() and not getattr(lock, "_waiters", None):
                self._locks.pop(claim.uid, None)

    async def _prepare(self, claim: dra.Claim) -> list[dra.Device]:
        found = await self._cluster.claim(claim.namespace, claim.name)
        wanted = read_claim(found, claim.uid)
        priority = await self._priority(wanted, found)
        project = project_of(self._section.project, wanted.namespace)
        await self._keep(wanted, project, priority)
        label = claim_label(wanted.uid)
        prepared = await self._server.prepare(
            uid=wanted.uid,
            name=f"{wanted.namespace}/{wanted.name}",
            label=label,
            project=project,
            count=len(wanted.results),
            priority=priority,
            pod_name=_only_pod(found),
        )
        device = self._files.put(wanted.uid, prepared.folder, prepared.job, len(wanted.results))
        log.info("claim %s/%s: prepared as %s", wanted.namespace, wanted.name, label)
        return [
            dra.Device(
                request_names=[each.request],
                pool_name=each.pool,
                device_name=each.device,
                cdi_device_ids=[device],
                share_id=each.share or None,
            )
            for each in wanted.results
        ]

    async def _keep(self, wanted: Wanted, project: str, priority: int) -> None:
        """The devices that the claim names become the claim's in the pool."""
        whole = f"/reservations/{wanted.reservation}"
        try:
            listed = await self._pool.get(f"{whole}/parts")
            body = {
                "vgpus": wanted.places(listed["reservation"]),
                "project": project,
                "priority": priority,
            }
            await self._pool.ask("PUT", f"{whole}/parts/{claim_label(wanted.uid)}", json=body)
        except Refused as refused:
            if refused.is_not_found:
                raise ClaimError(
                    f"the pool has no reservation {wanted.reservation} for label "
                    f"{self._section.label} any more, or the token is of another: delete the pod, "
                    "and it is placed anew"
                ) from None
            raise

    async def _priority(self, wanted: Wanted, claim: dict[str, Any]) -> int:
        """That of the class of the first pod that the claim is reserved for."""
        if not self._section.priorities:
            return 0
        for consumer in (claim.get("status") or {}).get("reservedFor") or ():
            if consumer.get("resource") == "pods":
                of_pod = self._cluster.pod_priority_class(wanted.namespace, consumer["name"])
                return self._section.priorities.get(await of_pod, 0)
        return 0

    async def _unprepare(self, claim: dra.Claim) -> list[dra.Device]:
        self._files.remove(claim.uid)
        why = f"no pod of this node uses claim {claim.namespace}/{claim.name} any more"
        await self._server.release(claim.uid, why[:250])
        await self._give_back(claim)
        log.info("claim %s/%s: taken back", claim.namespace, claim.name)
        return []

    async def _give_back(self, claim: dra.Claim) -> None:
        """Its part of the pool, unless pods of other nodes may use it still.

        Those there are only where several nodes reach a GPU; the claim's end is seen by
        publishing.py then.
        """
        if self._section.reach is not None:
            try:
                found = await self._cluster.claim(claim.namespace, claim.name)
            except ClusterError as error:
                if not error.is_not_found:
                    raise
            else:
                users = (found.get("status") or {}).get("reservedFor") or ()
                if found["metadata"]["uid"] == claim.uid and len(users) > 1:
                    return
        try:
            await self._pool.delete(f"/parts/{claim_label(claim.uid)}")
        except Refused as refused:
            if not refused.is_not_found:
                raise


def _only_pod(claim: Mapping[str, Any]) -> str:
    """The pod that a claim is reserved for; "" where there are several."""
    found = (claim.get("status") or {}).get("reservedFor") or ()
    pods = [str(each.get("name")) for each in found if each.get("resource") == "pods"]
    return pods[0] if len(pods) == 1 else ""
