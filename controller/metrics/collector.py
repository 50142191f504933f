# SPDX-License-Identifier: Apache-2.0
"""The pool's figures for Prometheus: what there is, who holds it, who waits.

Made by controller.api.app for one grant service, registered while this controller leads. A scrape
reads sums that are kept anyway (tallies, fragmentation, queue, quotas): its cost does not depend on
the number of nodes, GPUs, grants or sessions.
"""

from __future__ import annotations

import time

from sluice.config.metric_families import Family, FamilyCollector, Samples
from sluice.controller.grant_service import GrantService
from sluice.controller.metrics.meters import priority_label
from sluice.controller.metrics.tallies import FAULTY, HEALTHY, LOST, Size
from sluice.controller.pool.model import GpuMode, NodeState, ReservationState
from sluice.controller.pool.projects.quotas import Held
from sluice.resources.ends import EndCause, cause_name

MIB = 1 << 20
CHANNELS = ("shm", "ivshmem", "vsock", "tcp", "relay")
MOST_PROJECTS = 100
OTHER_PROJECTS = "(others)"

FAMILIES = (
    Family("sluice_pool_nodes", "gauge", "Nodes by state.", ("state",)),
    Family("sluice_pool_nodes_drained", "gauge", "Nodes that take nothing new, by an operator."),
    Family(
        "sluice_pool_gpus",
        "gauge",
        "GPUs by mode and health; lost are those of a lost node.",
        ("mode", "health"),
    ),
    Family("sluice_pool_memory_bytes", "gauge", "Memory of all GPUs whose node is not lost."),
    Family(
        "sluice_pool_memory_granted_bytes",
        "gauge",
        "Memory that live grants have, with what their contexts take.",
    ),
    Family(
        "sluice_pool_memory_free_bytes", "gauge", "Memory that could be granted and is nobody's."
    ),
    Family(
        "sluice_pool_memory_resident_bytes",
        "gauge",
        "Memory of live grants that is on GPUs, where nodes may move it.",
    ),
    Family("sluice_pool_memory_swapped_bytes", "gauge", "And what is in the nodes' host memory."),
    Family("sluice_pool_vgpus", "gauge", "vGPUs of live grants."),
    Family(
        "sluice_pool_compute_granted_gpus", "gauge", "Compute of live grants, as a number of GPUs."
    ),
    Family("sluice_pool_grants", "gauge", "Live grants."),
    Family(
        "sluice_pool_sessions",
        "gauge",
        "Sessions that have not ended, by state and channel.",
        ("state", "channel"),
    ),
    Family(
        "sluice_sessions_ended_total", "counter", "Sessions that have ended, by cause.", ("cause",)
    ),
    Family("sluice_pool_free_cards", "gauge", "GPUs with nothing on them that could be granted."),
    Family(
        "sluice_pool_free_default_slices", "gauge", "vGPUs of the default size that fit beside all."
    ),
    Family(
        "sluice_pool_largest_vgpu_bytes", "gauge", "The memory of the largest vGPU that would fit."
    ),
    Family(
        "sluice_pool_fragmentation_ratio",
        "gauge",
        "The share of the free memory that cannot be given in such pieces, 0 to 1.",
        ("piece",),
    ),
    Family("sluice_queue_requests", "gauge", "Requests that wait, by priority.", ("priority",)),
    Family(
        "sluice_queue_oldest_request_seconds",
        "gauge",
        "How long the request has waited that waits longest; absent while none waits.",
    ),
    Family("sluice_pool_reservations", "gauge", "Reservations by state.", ("state",)),
    Family("sluice_reservation_vgpus", "gauge", "vGPUs that reservations hold, used or not."),
    Family("sluice_reservation_memory_bytes", "gauge", "Memory that reservations hold."),
    Family("sluice_reservation_used_vgpus", "gauge", "vGPUs of grants that draw on reservations."),
    Family("sluice_reservation_used_memory_bytes", "gauge", "Memory drawn on reservations."),
    Family(
        "sluice_project_vgpus", "gauge", "vGPUs that a project holds, reserved too.", ("project",)
    ),
    Family(
        "sluice_project_memory_bytes", "gauge", "Memory that a project holds.", ("project",)
    ),
    Family(
        "sluice_project_compute_gpus",
        "gauge",
        "Compute that a project holds, as a number of GPUs.",
        ("project",),
    ),
    Family(
        "sluice_project_busy_seconds_total",
        "counter",
        "GPU time that a project's sessions used since this controller leads.",
        ("project",),
    ),
    Family(
        "sluice_project_quota_vgpus",
        "gauge",
        "The most vGPUs that a project may hold; absent without such a quota.",
        ("project",),
    ),
    Family(
        "sluice_project_quota_memory_bytes",
        "gauge",
        "The most memory that a project may hold; absent without such a quota.",
        ("project",),
    ),
    Family(
        "sluice_project_quota_compute_gpus",
        "gauge",
        "The most compute that a project may hold; absent without such a quota.",
        ("project",),
    ),
    Family(
        "sluice_preemptions_total", "counter", "Grants that were ended for a request's priority."
    ),
    Family(
        "sluice_pool_events_total", "counter", "Lines of the event log by kind.", ("kind",)
    ),
    Family(
        "sluice_store_up", "gauge", "1 if the store takes what is decided, 0 while it does not."
    ),
)  # fmt: skip


class PoolFigures:
    """Reads the pool of one grant service."""

    def __init__(self, grant_service: GrantService, most_projects: int = MOST_PROJECTS) -> None:
        """Projects beyond so many are summed up as OTHER_PROJECTS."""
        self._grant_service = grant_service
        self._most_projects = most_projects
        self._shown: dict[str, None] = {}  # projects with series of their own

    def collector(self) -> FamilyCollector:
        """For a registry."""
        return FamilyCollector(FAMILIES, self.fill)

    def fill(self, samples: Samples) -> None:
        """Adds every series."""
        self._fill_pool(samples)
        self._fill_fragmentation(samples)
        self._fill_queue(samples)
        self._fill_reservations(samples)
        self._fill_projects(samples)
        tallies = self._grant_service.tallies
        samples.add("sluice_preemptions_total", tallies.events["grant.preempted"])
        for kind, count in tallies.events.items():
            samples.add("sluice_pool_events_total", count, kind)
        samples.add("sluice_store_up", 0 if self._grant_service.trouble else 1)

    def _fill_pool(self, samples: Samples) -> None:
        tallies = self._grant_service.tallies
        for state in NodeState:
            samples.add("sluice_pool_nodes", tallies.nodes[state], state.value)
        samples.add("sluice_pool_nodes_drained", tallies.drained_nodes)
        for mode in GpuMode:
            for health in (HEALTHY, FAULTY, LOST):
                samples.add("sluice_pool_gpus", tallies.gpus[mode, health], mode.value, health)
        samples.add("sluice_pool_memory_bytes", tallies.memory_mib * MIB)
        samples.add("sluice_pool_memory_granted_bytes", tallies.granted.memory_mib * MIB)
        resident_mib, swapped_mib = self._grant_service.pool.memory_sums()
        samples.add("sluice_pool_memory_resident_bytes", resident_mib * MIB)
        samples.add("sluice_pool_memory_swapped_bytes", swapped_mib * MIB)
        samples.add("sluice_pool_vgpus", tallies.granted.vgpus)
        samples.add("sluice_pool_compute_granted_gpus", tallies.granted.compute_percent / 100)
        samples.add("sluice_pool_grants", tallies.grants)
        by_channel = {(s, c): 0 for s in ("opening", "running") for c in (*CHANNELS, "other")}
        for (life, channel), count in tallies.sessions.items():
            by_channel[life.value, channel if channel in CHANNELS else "other"] += count
        for (name, channel), count in by_channel.items():
            samples.add("sluice_pool_sessions", count, name, channel)
        for cause in EndCause:
            samples.add("sluice_sessions_ended_total", tallies.ended[cause], cause_name(cause))

    def _fill_fragmentation(self, samples: Samples) -> None:
        found = self._grant_service.pool.fragmentation()
        samples.add("sluice_pool_memory_free_bytes", found.free_mib * MIB)
        samples.add("sluice_pool_free_cards", found.free_cards)
        samples.add("sluice_pool_free_default_slices", found.free_default_slices)
        samples.add("sluice_pool_largest_vgpu_bytes", found.largest_vgpu_mib * MIB)
        samples.add("sluice_pool_fragmentation_ratio", found.whole_card_loss, "whole_card")
        samples.add("sluice_pool_fragmentation_ratio", found.default_slice_loss, "default_slice")

    def _fill_queue(self, samples: Samples) -> None:
        queue = self._grant_service.pool.queue
        waiting = {"0": 0}
        for priority, count in queue.by_priority.items():
            label = priority_label(priority)
            waiting[label] = waiting.get(label, 0) + count
        for label, count in waiting.items():
            samples.add("sluice_queue_requests", count, label)
        if queue.oldest is not None:
            age = max(0.0, time.monotonic() - queue.oldest)
            samples.add("sluice_queue_oldest_request_seconds", age)

    def _fill_reservations(self, samples: Samples) -> None:
        tallies = self._grant_service.tallies
        for state in (ReservationState.WAITING, ReservationState.HELD):
            samples.add("sluice_pool_reservations", tallies.reservations[state], state.value)
        held, used = tallies.reserved, tallies.drawn
        samples.add("sluice_reservation_vgpus", held.vgpus)
        samples.add("sluice_reservation_memory_bytes", held.memory_mib * MIB)
        samples.add("sluice_reservation_used_vgpus", used.vgpus)
        samples.add("sluice_reservation_used_memory_bytes", used.memory_mib * MIB)

    def _fill_projects(self, samples: Samples) -> None:
        quotas = self._grant_service.pool.quotas
        projects = quotas.projects()
        there = set(projects)
        # whoever has series keeps them, so that they are not cut when another passes it
        self._shown = {name: None for name in self._shown if name in there}
        pool = self._grant_service.pool
        others, used_by_others, hidden = Held(), 0.0, False
        for name in projects:
            if name not in self._shown and len(self._shown) >= self._most_projects:
                others, hidden = others.plus(quotas.held(name)), True
                used_by_others += pool.used_of_project(name)
                continue
            self._shown[name] = None
            _add_size(samples, "sluice_project", _size(quotas.held(name)), name)
            samples.add("sluice_project_busy_seconds_total", pool.used_of_project(name), name)
            if limit := quotas.limits.get(name):
                most = Size(limit.vgpus, limit.memory_mib, limit.compute_percent)
                _add_size(samples, "sluice_project_quota", most, name, zeros=False)
        if hidden:
            _add_size(samples, "sluice_project", _size(others), OTHER_PROJECTS)
            samples.add("sluice_project_busy_seconds_total", used_by_others, OTHER_PROJECTS)


def _size(held: Held) -> Size:
    return Size(held.vgpus, held.memory_mib, held.compute_percent)


def _add_size(samples: Samples, prefix: str, size: Size, label: str, *, zeros: bool = True) -> None:
    for name, value in (
        ("vgpus", size.vgpus),
        ("memory_bytes", size.memory_mib * MIB),
        ("compute_gpus", size.compute_percent / 100),
    ):
        if value or zeros:
            samples.add(f"{prefix}_{name}", value, label)
