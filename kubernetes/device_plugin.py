# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin for clusters without DRA: `sluice.io/vgpu` (v1beta1).

Run by __main__.py (`sluice-kubernetes device-plugin`), one on each node that has a sluice-server.
Its devices are as many as the pool has reserved vGPUs for the node, and none is any particular
one: what a container gets is its part of the reservation, which the scheduler extender has kept, or
which is kept here where there is none. Allocate names a folder; before the container starts, the
kubelet says whose devices they are (PodResources), the API server says which pod that is, and this
host's server then lets in processes of that pod's cgroups alone, whose mounts have the folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import grpc

from sluice.kubernetes.allocations import AllocationError, Allocations, device_names
from sluice.kubernetes.cdi_files import CdiFiles
from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.configuration import ClusterSection, NodeSection
from sluice.kubernetes.naming import container_label, project_of
from sluice.kubernetes.pod_requests import PodRequestError, PodWant, read_pod
from sluice.kubernetes.pod_resources import Holder, KubeletSilent, PodResources
from sluice.kubernetes.pods import is_over
from sluice.kubernetes.pool_follower import PoolFollower
from sluice.kubernetes.server_socket import HeldClaim, ServerError, ServerSocket
from sluice.pool_client.errors import PoolError
from sluice.rpc import deviceplugin_v1beta1_pb2 as deviceplugin
from sluice.rpc import deviceplugin_v1beta1_pb2_grpc as deviceplugin_grpc

log = logging.getLogger("sluice.kubernetes")

SWEEP_SECONDS = 1.0
FIND_SECONDS = 5.0  # that the kubelet may take to say whose a device is
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_TROUBLES = (
    AllocationError,
    ClusterError,
    KubeletSilent,
    OSError,
    PodRequestError,
    PoolError,
    ServerError,
)
Context = grpc.aio.ServicerContext[Any, Any]


class Devices(NamedTuple):
    """What the kubelet is told: names, and how many of them cannot be used now."""

    total: int
    unusable: int


class Parts(NamedTuple):
    """What a plugin works with."""

    cluster: Cluster
    pool_follower: PoolFollower
    server: ServerSocket
    files: CdiFiles
    pod_resources: PodResources
    allocations: Allocations


class DevicePlugin(deviceplugin_grpc.DevicePluginServicer):
    """What the kubelet calls (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1)."""

    def __init__(self, section: ClusterSection, node: NodeSection, parts: Parts) -> None:
        self._section = section
        self._node = node
        self._parts = parts
        self._devices = Devices(0, 0)
        self._held: frozenset[str] = frozenset()
        self._changed = asyncio.Condition()
        self._starting: dict[str, int] = {}  # claims that are being made, and how often

    async def GetDevicePluginOptions(  # noqa: N802
        self, request: deviceplugin.Empty, context: Context
    ) -> deviceplugin.DevicePluginOptions:
        """Nothing starts before it is known whose it is."""
        return options()

    async def ListAndWatch(  # noqa: N802
        self, request: deviceplugin.Empty, context: Context
    ) -> AsyncIterator[deviceplugin.ListAndWatchResponse]:
        """The devices, whenever they are others."""
        told: list[tuple[str, bool]] | None = None
        while True:
            now = listed(self._devices, self._held)
            if now != told:
                told = now
                yield deviceplugin.ListAndWatchResponse(
                    devices=[
                        deviceplugin.Device(ID=name, health=HEALTHY if is_well else UNHEALTHY)
                        for name, is_well in now
                    ]
                )
            async with self._changed:
                await self._changed.wait()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: deviceplugin.PreferredAllocationRequest, context: Context
    ) -> deviceplugin.PreferredAllocationResponse:
        """Is not asked: any device is as good as any other."""
        return deviceplugin.PreferredAllocationResponse()

    async def Allocate(  # noqa: N802
        self, request: deviceplugin.AllocateRequest, context: Context
    ) -> deviceplugin.AllocateResponse:
        """What the container will find, by a name of its own."""
        answer = deviceplugin.AllocateResponse()
        try:
            for each in request.container_requests:
                uid = self._parts.allocations.make(each.devices_ids)
                answer.container_responses.append(self._edits(uid, len(each.devices_ids)))
        except (AllocationError, OSError) as error:
            log.warning("%s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"sluice: {error}")
        return answer

    async def PreStartContainer(  # noqa: N802
        self, request: deviceplugin.PreStartContainerRequest, context: Context
    ) -> deviceplugin.PreStartContainerResponse:
        """Keeps the container's part, and lets its processes in."""
        try:
            await self._prepare(frozenset(request.devices_ids))
        except _TROUBLES as error:
            log.warning("devices %s: %s", ", ".join(sorted(request.devices_ids))[:200], error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"sluice: {error}")
        return deviceplugin.PreStartContainerResponse()

    # what is prepared

    def _edits(self, uid: str, count: int) -> deviceplugin.ContainerAllocateResponse:
        answer = deviceplugin.ContainerAllocateResponse()
        if self._node.cdi:
            answer.cdi_devices.add(name=self._parts.files.name_of(uid))
            return answer
        folder = self._parts.server.folder_of(uid)
        mounts, variables = self._parts.files.edits(uid, folder, job_of(uid), count)
        for mount in mounts:
            answer.mounts.add(host_path=mount.host, container_path=mount.container, read_only=True)
        answer.envs.update(variables)
        return answer

    async def _prepare(self, devices: frozenset[str]) -> None:
        uid = self._parts.allocations.uid_of(devices)
        self._starting[uid] = self._starting.get(uid, 0) + 1
        try:
            await self._prepare_claim(uid, devices)
        finally:
            self._starting[uid] -= 1
            if not self._starting[uid]:
                del self._starting[uid]

    async def _prepare_claim(self, uid: str, devices: frozenset[str]) -> None:
        holder = await self._holder(devices)
        found = await self._parts.cluster.pod(holder.namespace, holder.pod)
        pod = read_pod(found)
        bound = (found.get("spec") or {}).get("nodeName")
        if bound != self._node.node_name:
            raise PodRequestError(
                f"pod {holder.namespace}/{holder.pod} is on node {bound} and not on "
                f"{self._node.node_name}: set [node] node_name to what the cluster calls this node"
            )
        want = pod.of(holder.container)
        if want.count != len(devices):
            raise PodRequestError(
                f"container {want.name} wants {want.count} vGPU(s), and the kubelet gave it "
                f"{len(devices)}: delete the pod"
            )
        label = container_label(pod.uid, want.name)
        priority = self._section.priority_of(found)
        await self._keep(pod, label, priority)
        prepared = await self._parts.server.prepare(
            uid=uid,
            name=f"{pod.namespace}/{pod.name}",
            label=label,
            project=project_of(self._section.project, pod.namespace),
            count=want.count,
            priority=priority,
            pod=pod.uid,
            pod_name=pod.name,
            container=want.name,
        )
        if self._node.cdi:
            self._parts.files.put(uid, prepared.folder, job_of(uid), want.count)
        log.info("container %s of pod %s/%s: %s", want.name, pod.namespace, pod.name, label)

    async def _holder(self, devices: frozenset[str]) -> Holder:
        """The kubelet may say it a moment later than it asks."""
        deadline = asyncio.get_running_loop().time() + FIND_SECONDS
        while True:
            for holder in await self._parts.pod_resources.holders():
                if holder.devices == devices:
                    return holder
            if asyncio.get_running_loop().time() > deadline:
                raise PodRequestError(
                    f"the kubelet names no container that has {', '.join(sorted(devices))}: init "
                    "containers cannot have sluice.io/vgpu without DRA; ask for it in a container"
                )
            await asyncio.sleep(0.1)

    async def _keep(self, pod: PodWant, label: str, priority: int) -> None:
        """The part that the extender kept; one that is kept now where nobody has."""
        pool_follower = self._parts.pool_follower
        if await pool_follower.find(label):
            return
        await pool_follower.look()
        node = "" if pool_follower.availability.reach_all else self._node.node_name
        found = pool_follower.availability.fits(node, pod)
        if isinstance(found, str):
            raise PodRequestError(found)
        for part in found:
            if part.label not in pool_follower.availability.parts:
                await pool_follower.keep(part, pod.namespace, priority)

    # what is over

    async def sweep(self) -> int:
        """Takes back what no pod stands behind; returns how many. Raises what its parts do.

        The kubelet never says that a container is over. What it names no more is looked for in the
        cluster: one that has just started names none, and its pods go on.
        """
        claims = await self._parts.server.held()
        holders = await self._parts.pod_resources.holders()
        self._held = frozenset(device for each in holders for device in each.devices)
        current = {}
        for holder in holders:
            try:
                current[self._parts.allocations.uid_of(holder.devices)] = holder
            except AllocationError:
                continue
        swept = 0
        for uid, claim in claims.items():
            if claim.pod and uid not in current and await self._is_over(uid, claim):
                await self._release(uid, claim)
                swept += 1
        return swept

    async def _is_over(self, uid: str, claim: HeldClaim) -> bool:
        if uid in self._starting:
            return False
        namespace, _, name = claim.name.partition("/")
        try:
            found = await self._parts.cluster.pod(namespace, name)
        except ClusterError as error:
            if not error.is_not_found:
                raise
            return uid not in self._starting
        other = (found.get("metadata") or {}).get("uid") != claim.pod
        return (other or is_over(found)) and uid not in self._starting

    async def _release(self, uid: str, claim: HeldClaim) -> None:
        self._parts.files.remove(uid)
        await self._parts.server.release(uid, f"pod {claim.name} is over"[:250])
        await self._parts.pool_follower.give_back(claim.label)
        log.info("pod %s: %s given back", claim.name, claim.label)

    async def sweep_for_ever(self) -> None:
        """Until cancelled; and the kubelet is told of devices that come and go."""
        told = ""
        while True:
            try:
                await self.sweep()
                told = ""
            except _TROUBLES as error:
                if str(error) != told:
                    log.warning("leftovers are looked for later: %s", error)
                told = str(error)
            await self._count()
            await asyncio.sleep(SWEEP_SECONDS)

    async def _count(self) -> None:
        pool_follower = self._parts.pool_follower
        if not pool_follower.is_known:
            return
        total, usable = pool_follower.availability.total(
            "" if pool_follower.availability.reach_all else self._node.node_name
        )
        self._devices = Devices(total, total - usable)
        async with self._changed:
            self._changed.notify_all()


def options() -> deviceplugin.DevicePluginOptions:
    """What the kubelet has to know of the plugin."""
    return deviceplugin.DevicePluginOptions(pre_start_required=True)


def job_of(uid: str) -> str:
    """The token by which the processes of a container share its vGPUs: its allocation's own."""
    return uid.replace("-", "")


def listed(devices: Devices, held: Iterable[str]) -> list[tuple[str, bool]]:
    """The devices, and whether each is well: those that nobody has are the first that are not."""
    names = device_names(devices.total)
    free = [name for name in names if name not in set(held)]
    worst = [*reversed(free), *(name for name in names if name not in set(free))]
    unwell = set(worst[: devices.unusable])
    return [(name, name not in unwell) for name in names]
