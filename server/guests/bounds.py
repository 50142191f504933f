# SPDX-License-Identifier: Apache-2.0
"""What a guest may ask for: its domain's metadata fills in what it leaves out, and is the most."""

from __future__ import annotations

from dataclasses import replace

from sluice.hypervisor.request import VgpuRequest
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.sessions.open_session import OpenSession, RefusalError


def bounded(domain: str, bound: VgpuRequest, wish: OpenSession) -> OpenSession:
    """The request with the domain's figures as defaults; raises RefusalError above them."""
    asked = (
        ("vGPUs", "SLUICE_VGPU", wish.vgpu_count, bound.count),
        ("MiB", "SLUICE_GMEM", wish.gmem_mib, bound.memory_mib),
        ("% of a GPU", "SLUICE_RATIO", wish.ratio_percent, bound.compute),
    )
    for unit, variable, wanted, most in asked:
        if wanted > most:
            raise RefusalError(
                CudaStatus.INVALID_VALUE,
                f"wanted {wanted} {unit}; domain {domain} was given {most}: set "
                f"{variable} to at most {most}, or raise it with `sluice vm attach`",
            )
    within = replace(
        wish,
        vgpu_count=wish.vgpu_count or bound.count,
        gmem_mib=wish.gmem_mib or bound.memory_mib,
        ratio_percent=wish.ratio_percent or bound.compute,
        priority=min(wish.priority, bound.priority) if wish.priority else bound.priority,
    )
    return within.drawing_on(bound.mode)
