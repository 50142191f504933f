# SPDX-License-Identifier: Apache-2.0
"""What a guest may ask for: its domain's metadata fills in what it leaves out, and is the most."""

from __future__ import annotations

from dataclasses import replace

from sluice.hypervisor.request import DomainRequest
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.sessions.open_session import OpenSession, RefusalError


def bounded(domain: str, bound: DomainRequest, asked: OpenSession) -> OpenSession:
    """The request with the domain's figures as defaults; raises RefusalError above them."""
    request = asked.request
    figures = (
        ("vGPUs", "SLUICE_VGPU", request.count, bound.count),
        ("MiB", "SLUICE_GMEM", request.memory_mib, bound.memory_mib),
        ("% of a GPU", "SLUICE_RATIO", request.compute_percent, bound.compute_percent),
    )
    for unit, variable, wanted, most in figures:
        if wanted > most:
            raise RefusalError(
                CudaStatus.INVALID_VALUE,
                f"wanted {wanted} {unit}; domain {domain} was given {most}: set "
                f"{variable} to at most {most}, or raise it with `sluice vm attach`",
            )
    within = replace(
        request,
        count=request.count or bound.count,
        memory_mib=request.memory_mib or bound.memory_mib,
        compute_percent=request.compute_percent or bound.compute_percent,
        priority=min(request.priority, bound.priority) if request.priority else bound.priority,
    )
    return replace(asked, request=within).drawing_on(bound.mode)
