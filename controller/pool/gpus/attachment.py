# SPDX-License-Identifier: Apache-2.0
"""The records of native GPUs and the VMs that hold them, and what servers are told and say of them.

Used by every layer of the controller, like controller.pool.model, which names them among what is
stored; plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AttachmentState(StrEnum):
    """The VM's server is ATTACHING the GPU, the VM has it (ATTACHED), or it is being taken back."""

    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"


class AttachWhen(StrEnum):
    """Into what the GPU is put: what runs, what the VM's next start uses, or both."""

    BOTH = "both"
    NOW = "now"
    NEXT_START = "next-start"


@dataclass(slots=True)
class Attachment:
    """Which VM holds a native GPU. A VM that is off holds what its definition names."""

    node: str
    uuid: str  # the GPU's
    domain_uuid: str  # empty until its server has found the VM
    domain_name: str
    state: AttachmentState
    since: float
    live: bool = False  # it is plugged into what runs
    config: bool = False  # it is in the definition
    reason: str = ""
    generation: int = 1


@dataclass(frozen=True, slots=True)
class AttachmentRemoved:
    """Says to the store that no VM holds the GPU any more."""

    node: str
    uuid: str


@dataclass(frozen=True, slots=True)
class AttachOrder:
    """A server must put a GPU into a VM."""

    node: str
    uuid: str
    pci_address: str
    domain: str  # name or UUID
    when: AttachWhen
    rom_bar: bool


@dataclass(frozen=True, slots=True)
class DetachOrder:
    """A server must take a GPU out of the VM that has it."""

    node: str
    uuid: str
    pci_address: str
    domain: str


@dataclass(frozen=True, slots=True)
class ReportedHolding:
    """What a node's libvirt says that a VM has."""

    pci_address: str
    domain_uuid: str
    domain_name: str
    live: bool
    config: bool
