# SPDX-License-Identifier: Apache-2.0
"""Asks the kubelet which container has which of our devices (PodResources, v1).

Used by device_plugin.py: Allocate and PreStartContainer name devices, and no pod. Nothing that a
pod says of itself is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from sluice.kubernetes.naming import VGPU
from sluice.rpc import podresources_v1_pb2 as podresources
from sluice.rpc import podresources_v1_pb2_grpc as podresources_grpc

ANSWER_SECONDS = 10.0
#: A node's 1,000 pods and more.
MOST_BYTES = 16 << 20


class KubeletSilent(Exception):
    """The kubelet does not answer; the text says where."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The container that has devices."""

    namespace: str
    pod: str
    container: str
    devices: frozenset[str]


class PodResources:
    """One kubelet."""

    def __init__(self, kubelet_dir: Path) -> None:
        self._path = kubelet_dir / "pod-resources" / "kubelet.sock"

    async def holders(self) -> list[Holder]:
        """Every container that has devices of ours; raises KubeletSilent."""
        options = [("grpc.max_receive_message_length", MOST_BYTES)]
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._path}", options=options) as channel:
                stub = podresources_grpc.PodResourcesListerStub(channel)
                answer = await stub.List(
                    podresources.ListPodResourcesRequest(), timeout=ANSWER_SECONDS
                )
        except grpc.aio.AioRpcError as error:
            raise KubeletSilent(
                f"the kubelet at {self._path} does not say whose devices are whose: "
                f"{error.code().name} {error.details()}; set [node] kubelet_dir"
            ) from None
        found = []
        for pod in answer.pod_resources:
            for container in pod.containers:
                devices = frozenset(
                    device
                    for each in container.devices
                    if each.resource_name == VGPU
                    for device in each.device_ids
                )
                if devices:
                    found.append(Holder(pod.namespace, pod.name, container.name, devices))
        return found
