# SPDX-License-Identifier: Apache-2.0
"""What a worker or a relay is told to start: values, and the messages of native/api/control.yaml.

Made by sessions.opening and sessions.relays, sent by workers.worker. The channels are made by the
listeners. No value here owns its descriptors: whoever made it closes them once it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.server.workers.packets import Message
from sluice.server.workers.users import User

Named = tuple[str, int]
"""A descriptor, after the name by which its receiver knows it."""


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """Memory that the client maps: a memfd of this host's, or a guest's region (`region_id`)."""

    descriptor: int
    region_bytes: int
    slot: int = 0
    slots: int = 1
    region_id: str = ""

    @property
    def named(self) -> Named:
        """Its descriptor."""
        return "region", self.descriptor

    def fields(self) -> dict[str, str]:
        """As a worker is told of it."""
        fields = {
            "slot": str(self.slot),
            "slots": str(self.slots),
            "region_bytes": str(self.region_bytes),
        }
        return {**fields, "region": self.region_id} if self.region_id else fields


@dataclass(frozen=True, slots=True)
class ResumeTerms:
    """How long a session outlives its connection, in seconds; 0: not at all.

    `closed_seconds` is for a client's end that was closed: its process may have ended.
    """

    grace_seconds: int
    closed_seconds: int


@dataclass(frozen=True, slots=True)
class ConnectedSocket:
    """A stream after its OpenSession: TCP or vsock.

    `tls` is what a worker has to know to go on with its TLS (data_tls); empty: it has none.
    """

    descriptor: int
    tls: Mapping[str, str] = field(default_factory=dict)
    resume: ResumeTerms | None = None

    @property
    def named(self) -> Named:
        """Its descriptor."""
        return "socket", self.descriptor

    def fields(self) -> dict[str, str]:
        """As a worker is told of it."""
        fields = {"slot": "0", **self.tls}
        if self.resume:
            fields["network_grace_seconds"] = str(self.resume.grace_seconds)
            fields["closed_grace_seconds"] = str(self.resume.closed_seconds)
        return fields


Channel = SharedRegion | ConnectedSocket


@dataclass(frozen=True, slots=True)
class WorkerVgpu:
    """A vGPU of the session; `place` is its number in the grant."""

    place: int
    gpu_uuid: str
    memory_mib: int
    compute_percent: int


@dataclass(frozen=True, slots=True)
class LedgerSlot:
    """The session's slot on the page of its job (sessions.grant_ledgers)."""

    page: int
    slot: int


@dataclass(frozen=True, slots=True)
class TurnPage:
    """By what a worker and the arbiter hand its turns to and fro (sessions.turn_pages)."""

    page: int
    bell: int


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The session that a worker is to serve."""

    session_id: str
    grant_id: str
    channel_name: str  # shm, ivshmem, vsock or tcp
    channel: Channel
    request: bytes  # the fixed part of OpenSession, without secrets
    vgpus: tuple[WorkerVgpu, ...]
    ledger: LedgerSlot | None = None
    turns: TurnPage | None = None
    #: Whom the worker becomes; None: it stays who it is.
    user: User | None = None
    #: Of the whole grant, where other workers of it are other users; 0: they are not.
    grant_vgpus: int = 0
    #: Of its client's vGPUs on all nodes, and which of them is the first here; 0: these are all.
    windows: int = 0
    first_window: int = 0
    #: The folders of its project's code that the worker may read.
    code: tuple[Named, ...] = ()
    client_pidfd: int = -1
    #: Whether commands that repeat may be launched as graphs, if the request wants it.
    merge_launches: bool = False

    @property
    def message(self) -> Message:
        """What the worker is told; `descriptors` go beside it."""
        fields = {
            "id": self.session_id,
            "grant": self.grant_id,
            "channel": self.channel_name,
            "vgpus": str(len(self.vgpus)),
            "request": self.request.hex(),
            **self.channel.fields(),
        }
        if self.user:
            fields |= {"uid": str(self.user.uid), "gid": str(self.user.gid)}
        if self.grant_vgpus:
            fields["grant_vgpus"] = str(self.grant_vgpus)
        if self.windows:
            fields["windows"] = str(self.windows)
            fields["first_window"] = str(self.first_window)
        if self.merge_launches:
            fields["merge_launches"] = "auto"
        if self.ledger:
            fields["ledger_slot"] = str(self.ledger.slot)
        for index, vgpu in enumerate(self.vgpus):
            fields[f"vgpu.{index}.place"] = str(vgpu.place)
            fields[f"vgpu.{index}.device"] = vgpu.gpu_uuid
            fields[f"vgpu.{index}.memory_mib"] = str(vgpu.memory_mib)
            fields[f"vgpu.{index}.compute_percent"] = str(vgpu.compute_percent)
        return _start(fields, self.descriptors)

    @property
    def descriptors(self) -> list[Named]:
        """What goes beside it, in the order in which the message names it."""
        ledger = [("ledger", self.ledger.page)] if self.ledger else []
        turns = [("turns", self.turns.page), ("turns_bell", self.turns.bell)] if self.turns else []
        return [self.channel.named, *ledger, *turns, *self.code, *_client(self.client_pidfd)]


@dataclass(frozen=True, slots=True)
class Resuming:
    """What a relay has to know to make another connection for a session whose client has its slot.

    `epoch` is of its first attempt, each has its own; it tries for `seconds`. Where the client has
    a connection it tries once, and the session outlives its connections for `seconds`.
    """

    key: str = field(repr=False)  # hexadecimal
    epoch: int
    seconds: int


@dataclass(frozen=True, slots=True)
class RelayStart:
    """The session that a relay is to carry to its GPU's node.

    With `resuming` and a connection its client has proved there that the session is its own.
    """

    session_id: str
    grant_id: str
    channel_name: str  # shm, ivshmem or vsock
    channel: Channel
    request: bytes  # the fixed part of OpenSession, with the key
    node: str
    address: str
    port: int
    tls: bool
    #: The CA of the other node's data port, -1: the system's.
    ca: int = -1
    client_pidfd: int = -1
    resuming: Resuming | None = None

    @property
    def message(self) -> Message:
        """What the relay is told; `descriptors` go beside it."""
        fields = {
            "id": self.session_id,
            "grant": self.grant_id,
            "channel": self.channel_name,
            "node": self.node,
            "address": self.address,
            "port": str(self.port),
            "tls": "1" if self.tls else "0",
            "tls_name": self.node if self.tls else "",
            "request": self.request.hex(),
            **self.channel.fields(),
        }
        if self.resuming:
            fields["resume_key"] = self.resuming.key
            fields["epoch"] = str(self.resuming.epoch)
            fields["seconds"] = str(self.resuming.seconds)
        return _start(fields, self.descriptors)

    @property
    def descriptors(self) -> list[Named]:
        """What goes beside it, in the order in which the message names it."""
        ca = [("ca", self.ca)] if self.ca >= 0 else []
        return [self.channel.named, *_client(self.client_pidfd), *ca]


def _client(pidfd: int) -> list[Named]:
    return [("client_pidfd", pidfd)] if pidfd >= 0 else []


def _start(fields: Mapping[str, str], descriptors: list[Named]) -> Message:
    names = ",".join(name for name, _ in descriptors)
    return Message("session", {**fields, "descriptors": names})
