# SPDX-License-Identifier: Apache-2.0
"""Where the memory of this host's grants is, how often it moved and who waited for it: sums.

Owned by sessions.residency, which hears it of the arbiter; told to the controller and shown by
/metrics. Sums never fall, though an arbiter that was started anew begins at nothing. MiB, seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.config.metric_families import Family, Samples
from sluice.rpc import pool_pb2 as rpc
from sluice.server.workers.packets import Message

MICRO = 1_000_000
MIB = 1 << 20
FAMILIES: tuple[Family, ...] = (
    Family(
        "sluice_server_memory_resident_bytes",
        "gauge",
        "Memory of sessions that is on this host's GPUs, where it may move.",
    ),
    Family(
        "sluice_server_memory_swapped_bytes",
        "gauge",
        "And what is in host memory, for others on the same GPUs.",
    ),
    Family(
        "sluice_server_memory_moves_total",
        "counter",
        "How often a grant's memory moved, out or in.",
    ),
    Family(
        "sluice_server_memory_wait_seconds_total",
        "counter",
        "How long grants with work waited for memory, summed over them.",
    ),
    Family(
        "sluice_server_memory_waiting_grants",
        "gauge",
        "Grants with work that wait for memory now.",
    ),
)


@dataclass(frozen=True, slots=True)
class TenantMemory:
    """What the arbiter says of a grant."""

    resident_mib: int = 0
    out_mib: int = 0
    moves: int = 0
    waited_us: int = 0
    why: str = ""


class MemoryFigures:
    """Of every grant that the arbiter told of the last time."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantMemory] = {}
        self.moves = 0
        self.waited_us = 0
        self._told: dict[str, TenantMemory] = {}

    def hear(self, figures: Message) -> None:
        """The arbiter's `figures`."""
        now = {}
        for key in (f"tenant.{n}" for n in range(figures.number("tenants"))):
            grant_id = figures.get(f"{key}.id")
            said = now[grant_id] = TenantMemory(
                resident_mib=figures.number(f"{key}.resident_mib"),
                out_mib=figures.number(f"{key}.out_mib"),
                moves=figures.number(f"{key}.moves"),
                waited_us=figures.number(f"{key}.memory_waited_us"),
                why=figures.get(f"{key}.memory_why"),
            )
            before = self.tenants.get(grant_id, TenantMemory())
            self.moves += _more(before.moves, said.moves)
            self.waited_us += _more(before.waited_us, said.waited_us)
        self.tenants = now

    def tell_again(self) -> None:
        """There may be another controller, which knows nothing."""
        self._told.clear()

    def changed(self) -> list[rpc.GrantMemory]:
        """The reports of those that are otherwise than was told; they are told by that."""
        news = {g: said for g, said in self.tenants.items() if self._told.get(g) != said}
        self._told = dict(self.tenants)
        return [
            rpc.GrantMemory(
                grant_id=grant_id,
                resident_mib=said.resident_mib,
                swapped_mib=said.out_mib,
                moves=said.moves,
                waited_us=said.waited_us,
                why=said.why,
            )
            for grant_id, said in news.items()
        ]

    def fill(self, samples: Samples) -> None:
        """For /metrics."""
        resident = _sum(each.resident_mib for each in self.tenants.values())
        samples.add("sluice_server_memory_resident_bytes", resident * MIB)
        swapped = _sum(each.out_mib for each in self.tenants.values())
        samples.add("sluice_server_memory_swapped_bytes", swapped * MIB)
        samples.add("sluice_server_memory_moves_total", self.moves)
        samples.add("sluice_server_memory_wait_seconds_total", self.waited_us / MICRO)
        waiting = _sum(bool(each.why) for each in self.tenants.values())
        samples.add("sluice_server_memory_waiting_grants", waiting)


def _more(before: int, now: int) -> int:
    return now - before if now >= before else now


def _sum(each: Iterable[int]) -> int:
    return sum(each)
