# SPDX-License-Identifier: Apache-2.0
"""Sums over the pool's records, kept up to date by the changes that go to the store.

Owned by controller.grant_service, which shows it every change once; read by collector.py. So a
scrape costs as much as there are series, however large the pool is: 1,000 nodes of 8 GPUs are
walked once, when a controller begins to lead. Records replace one another by their ids, so showing
one twice does no harm. It promises that the sums are those that a walk through the pool would find.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from sluice.controller.pool.model import (
    Change,
    Event,
    Gpu,
    GpuKey,
    GpuMode,
    GpuRemoved,
    GpuSwitch,
    Grant,
    GrantState,
    Node,
    NodeState,
    Reservation,
    ReservationState,
    Session,
    SessionState,
)
from sluice.controller.pool.pool import Pool
from sluice.resources.ends import EndCause

HEALTHY, FAULTY, LOST = "healthy", "faulty", "lost"

T = TypeVar("T")


class Size(NamedTuple):
    """Of vGPUs; memory is with what their contexts take."""

    vgpus: int
    memory_mib: int
    compute_percent: int

    def plus(self, other: Size, sign: int) -> Size:
        """The sum, or with sign -1 the difference."""
        return Size(
            self.vgpus + sign * other.vgpus,
            self.memory_mib + sign * other.memory_mib,
            self.compute_percent + sign * other.compute_percent,
        )


NOTHING = Size(0, 0, 0)


class _Gpu(NamedTuple):
    mode: GpuMode
    health: str
    memory_mib: int


class _Grant(NamedTuple):
    size: Size
    drawn: bool  # on a reservation


class PoolTallies:
    """The sums."""

    def __init__(self, pool: Pool) -> None:
        self.nodes: Counter[NodeState] = Counter()
        self.drained_nodes = 0
        self.gpus: Counter[tuple[GpuMode, str]] = Counter()  # by mode and health
        self.memory_mib = 0  # of GPUs whose nodes are not lost
        self.grants = 0
        self.granted = NOTHING  # on reservations too
        self.drawn = NOTHING  # on reservations
        self.sessions: Counter[tuple[SessionState, str]] = Counter()  # by state and channel
        self.ended: Counter[EndCause] = Counter()  # sessions, since this controller leads
        self.reservations: Counter[ReservationState] = Counter()
        self.reserved = NOTHING  # drawn or not
        self.events: Counter[str] = Counter()  # since this controller leads, by kind
        self._nodes: dict[str, tuple[NodeState, bool]] = {}
        self._records: dict[GpuKey, Gpu] = {}
        self._modes: dict[GpuKey, GpuMode] = {}
        self._gpus: dict[GpuKey, _Gpu] = {}  # as they are counted
        self._gpus_of: dict[str, set[GpuKey]] = defaultdict(set)
        self._grants: dict[str, _Grant] = {}
        self._sessions: dict[str, tuple[SessionState, str]] = {}
        self._reservations: dict[str, tuple[ReservationState, Size]] = {}
        for records in (
            pool.nodes,
            pool.switches,
            pool.gpus,
            pool.grants,
            pool.sessions,
            pool.reservations,
        ):
            self.take(records.values())

    def take(self, changes: Iterable[Change]) -> None:
        """Counts what has changed."""
        for change in changes:
            if isinstance(change, Session):
                self._take_session(change)
            elif isinstance(change, Grant):
                self._take_grant(change)
            elif isinstance(change, Event):
                self.events[change.kind] += 1
            elif isinstance(change, Node):
                self._take_node(change)
            elif isinstance(change, Gpu):
                self._records[change.key] = change
                self._gpus_of[change.node].add(change.key)
                self._recount_gpu(change.key)
            elif isinstance(change, GpuRemoved):
                key = GpuKey(change.node, change.uuid)
                self._records.pop(key, None)
                self._gpus_of[change.node].discard(key)
                self._recount_gpu(key)
            elif isinstance(change, GpuSwitch):
                self._modes[change.key] = change.mode
                self._recount_gpu(change.key)
            elif isinstance(change, Reservation):
                self._take_reservation(change)

    def _take_node(self, node: Node) -> None:
        before = self._nodes.get(node.name)
        if before:
            _count(self.nodes, before[0], -1)
            self.drained_nodes -= before[1]
        self._nodes[node.name] = (node.state, node.drained)
        self.nodes[node.state] += 1
        self.drained_nodes += node.drained
        for key in self._gpus_of[node.name]:
            self._recount_gpu(key)

    def _recount_gpu(self, key: GpuKey) -> None:
        if before := self._gpus.pop(key, None):
            _count(self.gpus, (before.mode, before.health), -1)
            self.memory_mib -= before.memory_mib
        gpu = self._records.get(key)
        if gpu is None:
            return
        state, _ = self._nodes.get(key.node, (NodeState.LOST, False))
        lost = state is NodeState.LOST
        now = self._gpus[key] = _Gpu(
            self._modes.get(key, GpuMode.POOLED),
            LOST if lost else FAULTY if gpu.fault else HEALTHY,
            0 if lost else gpu.memory_mib,
        )
        self.gpus[now.mode, now.health] += 1
        self.memory_mib += now.memory_mib

    def _take_grant(self, grant: Grant) -> None:
        if before := self._grants.pop(grant.id, None):
            self._add_grant(before, -1)
        if grant.state is GrantState.LIVE:
            size = Size(
                len(grant.known_vgpus),
                sum(v.memory_mib + v.overhead_mib for v in grant.vgpus),
                sum(v.compute_percent for v in grant.vgpus),
            )
            now = self._grants[grant.id] = _Grant(size, bool(grant.reservation))
            self._add_grant(now, 1)

    def _add_grant(self, grant: _Grant, sign: int) -> None:
        self.grants += sign
        self.granted = self.granted.plus(grant.size, sign)
        if grant.drawn:
            self.drawn = self.drawn.plus(grant.size, sign)

    def _take_session(self, session: Session) -> None:
        if before := self._sessions.pop(session.id, None):
            _count(self.sessions, before, -1)
        if session.state is not SessionState.ENDED:
            now = self._sessions[session.id] = (session.state, session.channel)
            self.sessions[now] += 1
        elif before:
            self.ended[session.cause] += 1

    def _take_reservation(self, reservation: Reservation) -> None:
        if reservation.within:  # is counted with the reservation that it is a part of
            return
        if before := self._reservations.pop(reservation.id, None):
            _count(self.reservations, before[0], -1)
            self.reserved = self.reserved.plus(before[1], -1)
        if reservation.state is not ReservationState.ENDED:
            held = reservation.slots if reservation.state is ReservationState.HELD else ()
            size = Size(
                len(held),
                sum(slot.memory_mib + slot.overhead_mib for slot in held),
                sum(slot.compute_percent for slot in held),
            )
            self._reservations[reservation.id] = (reservation.state, size)
            self.reservations[reservation.state] += 1
            self.reserved = self.reserved.plus(size, 1)


def _count(counter: Counter[T], key: T, sign: int) -> None:
    counter[key] += sign
    if not counter[key]:
        del counter[key]
