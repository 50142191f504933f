# SPDX-License-Identifier: Apache-2.0
"""A container as its host names it: what sluice-server finds and the controller keeps and shows.

Made by server.containers.identity from what the kernel says of a process; carried by gRPC
(`Container` of pool.proto), kept by the controller's store and shown by REST. Nothing in it is the
container's own word.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

#: How much of an identifier is shown: as much as podman and docker show.
SHORT = 12
ID_DIGITS = 64


class ClientKind(StrEnum):
    """What a host knows a client by: a user of its own, a VM, a container, a network address."""

    USER = "user"
    VM = "vm"
    CONTAINER = "container"
    ADDRESS = "address"


@dataclass(frozen=True, slots=True)
class Container:
    """One container; `owner_uid` is the host's user whose engine it is, 0: root's.

    `device` is the CDI device's name (the part after `sluice.io/vgpu=`) by whose socket it came;
    empty: by the host's own socket.
    """

    id: str
    engine: str = ""  # docker, podman, containerd, cri-o, kubernetes, lxc or namespace
    pod: str = ""  # the UID of its Kubernetes pod
    owner_uid: int = 0
    device: str = ""

    def __bool__(self) -> bool:
        return bool(self.id)

    @property
    def key(self) -> str:
        """What no other container of its host has. A rootless engine names its own as it likes."""
        return f"{self.owner_uid}:{self.id}" if self.owner_uid else self.id

    @property
    def domain(self) -> str:
        """Whose processes may share a grant with its own: the pod's, else its own."""
        return f"pod {self.owner_uid}:{self.pod}" if self.pod else f"container {self.key}"

    @property
    def name(self) -> str:
        """As tables and logs show it: "podman 3f2a9c81d0b7"."""
        short = self.id[:SHORT] if len(self.id) == ID_DIGITS else self.id
        return f"{self.engine or 'container'} {short}" if self.id else ""

    @property
    def fields(self) -> dict[str, Any]:
        """As fields of the controller's record of a session: container_id, container_engine, …"""
        return {f"container_{name}": value for name, value in asdict(self).items()}


#: What is no container.
NO_CONTAINER = Container("")
