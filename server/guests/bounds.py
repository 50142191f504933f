# SPDX-License-Identifier: Apache-2.0
"""What a guest may ask for: its domain's metadata fills in what it leaves out, and is the most."""

from __future__ import annotations

from dataclasses import replace

from sluice.hypervisor.request import DomainRequest
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.sessions.open_session import OpenSession, RefusalError


def bounded(domain: str, bound: DomainRequest, wish: OpenSession) -> OpenSession:
    """The request with the domain's figures as defaults; raises RefusalError above them."""
    asked = wish.request
    figures = (
        ("vGPUs", "SLUICE_VGPU", asked.count, bound.count),
        ("MiB", "SLUICE_GMEM", asked.memory_mib, bound.memory_mib),
        ("% of a GPU", "SLUICE_RATIO", asked.compute_percent, bound.compute_percent),
    )
    for unit, variable, wanted, most in figures:
        if wanted > most:
            raise RefusalError(
                CudaStatus.INVALID_VALUE,
                f"wanted {wanted} {unit}; domain {domain} was given {most}: set "
                f"{variable} to at most {most}, or raise it with `sluice vm attach`",
            )
    within = replace(
        asked,
        count=asked.count or bound.count,
        memory_mib=asked.memory_mib or bound.memory_mib,
        compute_percent=asked.compute_percent or bound.compute_percent,
        priority=min(asked.priority, bound.priority) if asked.priority else bound.priority,
    )
    return replace(wish, request=within).drawing_on(bound.mode)
