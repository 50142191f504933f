# SPDX-License-Identifier: Apache-2.0
"""REST handlers for vGPUs: the slices of live grants, one by one.

Mounted by controller.api.app. A vGPU has no record of its own: its name is its grant's id and its
number in the grant, and it lives as long as the grant.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import ViewerOrTenant
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import SHOW_PROBLEMS, not_found, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Time, time_of
from sluice.controller.pool.model import GpuKey, Grant, GrantState, SessionState
from sluice.controller.pool.pool import Pool


class VgpuInUse(BaseModel):
    """A slice of a GPU and who has it."""

    id: str = Field(description="GRANT.NUMBER")
    grant_id: str
    number: int = Field(description="in the grant, from 0")
    node: str
    gpu: str = Field(description="node:uuid")
    memory_mib: int
    compute_percent: int
    overhead_mib: int = Field(description="of its processes' contexts, besides memory_mib")
    project: str
    priority: int
    mode: Literal["reserved", "on-demand"]
    reservation: str
    sessions: list[str] = Field(description="that have it now")
    programs: list[str]
    containers: list[str] = Field(description="that have it now, as tables show them")
    created: Time
    gpu_seconds: float | None = Field(
        description="of its GPU's time that it used, its programs' pauses left out; null: its node "
        "has not said"
    )
    waited_seconds: float | None = Field(
        description="that its work waited for a turn, while others had theirs; null: as above"
    )
    share_1s: float | None = Field(
        description="of its GPU that it used in the last second, 0 to 1; null: as above"
    )
    share_60s: float | None = Field(description="the same of the last minute, or since it began")
    resident_mib: int | None = Field(
        description="of its whole grant's memory, what is on the GPUs now; null: its node moves "
        "none, or has not said"
    )
    swapped_mib: int | None = Field(
        description="and what is in host memory, for others on the same GPUs; null: as above"
    )
    memory_moves: int | None = Field(
        description="how often its grant's memory moved, out or in; null: as above"
    )
    memory_waited_seconds: float | None = Field(
        description="that its grant had work and waited for memory; null: as above"
    )
    memory_wait: str = Field(description="what its grant waits for; empty: it does not")


class VgpuList(Page):
    """vGPUs, the oldest grant's first."""

    vgpus: list[VgpuInUse]


def vgpu_routes(pool: Pool) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)

    @routes.get("/vgpus", tags=["vgpus"], responses=problem_responses(404, 409))
    async def list_vgpus(
        caller: ViewerOrTenant,
        node: str | None = None,
        gpu: str | None = None,
        project: str | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> VgpuList:
        """The vGPUs that are granted now."""
        # a tenant hears of no GPU that it has nothing on, be it by an error
        known = pool.gpus if caller.project is None else _gpus_of(pool, caller.project)
        on = str(gpu_key(known, gpu)) if gpu is not None else None
        wanted = [
            vgpu
            for grant in pool.grants.values()
            if grant.state is GrantState.LIVE
            and project in (None, grant.project)
            and caller.sees(grant.project)
            for vgpu in _views(pool, grant)
            if node in (None, vgpu.node) and on in (None, vgpu.gpu)
        ]
        shown, marker = page(
            wanted, lambda v: (v.created.timestamp(), v.grant_id, v.number), limit, marker
        )
        return VgpuList(vgpus=shown, next_marker=marker)

    @routes.get("/vgpus/{name}", tags=["vgpus"], responses=SHOW_PROBLEMS)
    async def show_vgpu(name: str, caller: ViewerOrTenant) -> VgpuInUse:
        """One vGPU, by GRANT.NUMBER."""
        grant = pool.grants.get(name.partition(".")[0])
        if grant and grant.state is GrantState.LIVE and caller.sees(grant.project):
            for vgpu in _views(pool, grant):
                if vgpu.id == name:
                    return vgpu
        raise not_found("vgpu", name)

    return routes


def _gpus_of(pool: Pool, project: str) -> set[GpuKey]:
    return {
        key
        for grant in pool.grants.values()
        if grant.state is GrantState.LIVE and grant.project == project
        for key, _ in grant.placed()
    }


def _views(pool: Pool, grant: Grant) -> list[VgpuInUse]:
    sessions = [s for s in pool.sessions_of(grant.id) if s.state is not SessionState.ENDED]
    memory = pool.grant_memory(grant.id)
    found = []
    for number, (key, vgpu) in enumerate(grant.placed()):
        users = [s for s in sessions if not s.chosen or number in s.chosen]
        time = pool.vgpu_time(grant.id, number)
        found.append(
            VgpuInUse(
                id=f"{grant.id}.{number}",
                grant_id=grant.id,
                number=number,
                node=key.node,
                gpu=str(key),
                memory_mib=vgpu.memory_mib,
                compute_percent=vgpu.compute_percent,
                overhead_mib=vgpu.overhead_mib,
                project=grant.project,
                priority=grant.priority,
                mode="reserved" if grant.reservation else "on-demand",
                reservation=grant.reservation,
                sessions=[s.id for s in users],
                programs=sorted({s.program for s in users if s.program}),
                containers=sorted({s.container.name for s in users if s.container_id}),
                created=time_of(grant.created),
                gpu_seconds=round(time.used, 3) if time else None,
                waited_seconds=round(time.waited, 3) if time else None,
                share_1s=time.share_1s if time else None,
                share_60s=time.share_60s if time else None,
                resident_mib=memory.resident_mib if memory else None,
                swapped_mib=memory.swapped_mib if memory else None,
                memory_moves=memory.moves if memory else None,
                memory_waited_seconds=round(memory.waited, 3) if memory else None,
                memory_wait=memory.why if memory else "",
            )
        )
    return found
