# SPDX-License-Identifier: Apache-2.0
"""Which VM holds which native GPU: given, taken back, and kept true to what libvirt says.

Owned by pool.Pool. It promises that only a native GPU is given, to one VM, by its own node; that a
GPU which a VM holds does not return to the pool; and that what a node's libvirt reports is what is
recorded, whoever changed it, except for a GPU that the node has an order about at that moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sluice.controller.pool.gpus.attachment import (
    Attachment,
    AttachmentRemoved,
    AttachmentState,
    AttachOrder,
    AttachWhen,
    DetachOrder,
    ReportedHolding,
)
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import Clock, Gpu, GpuKey, GpuMode, NodeState


class Attachments:
    """Every native GPU that a VM holds."""

    def __init__(self, clock: Clock, ledger: GrantLedger, fleet: Fleet) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self.records: dict[GpuKey, Attachment] = {}
        self._ordered: set[GpuKey] = set()  # that a server has an order about now
        self._contested: set[tuple[GpuKey, str]] = set()  # that was said already

    def restore(self, attachments: Iterable[Attachment]) -> None:
        """Takes in what the store remembered; what was under way, libvirt will tell."""
        for attachment in attachments:
            self.records[GpuKey(attachment.node, attachment.uuid)] = attachment

    def holder(self, key: GpuKey) -> str:
        """The VM that holds a GPU; empty: none."""
        attachment = self.records.get(key)
        return attachment.domain_name if attachment else ""

    # what operators ask

    def begin_attach(
        self, key: GpuKey, domain: str, when: AttachWhen, *, rom_bar: bool
    ) -> AttachOrder:
        """Books a GPU for a VM; raises Impossible, Unknown."""
        gpu = self._gpu(key)
        mode = self._fleet.mode(key)
        if mode is not GpuMode.NATIVE:
            raise Impossible(
                f"GPU {key} is {mode.value}; only a native GPU is given to a VM: "
                f"`sluice pool switch {key} --to native`"
            )
        self._check_reach(gpu)
        known = self.records.get(key)
        if known and domain not in (known.domain_uuid, known.domain_name):
            raise Impossible(
                f"GPU {key} is {known.state.value} to VM {known.domain_name}; take it back first: "
                f"`sluice gpu detach {key}`"
            )
        if known is None:
            known = Attachment(
                key.node, key.uuid, "", domain, AttachmentState.ATTACHING, self._clock.wall(),
                generation=0,
            )  # fmt: skip
            self.records[key] = known
        self._ordered.add(key)
        if known.state is not AttachmentState.ATTACHED:
            self._set(key, known, AttachmentState.ATTACHING, "its server puts it into the VM")
        return AttachOrder(key.node, key.uuid, gpu.pci_address, domain, when, rom_bar)

    def begin_detach(self, key: GpuKey) -> DetachOrder:
        """Begins to take a GPU back from its VM; raises Impossible, Unknown."""
        gpu = self._gpu(key)
        known = self.records.get(key)
        if known is None:
            raise Impossible(f"GPU {key} is held by no VM")
        self._check_reach(gpu)
        self._ordered.add(key)
        self._set(key, known, AttachmentState.DETACHING, "its server takes it out of the VM")
        return DetachOrder(
            key.node, key.uuid, gpu.pci_address, known.domain_uuid or known.domain_name
        )

    def forget(self, key: GpuKey) -> None:
        """Drops the record and nothing else, for a node that does not return; raises Impossible."""
        self._gpu(key)
        if key not in self.records:
            raise Impossible(f"GPU {key} is held by no VM")
        if key in self._ordered:
            raise Impossible(f"node {key.node} has an order about GPU {key}: wait for its answer")
        self._remove(key)
        self._ledger.event("gpu.detached", str(key), "the operator dropped the record")

    # what servers answer

    def finish_attach(
        self, key: GpuKey, holding: ReportedHolding | None, error: str, note: str = ""
    ) -> None:
        """The server has done it, perhaps with a note for the operator, or says why not."""
        self._ordered.discard(key)
        known = self.records.get(key)
        if known is None:
            return
        if holding is not None and not error:
            known.domain_uuid, known.domain_name = holding.domain_uuid, holding.domain_name
            known.live, known.config = holding.live, holding.config
            if known.state is not AttachmentState.ATTACHED:
                self._ledger.event("gpu.attached", str(key), f"to VM {known.domain_name}")
            self._set(key, known, AttachmentState.ATTACHED, note)
        elif known.state is AttachmentState.ATTACHED:
            self._set(key, known, AttachmentState.ATTACHED, error)
        else:
            self._remove(key)
            self._ledger.event("gpu.not_attached", str(key), f"to VM {known.domain_name}: {error}")

    def finish_detach(
        self, key: GpuKey, holding: ReportedHolding | None, error: str, _note: str = ""
    ) -> None:
        """The server has done it, or says what the VM still has."""
        self._ordered.discard(key)
        known = self.records.get(key)
        if known is None:
            return
        if not error:
            self._remove(key)
            self._ledger.event("gpu.detached", str(key), f"from VM {known.domain_name}")
            return
        if holding is not None:
            known.live, known.config = holding.live, holding.config
        self._set(key, known, AttachmentState.ATTACHED, error)

    def unanswered(self, key: GpuKey, why: str) -> None:
        """The server did not answer: it may have done it or not, and its next report tells."""
        self._ordered.discard(key)
        if known := self.records.get(key):
            self._set(key, known, known.state, f"{why}; its next report tells what became of it")

    def report(self, node: str, holdings: Sequence[ReportedHolding]) -> None:
        """All that a node's libvirt has: the records are made to say so."""
        at: dict[str, list[ReportedHolding]] = defaultdict(list)
        for holding in holdings:
            at[holding.pci_address].append(holding)
        there = {holding.domain_uuid for holding in holdings}
        self._contested = {
            (key, domain) for key, domain in self._contested if key.node != node or domain in there
        }
        for gpu in self._fleet.of_node(node):
            if gpu.key not in self._ordered:
                self._reconcile(gpu, at.get(gpu.pci_address, []) if gpu.pci_address else [])

    def _reconcile(self, gpu: Gpu, holdings: list[ReportedHolding]) -> None:
        key, known = gpu.key, self.records.get(gpu.key)
        if self._fleet.mode(key) is not GpuMode.NATIVE and known is None:
            self._contest(key, holdings)
            return
        if not holdings:
            if known:
                self._remove(key)
                text = f"VM {known.domain_name} no longer has it"
                self._ledger.event("gpu.detached", str(key), text)
            return
        # who runs with it has it; of definitions, the recorded one's
        ours = known.domain_uuid if known else ""
        holdings.sort(key=lambda h: (not h.live, h.domain_uuid != ours, h.domain_name))
        first = holdings[0]
        self._contest(key, holdings[1:])
        if known is None or known.domain_uuid != first.domain_uuid:
            begun = known is not None and known.state is AttachmentState.ATTACHING
            how = "" if begun else ", not by the controller"
            self._ledger.event("gpu.attached", str(key), f"to VM {first.domain_name}{how}")
        now = (first.domain_uuid, first.domain_name, first.live, first.config)
        if known is None:
            known = Attachment(
                key.node, key.uuid, "", "", AttachmentState.ATTACHED, self._clock.wall(),
                generation=0,
            )  # fmt: skip
            self.records[key] = known
        was = (known.domain_uuid, known.domain_name, known.live, known.config)
        if was != now or known.state is not AttachmentState.ATTACHED:
            known.domain_uuid, known.domain_name, known.live, known.config = now
            self._set(key, known, AttachmentState.ATTACHED, "")

    def _contest(self, key: GpuKey, holdings: Iterable[ReportedHolding]) -> None:
        """Somebody wrote the GPU into a VM past the controller; it is said once."""
        mode = self._fleet.mode(key)
        for holding in holdings:
            if (key, holding.domain_uuid) in self._contested:
                continue
            self._contested.add((key, holding.domain_uuid))
            whose = (
                f"VM {self.records[key].domain_name} has it"
                if key in self.records
                else f"it is {mode.value}"
            )
            self._ledger.event(
                "gpu.contested",
                str(key),
                f"VM {holding.domain_name} has it in its definition, but {whose}: take it out with "
                "`virsh edit`",
            )

    # within

    def _gpu(self, key: GpuKey) -> Gpu:
        gpu = self._fleet.gpus.get(key)
        if gpu is None:
            raise Unknown("gpu", str(key))
        return gpu

    def _check_reach(self, gpu: Gpu) -> None:
        node = self._fleet.nodes[gpu.node]
        if gpu.key in self._ordered:
            raise Impossible(f"node {gpu.node} has an order about GPU {gpu.key}: wait for its end")
        if node.state is not NodeState.UP:
            raise Impossible(
                f"node {gpu.node} is {node.state.value}: its server has to be there to do it"
            )
        if gpu.software and not gpu.pci_address:
            raise Impossible(f"GPU {gpu.key} is a software GPU, which is no PCI device")
        if not gpu.pci_address:
            raise Impossible(
                f"node {gpu.node} does not say where GPU {gpu.uuid} is on PCI; name it in "
                "[native] addresses of its server.conf"
            )

    def _set(self, key: GpuKey, known: Attachment, state: AttachmentState, reason: str) -> None:
        if known.state is not state:
            known.since = self._clock.wall()
        known.state, known.reason = state, reason
        known.generation += 1
        self._ledger.changes.append(replace(known))

    def _remove(self, key: GpuKey) -> None:
        del self.records[key]
        self._ledger.changes.append(AttachmentRemoved(key.node, key.uuid))
