# SPDX-License-Identifier: Apache-2.0
"""Figures of managed memory over shared memory: what was prefetched, and what is touched first."""

from __future__ import annotations

from collections.abc import Callable

from figure import Figure

#: Of reading memory of the host, and of copying as much to pageable memory.
PREFETCHED, FAULTED = 0.9, 0.5


def managed_figures(run: Callable[[], dict[str, float]]) -> list[Figure]:
    """The two rates in GiB/s, each beside its floor; `run` gives what managed.cu prints."""
    got = run()
    return [
        Figure(
            "managed_prefetched",
            got["prefetched_gib_s"],
            "GiB/s",
            floor=got["host_gib_s"],
            floor_of="reading memory of the host",
            limit=PREFETCHED * got["host_gib_s"],
        ),
        Figure(
            "managed_faulted",
            got["faulted_gib_s"],
            "GiB/s",
            floor=got["copied_gib_s"],
            floor_of="a pageable copy to the host",
            limit=FAULTED * got["copied_gib_s"],
        ),
    ]
