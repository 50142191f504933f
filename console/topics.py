# SPDX-License-Identifier: Apache-2.0
"""Which parts of pages a change of the pool concerns, by topics such as `grant:ID` and `nodes`.

Used by live.Live, which is shown every change; parts name the topics that they are about.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.controller.pool.gpus.attachment import Attachment, AttachmentRemoved
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Change,
    Event,
    Gpu,
    GpuRemoved,
    GpuSwitch,
    Grant,
    Node,
    Quota,
    QuotaRemoved,
    Reservation,
    Session,
)


def topics_of(change: Change) -> Iterator[str]:
    """The topics of a change."""
    if isinstance(change, Node):
        yield from ("pool", "nodes", f"node:{change.name}", f"gpus-of:{change.name}")
    elif isinstance(change, Gpu | GpuRemoved | GpuSwitch | Attachment | AttachmentRemoved):
        key = f"{change.node}:{change.uuid}"
        yield from ("pool", "nodes", f"node:{change.node}", f"gpu:{key}")
    elif isinstance(change, Grant):
        project = change.project or DEFAULT_PROJECT
        yield from ("pool", "nodes", "grants", "queue", f"grant:{change.id}", f"project:{project}")
        yield from (f"node:{node}" for node in change.nodes)
        yield from (f"gpu:{key}" for key, _ in change.placed())
        if change.reservation:
            yield f"reservation:{change.reservation}"
    elif isinstance(change, Session):
        yield from ("pool", "nodes", "sessions", f"session:{change.id}")
        yield from (f"grant:{change.grant_id}", f"node:{change.node}")
    elif isinstance(change, Reservation):
        yield from ("pool", "reservations", "queue", f"reservation:{change.id}")
        yield f"project:{change.project}"
        yield from (f"gpu:{slot.key}" for slot in change.slots)
    elif isinstance(change, Quota | QuotaRemoved):
        yield f"project:{change.project}"
    elif isinstance(change, Event):
        yield f"events:{change.subject}"
        if change.kind.startswith("request."):
            yield from ("pool", "queue")
