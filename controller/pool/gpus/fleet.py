# SPDX-License-Identifier: Apache-2.0
"""The nodes and GPUs of the pool, and which of them may be given away.

Owned by pool.Pool, read by scheduling and preemption. It promises that `capacity_of` is what the
ledger leaves free, and that a GPU is open only while its node has a stream, neither of them is
drained and nothing is wrong with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.gpus.capacity import PoolCapacity
from sluice.controller.pool.gpus.oversubscription import promises_of
from sluice.controller.pool.gpus.slices import FreeCapacity
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.model import (
    Clock,
    Gpu,
    GpuKey,
    GpuMode,
    GpuRemoved,
    GpuSwitch,
    Grant,
    Node,
    NodeState,
    Sharing,
)
from sluice.controller.pool.ordered import Ordered
from sluice.controller.pool.placement import feasibility


class Fleet:
    """Nodes, GPUs and their modes."""

    def __init__(
        self,
        clock: Clock,
        ledger: GrantLedger,
        gpus: dict[GpuKey, Gpu],
        vgpu_count: int,
        sharing: Sharing = Sharing.AUTO,
        memory_oversubscription: float = 1.0,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._vgpu_count = vgpu_count
        self.sharing = sharing
        self._memory_factor = memory_oversubscription
        self.nodes: dict[str, Node] = {}
        self.gpus = gpus
        self.nodes_in_order: Ordered[Node] = Ordered()  # by name
        self.gpus_in_order: Ordered[Gpu] = Ordered()  # by node and UUID
        self.switches: dict[GpuKey, GpuSwitch] = {}
        self.faulty: set[GpuKey] = set()  # as their nodes say
        self.unreported: set[GpuKey] = set()  # native GPUs that their nodes do not see
        self.share_grants: set[str] = set()  # nodes that can have a part of a grant
        self._by_node: dict[str, dict[GpuKey, Gpu]] = defaultdict(dict)
        self.capacity = PoolCapacity(ledger.allocations.usage)
        ledger.allocations.on_change = self.capacity.changed
        self._reach: dict[GrantRequest, frozenset[GpuKey]] = {}

    # changes

    def restore(
        self, nodes: Iterable[Node], gpus: Iterable[Gpu], switches: Iterable[GpuSwitch]
    ) -> None:
        """Takes in what the store remembered."""
        now = self._clock.monotonic()
        for node in nodes:
            if node.state is NodeState.UP:
                node.state = NodeState.AWAY
            # silence counts from now on: the controller was the one who was away
            node.last_seen = now
            self._put_node(node)
            self.share_grants.add(node.name)  # until it says otherwise
        for gpu in gpus:
            self._put(gpu)
        for switch in switches:
            if switch.mode is not GpuMode.POOLED:
                self.switches[switch.key] = switch
        for name in self.nodes:
            self.changed(name)

    def joined(self, node: Node, gpus: list[Gpu]) -> None:
        """A server came (back) and says what GPUs it has."""
        known = self.nodes.get(node.name)
        node.generation = known.generation + 1 if known else 1
        node.drained = known.drained if known else False
        node.state = NodeState.UP
        node.last_seen = self._clock.monotonic()
        self._put_node(node)
        self._ledger.changes.append(replace(node))
        self._ledger.event("node.up", node.name, f"{node.version} at {node.address}:{node.port}")
        reported = {gpu.key for gpu in gpus}
        for key in [key for key in self._by_node[node.name] if key not in reported]:
            if self.mode(key) in (GpuMode.NATIVE, GpuMode.RETURNING):
                self.unreported.add(key)  # a VM has it: no wonder that its node does not see it
                continue
            del self.gpus[key], self._by_node[node.name][key]
            self.gpus_in_order.drop((key.node, key.uuid))
            self.faulty.discard(key)
            self._ledger.changes.append(GpuRemoved(key.node, key.uuid))
            self._ledger.event("gpu.gone", str(key), "its node no longer reports it")
        for gpu in gpus:
            self.unreported.discard(gpu.key)
            before = self.gpus.get(gpu.key)
            if before == gpu:
                continue
            self._put(gpu)
            self._ledger.changes.append(gpu)
            if before is None or _well(before) != _well(gpu):
                self._ledger.event("gpu.joined", str(gpu.key), f"{gpu.model}, {gpu.memory_mib} MiB")
            self._note_condition(before, gpu)
        self.changed(node.name)

    def set_condition(self, gpu: Gpu) -> None:
        """A GPU is well, flagged, held or at fault; the rest of it is as it was."""
        before = self.gpus[gpu.key]
        if before == gpu:
            return
        self._put(gpu)
        self._ledger.changes.append(gpu)
        self._note_condition(before, gpu)
        self.changed(gpu.node)

    def _note_condition(self, before: Gpu | None, now: Gpu) -> None:
        old = (before.fault, before.held, before.note) if before else ("", "", "")
        if old == (now.fault, now.held, now.note):
            return
        subject = str(now.key)
        if now.fault:
            self._ledger.event("gpu.fault", subject, now.fault)
        elif now.held:
            self._ledger.event("gpu.held", subject, now.held)
        elif now.note:
            self._ledger.event("gpu.flagged", subject, now.note)
        else:
            self._ledger.event("gpu.well", subject, "it takes grants again")

    def why_broken(self, grant: Grant) -> str:
        """Which GPU of a grant has failed, or is no longer reported by its node; "": none."""
        for key, vgpu in grant.placed():
            if vgpu.is_unknown:
                continue
            if key in self.faulty:
                return f"GPU {key} of its job has failed"
            if key not in self.gpus:
                return f"GPU {key} of its job is gone from its node"
        return ""

    def set_state(self, node: Node, state: NodeState, why: str) -> None:
        """A node is there, away or lost."""
        node.state = state
        self.changed(node.name)
        self._ledger.changes.append(replace(node))
        self._ledger.event(f"node.{state.value}", node.name, why)

    def set_sharing(self, name: str, shared: Node) -> None:
        """A node's GPUs can be shared otherwise than before, as `shared` says."""
        node = self.nodes.get(name)
        if node is None or node.shared_in(self.sharing) == shared.shared_in(self.sharing):
            return
        node.sharing, node.shares = shared.sharing, shared.shares
        node.concurrent = shared.concurrent
        node.concurrent_problem = shared.concurrent_problem
        self._ledger.changes.append(replace(node))
        text = f"shares of time: {node.shares.value}; at once: {node.concurrent_problem or 'yes'}"
        self._ledger.event("node.sharing", name, text)
        self.changed(name)

    def was_away(self, seconds: float) -> None:
        """The controller itself stood still for so long: that is nobody's silence."""
        for node in self.nodes.values():
            node.last_seen += seconds

    def changed(self, name: str) -> None:
        """A node, or what it has, is another than before: its GPUs are counted anew."""
        self._reach.clear()
        node = self.nodes.get(name)
        if node is None or node.state is NodeState.LOST:
            self.capacity.drop(name)
            return
        inside = [
            gpu
            for gpu in self._by_node[name].values()
            if not gpu.fault and self.mode(gpu.key) is not GpuMode.NATIVE
        ]
        count = self._vgpu_count or node.vgpu_count or 1
        sharing = node.shared_in(self.sharing)
        self.capacity.put(
            *(name, node.labels, inside, count),
            is_open=self.is_open,
            sharing=sharing,
            promises=promises_of(node, self._memory_factor, self._by_node[name].values()),
        )

    def _put_node(self, node: Node) -> None:
        (self.share_grants.add if node.takes_parts else self.share_grants.discard)(node.name)
        self.nodes[node.name] = node
        self.nodes_in_order.put((node.name,), node)

    def _put(self, gpu: Gpu) -> None:
        key = gpu.key
        self.gpus[key] = gpu
        self._by_node[gpu.node][key] = gpu
        self.gpus_in_order.put((gpu.node, gpu.uuid), gpu)
        (self.faulty.add if gpu.fault else self.faulty.discard)(gpu.key)

    # what there is

    def of_node(self, name: str) -> list[Gpu]:
        """A node's GPUs."""
        return list(self._by_node.get(name, {}).values())

    def mode(self, key: GpuKey) -> GpuMode:
        """Which pool the GPU is in."""
        switch = self.switches.get(key)
        return switch.mode if switch else GpuMode.POOLED

    def is_open(self, gpu: Gpu) -> bool:
        """Whether something new may be placed on it now."""
        node = self.nodes[gpu.node]
        if gpu.fault or gpu.held:
            return False
        return (
            node.state is NodeState.UP and not node.drained and self.mode(gpu.key) is GpuMode.POOLED
        )

    def reach(self, alike: GrantRequest) -> frozenset[GpuKey]:
        """The GPUs that such a request would fit on if they were empty; it holds them waiting."""
        found = self._reach.get(alike)
        if found is None:
            found = self._reach[alike] = frozenset(feasibility.reach(alike, self.capacity))
        return found

    def capacity_of(self, gpu: Gpu) -> FreeCapacity:
        """What is free on a GPU, as it is now; nothing on one that is not in the pool."""
        capacity = self.capacity.of(gpu.key)
        if capacity is None:
            return FreeCapacity(gpu, 0, 0, 1)
        return capacity.figures


def _well(gpu: Gpu) -> Gpu:
    return replace(gpu, fault="", held="", note="")
