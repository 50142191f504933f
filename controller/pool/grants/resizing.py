# SPDX-License-Identifier: Apache-2.0
"""Resizes grants while they are in use: booked before it is granted, given back after it is taken.

Called by lifecycle.GrantLifecycle. A resize of a grant that runs has two steps: what it grows by is
booked and the server is told; when the server has done it the rest is given back, and when it
cannot, everything is as it was. It promises that the ledger never says less than what a server may
still run with.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.controller.pool.admission import refusals
from sluice.controller.pool.decisions import Decisions, ResizeOrder
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.oversubscription import stays
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.impossible import Impossible, Over, Unknown
from sluice.controller.pool.model import Grant, GrantState, NodeState, Sharing, Vgpu
from sluice.controller.pool.projects.quotas import Held
from sluice.protocol.frames import MIN_CONCURRENT_PERCENT

Vgpus = tuple[Vgpu, ...]


class Resizing:
    """Grants whose limits are being changed."""

    def __init__(self, ledger: GrantLedger, fleet: Fleet, jobs: Jobs) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._under_way: dict[str, tuple[Vgpus, Vgpus]] = {}  # by grant: before, after

    def begin(self, grant_id: str, memory_mib: int, compute_percent: int) -> ResizeOrder | None:
        """Books what it grows by; zeros leave a size as it is. Raises Impossible, Unknown.

        None: nothing runs with the old limits, so it is done.
        """
        grant = self._ledger.grants.get(grant_id)
        if grant is None:
            raise Unknown("grant", grant_id)
        if grant.state is not GrantState.LIVE or self._jobs.is_ending(grant):
            raise Over("grant", f"grant {grant_id} has ended or is being ended")
        if grant.spans_nodes:
            raise Impossible(
                f"grant {grant_id} has vGPUs of {grant.nodes_in_words}, which keep their size: "
                "end it, and ask for others"
            )
        if grant.suspension is not SuspensionState.NONE:
            raise Impossible(
                f"grant {grant_id} is {grant.suspension.value}, and keeps its sizes until it runs "
                f"again: sluice grant resume {grant_id}"
            )
        if grant_id in self._under_way:
            raise Impossible(f"grant {grant_id} is being resized already; try again")
        before = grant.vgpus
        after = tuple(
            replace(
                vgpu,
                memory_mib=memory_mib or vgpu.memory_mib,
                compute_percent=compute_percent or vgpu.compute_percent,
            )
            for vgpu in before
        )
        if after == before:
            return None
        if compute_percent and any(vgpu.sharing is Sharing.CONCURRENT for vgpu in before):
            if compute_percent < MIN_CONCURRENT_PERCENT:
                raise Impossible(refusals.too_small_at_once(compute_percent))
            if self._ledger.sessions.live_of(grant_id):
                raise Impossible(
                    f"sessions of grant {grant_id} run at once with others (MPS), whose shares are "
                    "fixed when a session begins; end its processes first, or change memory alone"
                )
        self._check_room(grant, after)
        larger = tuple(
            replace(
                old,
                memory_mib=max(old.memory_mib, new.memory_mib),
                compute_percent=max(old.compute_percent, new.compute_percent),
            )
            for old, new in zip(before, after, strict=True)
        )
        if not grant.reservation:
            over = self._ledger.quotas.exceeded(grant.project, Held.of(larger), Held.of(before))
            if over and Held.of(larger) != Held.of(before):
                raise Impossible(str(over))
        if not self._ledger.sessions.live_of(grant_id):
            self._set(grant, after)
            return None
        node = self._fleet.nodes.get(grant.node)
        if node is None or node.state is not NodeState.UP:
            raise Impossible(f"node {grant.node} of grant {grant_id} is not connected; try later")
        if larger != before:
            self._ledger.rebook(grant, larger)
        self._under_way[grant_id] = (before, after)
        return ResizeOrder(grant.node, grant_id, after)

    def is_under_way(self, grant_id: str) -> bool:
        """Whether its server has been told and has not answered."""
        return grant_id in self._under_way

    def finish(self, grant_id: str, error: str, *, known: bool = True) -> Decisions:
        """The server has done it, or says why not.

        Where that is not known, the larger sizes stay booked until the server reports what it runs.
        """
        before, after = self._under_way.pop(grant_id)
        grant = self._ledger.grants.get(grant_id)
        if grant is None or grant.state is not GrantState.LIVE:
            return Decisions()
        if not known:
            self._ledger.event("grant.not_resized", grant_id, f"it is not known: {error}")
            return Decisions()
        sizes = before if error else after
        # a job's sessions may have come and gone meanwhile: their contexts stay as they are
        vgpus = tuple(
            replace(now, memory_mib=size.memory_mib, compute_percent=size.compute_percent)
            for now, size in zip(grant.vgpus, sizes, strict=True)
        )
        if error:
            if vgpus != grant.vgpus:
                self._ledger.rebook(grant, vgpus)
            self._ledger.event("grant.not_resized", grant_id, error)
        else:
            self._set(grant, vgpus)
        return Decisions()

    def _set(self, grant: Grant, vgpus: Vgpus) -> None:
        self._ledger.rebook(grant, vgpus)
        sizes = ", ".join(f"{v.memory_mib} MiB and {v.compute_percent} %" for v in vgpus)
        self._ledger.event("grant.resized", grant.id, f"now {sizes}")

    def _check_room(self, grant: Grant, after: Vgpus) -> None:
        for (key, old), new in zip(grant.placed(), after, strict=True):
            more_mib = new.memory_mib - old.memory_mib
            more_percent = new.compute_percent - old.compute_percent
            if more_mib <= 0 and more_percent <= 0:
                continue
            if grant.reservation:
                reservation = self._ledger.reservations.records[grant.reservation]
                left = self._ledger.reservations.free(reservation)[key]
                free_mib, free_percent = left.memory_mib, left.compute_percent
                whose = f"reservation {grant.reservation} has on {key}"
            else:
                capacity = self._fleet.capacity.of(key)
                if capacity is None:
                    raise Impossible(f"GPU {key} of grant {grant.id} is not in the pool now")
                free_mib, free_percent = capacity.free_mib, capacity.free_percent
                if not stays(grant, old) and not capacity.figures.fits_alone(new.memory_mib):
                    free_mib = min(free_mib, capacity.beside_mib - old.memory_mib)
                whose = f"GPU {key} has"
            if more_mib > max(0, free_mib) or more_percent > max(0, free_percent):
                raise Impossible(
                    f"grant {grant.id} would take {more_mib} MiB and {more_percent} % more, and "
                    f"{whose} {max(0, free_mib)} MiB and {max(0, free_percent)} % free"
                )
