# SPDX-License-Identifier: Apache-2.0
"""What somebody is shown who only looks (nvidia-smi): vGPUs, what they use, and whose processes.

Made by server.sessions.views and controller.api.view_routes of what nodes say; read by
libnvidia-ml.so.1 (native/client/nvml/view.cc). docs/protocol.md, "Views", has the JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.protocol import frames

MOST_PROCESSES = 256


@dataclass(frozen=True, slots=True)
class Process:
    """A client's process as it is called where the client runs."""

    pid: int
    name: str


@dataclass(slots=True)
class _Shown:
    """A vGPU, with what all of its sessions use."""

    members: dict[str, Any]
    used_mib: int = 0
    processes: list[dict[str, Any]] = field(default_factory=list)


def view_text(
    sessions: Iterable[Any], processes: Mapping[str, Process], *, whose: str, most_bytes: int = 0
) -> str:
    """The JSON, at most `most_bytes` of it (protocol.yaml's max_view_bytes).

    `sessions`: messages rpc.SessionView; `processes`: by session id. `whose`: what the names of
    vGPUs are made of that nobody has. Where there is too much, figures go first, then processes,
    then vGPUs.
    """
    shown: dict[str, _Shown] = {}
    cards: dict[str, int] = {}
    for session in sessions:
        process = processes.get(session.session_id)
        for place, vgpu in enumerate(session.vgpus):
            uuid = vgpu.uuid or idle_uuid(whose, place)
            entry = shown.get(uuid)
            if entry is None:
                card = cards.setdefault(vgpu.gpu_uuid, len(cards))
                entry = shown[uuid] = _Shown(_members(vgpu, uuid, card))
            entry.used_mib = min(vgpu.memory_mib, entry.used_mib + vgpu.used_mib)
            if process and len(entry.processes) < MOST_PROCESSES:
                entry.processes.append(
                    {"pid": process.pid, "name": process.name, "used_mib": vgpu.used_mib}
                )
    return _within(list(shown.values())[: frames.MAX_DEVICES], most_bytes or frames.MAX_VIEW_BYTES)


def idle_uuid(whose: str, place: int) -> str:
    """A name for a vGPU that nobody has: the same each time for the same requester and place."""
    digits = hashlib.sha256(f"sluice idle {place} {whose}".encode()).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def _members(vgpu: Any, uuid: str, card: int) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "idle": not vgpu.uuid,
        "name": vgpu.name,
        "memory_mib": vgpu.memory_mib,
        "compute_percent": vgpu.compute_percent,
        "pci_bus_id": vgpu.pci_bus_id,
        "driver_name": vgpu.driver_name,
        "cuda_version": vgpu.cuda_version,
        "card": card,
        "attributes": vgpu.attributes,
        "figures": " ".join(f"{key}={value}" for key, value in sorted(vgpu.figures.items())),
    }


def _within(shown: Sequence[_Shown], most_bytes: int) -> str:
    def text(count: int, processes: int, *, figures: bool) -> str:
        vgpus = []
        for each in shown[:count]:
            members = {**each.members, "used_mib": each.used_mib}
            if not figures:
                del members["figures"]
            vgpus.append({**members, "processes": each.processes[:processes]})
        return json.dumps({"vgpus": vgpus}, separators=(",", ":"))

    count, processes, figures = len(shown), MOST_PROCESSES, True
    while len(whole := text(count, processes, figures=figures)) > most_bytes and count:
        if figures:
            figures = False
        elif processes:
            processes //= 2
        else:
            count -= 1
    return whole
