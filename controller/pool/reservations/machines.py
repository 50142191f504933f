# SPDX-License-Identifier: Apache-2.0
"""The VMs that servers report: what each asks for by its metadata, and what is wrong with that.

Owned by pool.Pool. A server reports all its VMs at once, so that a report is the truth
of that server and may be repeated. It promises that every change is in the event log once, also
over a restart, and that a VM whose mode is reserved has one reservation of its size, made, resized
and ended with its request: the owner is the VM's UUID, wherever it runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Protocol

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import (
    Clock,
    Document,
    DocumentRemoved,
    IdFactory,
    Mode,
    OwnerKind,
    Reservation,
    ReservationState,
)
from sluice.controller.pool.reservations.steps import Outcome

COLLECTION = "machines"
MOST_PROBLEMS = 8
MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Machine:
    """A VM with a request or a problem. Memory in MiB, compute in percent, of each vGPU."""

    uuid: str
    name: str
    node: str
    project: str = ""
    count: int = 0  # 0: it asks for nothing that can be served
    memory_mib: int = 0
    compute_percent: int = 0
    priority: int = 0
    mode: Mode = Mode.AUTO
    problems: tuple[str, ...] = ()
    reservation: str = ""  # that was made for it
    refused: str = ""  # why it has none, or not one of its size

    @property
    def requested(self) -> str:
        """What it asks for, in words."""
        if not self.count:
            return "nothing"
        return (
            f"{self.count} vGPU(s) of {self.memory_mib} MiB and {self.compute_percent} %, "
            f"{self.mode.value}, priority {self.priority}"
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """What a reservation for it has to have."""
        return self.count, self.memory_mib, self.compute_percent


class Reserver(Protocol):
    """The steps of ReservationOperations that are needed here."""

    def reserve(self, reservation: Reservation, *, wait: bool) -> tuple[Outcome, Decisions]:
        """Holds room, or lets it wait for room."""
        ...

    def end_reservation(self, reservation_id: str, reason: str) -> Decisions:
        """Gives its room back."""
        ...

    def resize_reservation(
        self, reservation_id: str, count: int, memory_mib: int, compute_percent: int
    ) -> Decisions:
        """Changes its size."""
        ...


class Machines:
    """Every VM that a server reported."""

    def __init__(
        self, clock: Clock, new_id: IdFactory, ledger: GrantLedger, reserver: Reserver
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._ledger = ledger
        self._reserver = reserver
        self.records: dict[str, Machine] = {}

    def restore(self, documents: Iterable[Document]) -> None:
        """Takes in what the store remembered."""
        for document in documents:
            if document.collection == COLLECTION:
                values = json.loads(document.value)
                values |= {"mode": Mode(values["mode"]), "problems": tuple(values["problems"])}
                self.records[document.key] = Machine(**values)

    def report(self, node: str, machines: Sequence[Machine]) -> Decisions:
        """All VMs of a node; those that it had and names no more are gone from there."""
        decisions = Decisions()
        named = {machine.uuid for machine in machines}
        for machine in machines:
            problems = tuple(text[:MOST_TEXT] for text in machine.problems[:MOST_PROBLEMS])
            self._take(replace(machine, node=node, problems=problems), decisions)
        for known in [m for m in self.records.values() if m.node == node and m.uuid not in named]:
            self._take(Machine(known.uuid, known.name, node), decisions)
        return decisions

    def _take(self, seen: Machine, decisions: Decisions) -> None:
        known = self.records.get(seen.uuid)
        if known is not None and known.node != seen.node and not seen.count:
            return  # it was migrated, and its former host says that it is gone
        before = known or Machine(seen.uuid, seen.name, seen.node)
        after = replace(seen, reservation=before.reservation, refused=before.refused)
        if after.requested != before.requested or (
            known and after.node != known.node and after.count
        ):
            where = f"{after.name} on {after.node}"
            self._ledger.event("vm.request", after.uuid, f"{where}: {after.requested}")
        for text in after.problems:
            if text not in before.problems:
                self._ledger.event("vm.problem", after.uuid, text)
        if before.problems and not after.problems:
            self._ledger.event("vm.well", after.uuid, f"{after.name}: nothing is wrong any more")
        after = self._with_reservation(after, decisions)
        if not after.count and not after.problems:
            if known is not None:
                del self.records[after.uuid]
                self._ledger.changes.append(DocumentRemoved(COLLECTION, after.uuid))
        elif after != known:
            self.records[after.uuid] = after
            self._ledger.changes.append(Document(COLLECTION, after.uuid, json.dumps(asdict(after))))

    def _with_reservation(self, machine: Machine, decisions: Decisions) -> Machine:
        """Makes, resizes or ends the VM's reservation."""
        wanted = bool(machine.count) and machine.mode is Mode.RESERVED
        known = self._ledger.reservations.records.get(machine.reservation)
        held = known if known is not None and known.state is not ReservationState.ENDED else None
        refused = ""
        if held is not None and (not wanted or held.project != machine.project):
            why = "its VM asks for none" if not wanted else "its VM is on another account"
            self._try(decisions, partial(self._reserver.end_reservation, held.id, why))
            held = None
        if wanted and held is None:
            made = self._reservation(machine)
            refused = self._reserve(made, decisions)
            held = None if refused else made
        elif held is not None and (held.count, held.memory_mib, held.compute_percent) != (
            machine.sizes
        ):
            resize = partial(self._reserver.resize_reservation, held.id, *machine.sizes)
            refused = self._try(decisions, resize)
        if refused and refused != machine.refused:
            text = f"{machine.name}: its reservation cannot be made or changed: {refused}"
            self._ledger.event("vm.problem", machine.uuid, text)
        return replace(machine, reservation=held.id if held else "", refused=refused)

    def _reservation(self, machine: Machine) -> Reservation:
        return Reservation(
            id=self._new_id(),
            owner_kind=OwnerKind.VM,
            owner=machine.uuid,
            project=machine.project,
            count=machine.count,
            memory_mib=machine.memory_mib,
            compute_percent=machine.compute_percent,
            priority=machine.priority,
            node="",
            created=self._clock.wall(),
        )

    def _reserve(self, reservation: Reservation, decisions: Decisions) -> str:
        """Why it is not held and does not wait either, or nothing."""
        outcome, more = self._reserver.reserve(reservation, wait=True)
        decisions.add(more)
        return "" if isinstance(outcome, Reservation) else str(outcome)

    def _try(self, decisions: Decisions, step: Callable[[], Decisions]) -> str:
        """Why it could not be done, or nothing."""
        try:
            decisions.add(step())
        except (Impossible, Unknown) as error:
            return str(error)
        return ""
