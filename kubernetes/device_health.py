# SPDX-License-Identifier: Apache-2.0
"""How the devices of this node's claims are, for the kubelet (DRAResourceHealth, v1).

Served by kubelet.py beside the plugin. The kubelet shows it in the pod's status
(allocatedResourcesStatus, Kubernetes 1.36 and later). What is said is this host's server's word on
its own GPUs; of a GPU of another host nothing is said, and the kubelet takes that for unknown. A
server that does not answer makes its devices unknown, not unhealthy: sessions outlive it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

import grpc

from sluice.kubernetes.claims import ClaimError, read_claim
from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.naming import gpu_word, read_device_name
from sluice.kubernetes.server_socket import HostCondition, ServerError, ServerSocket
from sluice.rpc import dra_health_v1_pb2 as health
from sluice.rpc import dra_health_v1_pb2_grpc as health_grpc

log = logging.getLogger("sluice.kubernetes")

LOOK_SECONDS = 2.0
#: What was said is said again, as the kubelet forgets it.
SAY_SECONDS = 10.0
FORGOTTEN_SECONDS = 60
LONGEST_MESSAGE = 1024


class Named(NamedTuple):
    """A device as the kubelet names it."""

    pool: str
    device: str


class State(NamedTuple):
    """What is said of one."""

    status: health.HealthStatus.ValueType
    message: str


class DeviceHealth(health_grpc.DRAResourceHealthServicer):
    """What the kubelet follows (k8s.io/kubelet/pkg/apis/dra-health/v1)."""

    def __init__(self, cluster: Cluster, server: ServerSocket) -> None:
        self._cluster = cluster
        self._server = server
        self._devices: dict[str, tuple[Named, ...]] = {}  # by the claim's UID

    async def NodeWatchResources(  # noqa: N802
        self,
        request: health.NodeWatchResourcesRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        """Every device of a claim that is prepared here, when it changes and now and then."""
        told: dict[Named, State] | None = None
        due = 0.0
        while True:
            now = await self.states()
            if now != told or time.monotonic() >= due:
                told, due = now, time.monotonic() + SAY_SECONDS
                yield response(now, int(time.time()))
            await asyncio.sleep(LOOK_SECONDS)

    async def states(self) -> dict[Named, State]:
        """How they are now; raises nothing."""
        try:
            await self._follow(await self._server.claims())
            conditions = await self._server.conditions()
        except ServerError as error:
            unknown = State(health.HealthStatus.UNKNOWN, str(error)[:LONGEST_MESSAGE])
            return {each: unknown for named in self._devices.values() for each in named}
        return states_of((each for named in self._devices.values() for each in named), conditions)

    async def _follow(self, claims: Mapping[str, str]) -> None:
        """Learns of claims that came; `claims`: namespace/name by UID."""
        for gone in self._devices.keys() - claims.keys():
            del self._devices[gone]
        for uid, whole_name in claims.items():
            if uid in self._devices:
                continue
            namespace, _, name = whole_name.partition("/")
            try:
                found = read_claim(await self._cluster.claim(namespace, name), uid)
            except ClaimError:
                self._devices[uid] = ()  # a device plugin's, or over
            except ClusterError as error:
                if error.is_not_found:
                    self._devices[uid] = ()
                continue  # it is asked again
            else:
                self._devices[uid] = tuple(Named(r.pool, r.device) for r in found.results)


def states_of(
    devices: Iterable[Named], conditions: Mapping[str, HostCondition]
) -> dict[Named, State]:
    """By the word of this host on its GPUs; of others' devices nothing."""
    by_word = {(each.node, gpu_word(uuid)): each for uuid, each in conditions.items()}
    nodes = {each.node for each in conditions.values()}
    found: dict[Named, State] = {}
    for named in devices:
        try:
            word, _ = read_device_name(named.device)
        except ValueError:
            continue
        if named.pool not in nodes:
            continue
        condition = by_word.get((named.pool, word))
        if condition is None:
            gone = "this host does not offer the GPU any more"
            found[named] = State(health.HealthStatus.UNHEALTHY, gone)
        elif condition.fault:
            found[named] = State(health.HealthStatus.UNHEALTHY, condition.fault[:LONGEST_MESSAGE])
        else:
            said = condition.held or condition.note
            found[named] = State(health.HealthStatus.HEALTHY, said[:LONGEST_MESSAGE])
    return found


def response(states: Mapping[Named, State], at: int) -> health.NodeWatchResourcesResponse:
    """As the kubelet takes it; `at`: seconds since the epoch."""
    return health.NodeWatchResourcesResponse(
        devices=[
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=named.pool, device_name=named.device),
                health=state.status,
                message=state.message,
                last_updated_time=at,
                health_check_timeout_seconds=FORGOTTEN_SECONDS,
            )
            for named, state in sorted(states.items())
        ]
    )
