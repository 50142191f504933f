# SPDX-License-Identifier: Apache-2.0
"""How things of the pool and of the cluster are called on the other side. Pure.

Used by every module of sluice.kubernetes. A device of a ResourceSlice says in its name which
reservation and which GPU it is, so that what a claim names can be found without the slice. The
folder `kubernetes` has no __init__.py: `import kubernetes` in a checkout is the client library.
"""

from __future__ import annotations

import re
import uuid

DRIVER = "vgpu.sluice.io"
#: What containers ask for where there is no DRA: vGPUs, and what each of them is to be.
VGPU = "sluice.io/vgpu"
VGPU_MEMORY = "sluice.io/vgpu-memory-mib"
VGPU_COMPUTE = "sluice.io/vgpu-compute"
#: Of the CDI specifications of claims; `sluice.io/vgpu` are those that an operator makes.
CDI_KIND = "sluice.io/claim"
MEMORY, COMPUTE, SLICES = "memory", "compute", "slices"
LABEL_PREFIX = "claim-"
CONTAINER_PREFIX = "container-"
_CONTAINERS = uuid.UUID("5d0c6f0e-8a3e-5c52-9f3b-6f1d0f6f2b11")  # of the names of containers
#: Kubernetes: a DNS label.
LONGEST_DEVICE = 63
LONGEST_ATTRIBUTE = 32
LONGEST_TEXT = 64
_RESERVATION = re.compile(r"[0-9a-f]{16}")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


def gpu_word(uuid: str) -> str:
    """A GPU's UUID as a part of a device's name."""
    most = LONGEST_DEVICE - 16 - 1 - 5  # a reservation's id, and the number of a slot
    return _NOT_IN_NAMES.sub("-", uuid.lower()).strip("-")[:most].strip("-") or "gpu"


def device_name(uuid: str, reservation: str, slot: int | None = None) -> str:
    """A device: a GPU's part of a reservation, or with `slot` one vGPU of it."""
    name = f"{gpu_word(uuid)}-{reservation}"
    return name if slot is None else f"{name}-{slot}"


def read_device_name(name: str) -> tuple[str, str]:
    """The GPU's word and the reservation's id; raises ValueError."""
    words = name.split("-")
    if words and len(words[-1]) <= 4 and words[-1].isdecimal():
        words.pop()
    if len(words) < 2 or not _RESERVATION.fullmatch(words[-1]):
        raise ValueError(f"{name!r} is no device of {DRIVER}")
    return "-".join(words[:-1]), words[-1]


def claim_label(uid: str) -> str:
    """The label of a claim's part of a reservation."""
    return LABEL_PREFIX + uid


def claim_of_label(label: str) -> str:
    """The claim's UID; "" where it is no claim's."""
    return label.removeprefix(LABEL_PREFIX) if label.startswith(LABEL_PREFIX) else ""


def container_label(pod_uid: str, container: str) -> str:
    """The label of a container's part of a reservation: the same wherever it is asked."""
    return f"{CONTAINER_PREFIX}{uuid.uuid5(_CONTAINERS, f'{pod_uid}/{container}')}"


def attribute_name(label: str) -> str:
    """A node's label as a C identifier, as attributes are called: rack → label_rack."""
    return ("label_" + re.sub(r"[^A-Za-z0-9_]", "_", label))[:LONGEST_ATTRIBUTE]


def project_of(cluster: str, namespace: str) -> str:
    """On whose account a namespace's claims are: a project below the cluster's."""
    return f"{cluster}.{namespace}"
