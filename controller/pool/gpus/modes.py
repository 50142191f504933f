# SPDX-License-Identifier: Apache-2.0
"""The two pools: takes GPUs out of the pool, for a VM of its own or for service, and back.

Called by operations.GpuOperations, membership and progress. A GPU goes pooled → draining → native →
returning → pooled, or, only drained, pooled → draining → drained → pooled; a switch can be
cancelled until it is native. It promises that a GPU which is not pooled takes nothing new, that it
becomes native only when nothing of the pool is on it, and that its state says what it waits for.
"Nothing" includes the server's own processes: it is told by a Handover to let the GPU go, and says
when it has, or why it cannot; and it is told to take it back, which is done when the host's driver
has it again. What fails is tried again. A GPU that a VM holds does not return.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from sluice.controller.pool.decisions import Decisions, Handover
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import (
    Clock,
    GpuKey,
    GpuMode,
    GpuSwitch,
    NodeState,
    SwitchStep,
)
from sluice.controller.pool.queue.preemption import Yield
from sluice.resources.ends import End, EndCause


class GpuModes:
    """Every GPU that is not simply pooled."""

    def __init__(
        self,
        clock: Clock,
        ledger: GrantLedger,
        fleet: Fleet,
        give_way: Yield,
        held_by: Callable[[GpuKey], str],
        *,
        hands_over: bool,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self._yield = give_way
        self._held_by = held_by  # the VM that holds a GPU; empty: none
        self._hands_over = hands_over
        self._returned: set[GpuKey] = set()  # back at the host's driver, says their node
        self._stuck: dict[GpuKey, tuple[str, float]] = {}  # why, and when to try again
        self._let_go: set[GpuKey] = set()  # for a fault
        #: Has what can be moved leave a GPU that drains (suspending.Suspending).
        self.move_away: Callable[[GpuKey, Decisions], None] = lambda key, decisions: None
        #: How many grants are on their way from a GPU to another, and are booked there.
        self.leaving: Callable[[GpuKey], int] = lambda key: 0

    def switch(self, key: GpuKey, to: GpuMode, *, preempt: bool, decisions: Decisions) -> GpuSwitch:
        """Begins to take a GPU out of the pool, or to take it back; raises Impossible, Unknown."""
        if key not in self._fleet.gpus:
            raise Unknown("gpu", str(key))
        known = self._fleet.switches.get(key)
        mode = known.mode if known else GpuMode.POOLED
        if to is GpuMode.POOLED:
            if known is None:
                raise Impossible(f"GPU {key} is pooled already")
            if mode is GpuMode.NATIVE:
                if domain := self._held_by(key):
                    raise Impossible(
                        f"GPU {key} is held by VM {domain}; take it back first: "
                        f"`sluice gpu detach {key}`"
                    )
                known.target = GpuMode.POOLED
                self._set(known, GpuMode.RETURNING, "its node has yet to report it")
                self._order(known, GpuMode.POOLED, decisions)
            elif mode is GpuMode.RETURNING:
                self._try_again(known, decisions)
            else:
                self._pooled(known, "taken back", decisions)
            self.advance(decisions)
            return known
        if mode in (GpuMode.NATIVE, GpuMode.RETURNING):
            raise Impossible(
                f"GPU {key} is {mode.value}; take it back first: "
                f"`sluice pool switch {key} --to pooled`"
            )
        if to is GpuMode.NATIVE and (problem := self._fleet.gpus[key].native_problem):
            raise Impossible(f"GPU {key} cannot be given to a VM: {problem}")
        if known is None:
            known = GpuSwitch(
                key.node, key.uuid, GpuMode.POOLED, to, preempt, "", self._clock.wall()
            )
            self._fleet.switches[key] = known
        known.target, known.preempt = to, preempt
        self._set(known, GpuMode.DRAINING, f"to be {to.value}")
        self.move_away(key, decisions)
        if preempt:
            for grant in self._ledger.grants.live_on_gpu(key):
                if grant.moving_to:
                    continue
                why = End(
                    EndCause.GPU_WITHDRAWN, f"the operator takes GPU {key.uuid} out of the pool"
                )
                self._yield.ask(grant, why, decisions)
                self._ledger.event("grant.preempted", grant.id, why.text)
        self.advance(decisions)
        return known

    def cancel(self, key: GpuKey, decisions: Decisions) -> GpuSwitch:
        """Leaves a GPU in the pool that is on its way out of it; raises Impossible, Unknown."""
        if key not in self._fleet.gpus:
            raise Unknown("gpu", str(key))
        known = self._fleet.switches.get(key)
        if known is None or known.mode is not GpuMode.DRAINING:
            mode = known.mode.value if known else GpuMode.POOLED.value
            raise Impossible(f"GPU {key} is {mode}; only a GPU that is draining can be cancelled")
        self._pooled(known, "its switch was cancelled", decisions)
        return known

    def drain_node(self, name: str, *, drained: bool) -> None:
        """A node takes nothing new, or takes it again; raises Unknown."""
        node = self._fleet.nodes.get(name)
        if node is None:
            raise Unknown("node", name)
        if node.drained == drained:
            return
        node.drained = drained
        node.generation += 1
        self._fleet.changed(name)
        self._ledger.changes.append(replace(node))
        kind = "node.drained" if drained else "node.undrained"
        text = "it takes no new grants" if drained else "it takes grants again"
        self._ledger.event(kind, name, text)

    def joined(self, node: str, let_go: Collection[str], decisions: Decisions) -> None:
        """A server came (back), and says of which GPUs it has let go: it is told what is so now."""
        self._let_go = {key for key in self._let_go if key.node != node}
        for uuid in sorted(let_go):
            key = GpuKey(node, uuid)
            if key not in self._fleet.switches and key not in self._fleet.faulty:
                decisions.handovers.append(Handover(node, uuid, GpuMode.POOLED))
        for key, known in self._fleet.switches.items():
            if key.node != node:
                continue
            if known.mode is GpuMode.DRAINING:
                known.step = SwitchStep.NONE  # what it was told may be lost: it is told again
            elif known.mode is GpuMode.RETURNING:
                self._order(known, GpuMode.POOLED, decisions)
            elif key not in self._fleet.unreported:
                self._order(known, known.mode, decisions)

    def handed_over(self, key: GpuKey, error: str = "", generation: int | None = None) -> None:
        """The Handover is done, or says why it cannot be; one of another switch is nobody's."""
        known = self._fleet.switches.get(key)
        if known is None or known.mode not in (GpuMode.DRAINING, GpuMode.RETURNING):
            return
        returning = known.mode is GpuMode.RETURNING
        if not returning and known.step not in TOLD:
            return
        if generation not in (None, known.generation):
            return
        if error:
            news = self._stuck.get(key, ("", 0.0))[0] != error
            self._stuck[key] = (error, self._clock.monotonic() + RETRY_SECONDS)
            known.step, known.reason = SwitchStep.STUCK, f"{STUCK}: {error}"
            known.generation += 1
            self._ledger.changes.append(replace(known))
            if news:
                self._ledger.event("gpu.stuck", str(key), known.reason)
        elif returning:
            self._returned.add(key)
        else:
            self._set(known, known.target, EMPTY[known.target])

    def advance(self, decisions: Decisions) -> None:
        """Takes every switch as far as it goes now."""
        for key, switch in list(self._fleet.switches.items()):
            if self._is_due(switch):
                self._try_again(switch, decisions)
            if switch.mode is GpuMode.DRAINING:
                self._drain(key, switch, decisions)
            elif switch.mode is GpuMode.RETURNING:
                there = self._is_up(key) and key not in self._fleet.unreported
                if there and (key in self._returned or not self._hands_over):
                    self._pooled(switch, "its node reports it", decisions)
        if self._hands_over and self._fleet.faulty != self._let_go:
            self._let_go_of_faulty(decisions)

    def _is_up(self, key: GpuKey) -> bool:
        node = self._fleet.nodes.get(key.node)
        return node is not None and node.state is NodeState.UP

    def _is_due(self, switch: GpuSwitch) -> bool:
        """Whether its handover failed a while ago: what was in the way may be gone."""
        if switch.key not in self._stuck or switch.step is not SwitchStep.STUCK:
            return False
        _, again = self._stuck[switch.key]
        return self._is_up(switch.key) and self._clock.monotonic() >= again

    def _try_again(self, switch: GpuSwitch, decisions: Decisions) -> None:
        """Has it handed over once more; of a GPU that drains, _drain does."""
        why, _ = self._stuck.get(switch.key, ("", 0.0))
        self._stuck[switch.key] = (why, self._clock.monotonic() + RETRY_SECONDS)
        if switch.mode is GpuMode.DRAINING:
            switch.step = SwitchStep.NONE
        else:
            self._order(switch, GpuMode.POOLED, decisions)

    def _let_go_of_faulty(self, decisions: Decisions) -> None:
        """A GPU at fault is held by nobody once nothing runs on it, so that it can be reset."""
        for key in sorted(self._let_go - self._fleet.faulty, key=str):
            self._let_go.discard(key)
            if key in self._fleet.gpus and key not in self._fleet.switches:
                decisions.handovers.append(Handover(key.node, key.uuid, GpuMode.POOLED))
        for key in sorted(self._fleet.faulty - self._let_go, key=str):
            up = self._fleet.nodes[key.node].state is NodeState.UP
            if up and key not in self._fleet.switches and not self._ledger.grants.live_on_gpu(key):
                self._let_go.add(key)
                decisions.handovers.append(Handover(key.node, key.uuid, GpuMode.DRAINED))

    def _drain(self, key: GpuKey, switch: GpuSwitch, decisions: Decisions) -> None:
        self.move_away(key, decisions)
        grants = len(self._ledger.grants.live_on_gpu(key)) + self.leaving(key)
        reservations = self._ledger.reservations.on(key)
        waits = []
        if grants:
            waits.append(f"{grants} grant(s) to end")
        if reservations:
            waits.append(f"reservation {', '.join(reservations)} to be deleted or made smaller")
        if waits:
            reason = f"to be {switch.target.value}; waits for {' and '.join(waits)}"
            if reason != switch.reason:
                switch.step, switch.reason = SwitchStep.WAITING, reason
                switch.generation += 1
                self._ledger.changes.append(replace(switch))
        elif not self._hands_over:
            self._set(switch, switch.target, EMPTY[switch.target])
        elif switch.step not in TOLD:
            switch.step, switch.reason = SwitchStep.HANDING_OVER, HANDED_OVER
            switch.generation += 1
            self._ledger.changes.append(replace(switch))
            self._order(switch, switch.target, decisions)

    def _order(self, switch: GpuSwitch, to: GpuMode, decisions: Decisions) -> None:
        gpu = self._fleet.gpus.get(switch.key)
        address = gpu.pci_address if gpu else ""
        order = Handover(switch.node, switch.uuid, to, switch.generation, address)
        decisions.handovers.append(order)

    def _pooled(self, switch: GpuSwitch, reason: str, decisions: Decisions) -> None:
        told = switch.mode is GpuMode.DRAINED or switch.step in TOLD
        switch.target = GpuMode.POOLED
        self._set(switch, GpuMode.POOLED, reason)
        if told and switch.key not in self._fleet.faulty:
            self._order(switch, GpuMode.POOLED, decisions)
        del self._fleet.switches[switch.key]
        self._fleet.changed(switch.node)

    def _set(self, switch: GpuSwitch, mode: GpuMode, reason: str) -> None:
        self._stuck.pop(switch.key, None)
        self._returned.discard(switch.key)
        switch.mode, switch.reason, switch.since = mode, reason, self._clock.wall()
        switch.step = SwitchStep.NONE
        switch.generation += 1
        self._fleet.changed(switch.node)
        self._ledger.changes.append(replace(switch))
        self._ledger.event(f"gpu.{mode.value}", str(switch.key), reason)


EMPTY = {GpuMode.NATIVE: "one VM's alone", GpuMode.DRAINED: "nothing is on it"}
HANDED_OVER = "nothing is on it; being handed over"
STUCK = "cannot be handed over"
TOLD = (SwitchStep.HANDING_OVER, SwitchStep.STUCK)
"""Its node was told to let the GPU go."""
RETRY_SECONDS = 30.0
