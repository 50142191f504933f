# SPDX-License-Identifier: Apache-2.0
"""The host memory of [suspend] swap_mib for /metrics: what has it. Filled for server.metrics."""

from __future__ import annotations

from sluice.config.metric_families import Family, Samples
from sluice.server.sessions.swap_memory import SwapMemory

MIB = 1 << 20
FAMILIES = (
    Family(
        "sluice_server_host_memory_bytes",
        "gauge",
        "Host memory of [suspend] swap_mib: used by what is out, kept by sessions that came back "
        "for their next time, ready ahead of time.",
        ("state",),
    ),
)


def fill(swap: SwapMemory, samples: Samples) -> None:
    """What there is by now; nothing where no host memory is for that."""
    if not swap.limit_mib:
        return
    for state, mib in (
        ("used", swap.used_mib),
        ("kept", swap.kept_mib),
        ("ready", swap.ready_mib),
    ):
        samples.add(FAMILIES[0].name, mib * MIB, state)
