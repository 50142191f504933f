# SPDX-License-Identifier: Apache-2.0
"""Where a suspended grant may go on, on its own GPUs or on another of its node: is there room.

Used by suspending.Suspending, which has grants suspended, moved and resumed. What a session can do
is its server's to say (ReportedSuspension.moves_to); this is about the books. It promises that a
place it names has room for all that the grant has when it runs, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.kept_places import taken
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.model import Gpu, GpuKey, GpuMode, Grant, Vgpu
from sluice.controller.pool.reservations.reservations import Resources

Vgpus = tuple[Vgpu, ...]
NOTHING = Resources(0, 0)


class MovePlaces:
    """Of the pool's grants."""

    def __init__(self, ledger: GrantLedger, fleet: Fleet) -> None:
        self._ledger = ledger
        self._fleet = fleet

    def why_never(self, grant: Grant) -> str:
        """Why a grant stays on its GPUs whatever its server says; "": it may move."""
        node = self._fleet.nodes.get(grant.node)
        if len({key for key, _ in grant.placed()}) != 1:
            return f"grant {grant.id} is on several GPUs, which cannot be moved"
        if grant.reservation:
            return (
                f"grant {grant.id} draws on reservation {grant.reservation}, whose room is on its "
                "GPU"
            )
        if not self._ledger.sessions.live_of(grant.id):
            return f"nothing of grant {grant.id} runs: there is nothing to be moved"
        if node and not node.moves_sessions:
            return (
                f"node {grant.node} moves no sessions: set [suspend] movable = on in its "
                "server.conf; sessions that begin then can be moved"
            )
        return ""

    def why_not(self, grant: Grant, vgpus: Vgpus) -> str:
        """Why a grant cannot go on with these vGPUs, on another GPU than its own; "": it can."""
        key = GpuKey(grant.node, vgpus[0].gpu_uuid)
        own = self._fleet.gpus.get(own_gpu(grant))
        gpu, capacity = self._fleet.gpus.get(key), self._fleet.capacity.of(key)
        if key == own_gpu(grant):
            return f"grant {grant.id} is on GPU {key} already"
        if gpu is None or own is None:
            return f"node {grant.node} has no GPU {key.uuid}"
        if _kind(gpu) != _kind(own):
            return (
                f"GPU {key} is {_named(gpu)}, and grant {grant.id} is on {_named(own)}: a session "
                "moves between GPUs of one model"
            )
        if capacity is None or not self._fleet.is_open(gpu):
            return f"GPU {key} takes nothing new: {self._closed(gpu)}"
        if capacity.kind.promise.is_over:
            return (
                f"the memory of GPU {key} is promised more than once, and nobody could keep the "
                "room there in which a context comes back"
            )
        if not capacity.occupancy.admits(vgpus[0].sharing, grant.project, 1):
            return f"sessions run at once on GPU {key} (MPS)"
        if not self._has_room(grant, key, vgpus):
            free, (mib, percent) = self.free_for(grant, key), taken(vgpus)
            return (
                f"GPU {key} has {max(0, free.memory_mib)} MiB and "
                f"{max(0, free.compute_percent)} % free, and grant {grant.id} has {mib} MiB and "
                f"{percent} %"
            )
        return ""

    def free_for(self, grant: Grant, key: GpuKey) -> Resources:
        """What is free of a GPU for a grant that is to go there: what is kept for it, too."""
        with self._ledger.places.without(grant.id):
            capacity = self._fleet.capacity.of(key)
            return Resources(capacity.free_mib, capacity.free_percent) if capacity else NOTHING

    def keep(self, grant: Grant, vgpus: Vgpus) -> None:
        """Has the place that it is to go to booked, where there is room; else nothing more is.

        Whether the GPU takes anything at the moment does not matter: its node may be away. What it
        has there already stays its own, also where others have claimed more than there is.
        """
        places, uuid = self._ledger.places, vgpus[0].gpu_uuid
        if self._has_room(grant, GpuKey(grant.node, uuid), vgpus):
            places.keep(grant, vgpus)
        elif places.on(grant.id) != uuid:
            places.drop(grant.id)

    def _has_room(self, grant: Grant, key: GpuKey, vgpus: Vgpus) -> bool:
        free, (mib, percent) = self.free_for(grant, key), taken(vgpus)
        kept = taken(self._ledger.places.of(grant.id))
        has_it = self._ledger.places.on(grant.id) == key.uuid
        if has_it and mib <= kept[0] and percent <= kept[1]:
            return True
        return mib <= free.memory_mib and percent <= free.compute_percent

    def among(self, grant: Grant, sized: Vgpus, uuids: Iterable[str] | None = None) -> list[Vgpus]:
        """The vGPUs of a grant on each of these GPUs, or any, that has room; the fullest first."""
        if uuids is None:
            uuids = [gpu.uuid for gpu in self._fleet.of_node(grant.node)]
        found = [there for uuid in set(uuids) if not self.why_not(grant, there := at(sized, uuid))]
        return sorted(found, key=lambda vgpus: self._free(grant, vgpus))

    def fits_there(self, grant: Grant, sized: tuple[Vgpu, ...]) -> bool:
        """Whether it can have all of this again where it is, beside what it has there now."""
        memory: Counter[GpuKey] = Counter()
        percent: Counter[GpuKey] = Counter()
        contexts: Counter[GpuKey] = Counter()
        for (key, now), then in zip(grant.placed(), sized, strict=True):
            contexts[key] += then.overhead_mib - now.overhead_mib
            memory[key] += then.memory_mib - now.memory_mib
            memory[key] += then.overhead_mib - now.overhead_mib
            percent[key] += then.compute_percent - now.compute_percent
        for key in memory:
            gpu, room = self._fleet.gpus.get(key), self._room(grant, key)
            if room is None or gpu is None or gpu.fault:
                return False
            if memory[key] > max(0, room.memory_mib) or percent[key] > max(0, room.compute_percent):
                return False
        if grant.reservation:
            return True
        for (key, _), then in zip(grant.placed(), sized, strict=True):
            capacity = self._fleet.capacity_of(self._fleet.gpus[key])
            if not capacity.fits_alone(then.memory_mib, contexts[key]):
                return False
        return True

    def _room(self, grant: Grant, key: GpuKey) -> Resources | None:
        """What is free of a GPU for a grant: of its reservation, where it draws on one."""
        if grant.reservation:
            reservations = self._ledger.reservations
            return reservations.free(reservations.records[grant.reservation]).get(key)
        capacity = self._fleet.capacity.of(key)
        return Resources(capacity.free_mib, capacity.free_percent) if capacity else None

    def _free(self, grant: Grant, vgpus: Vgpus) -> tuple[int, str]:
        uuid = vgpus[0].gpu_uuid
        capacity = self._fleet.capacity.of(GpuKey(grant.node, uuid))
        return (capacity.free_mib if capacity else 0), uuid

    def _closed(self, gpu: Gpu) -> str:
        mode = self._fleet.mode(gpu.key)
        if mode is not GpuMode.POOLED:
            return f"it is {mode.value}"
        return gpu.fault or gpu.held or "its node is drained or away"


def at(vgpus: Vgpus, uuid: str) -> Vgpus:
    """The same on another GPU."""
    return tuple(replace(vgpu, gpu_uuid=uuid) for vgpu in vgpus)


def own_gpu(grant: Grant) -> GpuKey:
    """The GPU of a grant's first vGPU."""
    return next(key for key, _ in grant.placed())


def _kind(gpu: Gpu) -> tuple[str, int, bool]:
    return gpu.model, gpu.memory_mib, gpu.software


def _named(gpu: Gpu) -> str:
    return f"{gpu.model} with {gpu.memory_mib} MiB"
