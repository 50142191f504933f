# SPDX-License-Identifier: Apache-2.0
"""POST /v1/views: what a client without a server near it is shown that only looks (nvidia-smi).

Mounted by controller.api.app. Its sessions are those of the same project and person from a host of
the same name, or of the same VM; where there are none it is shown what it would get. An answer is
good for a quarter of a second, or until a session of these begins or ends.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Client
from sluice.controller.api.problems import Problem, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import SessionRequest
from sluice.controller.api.tcp_sessions import grant_request_of
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import GrantRequest, Refused
from sluice.controller.pool.model import Session, SessionState
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.viewing import preview, views_of
from sluice.resources.problem_types import ProblemType
from sluice.resources.vgpu_view import Process, view_text

FRESH_SECONDS = 0.25
MOST_KEPT = 1024
MOST_SHOWN = 64


class ProcessView(BaseModel):
    """A process that uses a vGPU."""

    pid: int = Field(description="as it is called where it runs")
    name: str
    used_mib: int


class VgpuShown(BaseModel):
    """A vGPU of the caller's, or one that it would get (`idle`)."""

    uuid: str
    idle: bool
    name: str
    memory_mib: int
    used_mib: int
    compute_percent: int
    pci_bus_id: str
    driver_name: str = Field(description="of the node's kernel driver; empty: it has none")
    cuda_version: int
    card: int = Field(description="vGPUs of one card have the same number")
    attributes: str = Field(description="CUdevice_attribute and value: `75=9 76=0`")
    figures: str = Field("", description="of its GPU, by the numbers of gpu_figures.yaml")
    processes: list[ProcessView]


class View(BaseModel):
    """What there is to be seen."""

    vgpus: list[VgpuShown]


@dataclass(slots=True)
class _Kept:
    answer: asyncio.Task[View]
    until: float = float("inf")  # monotonic


def view_routes(grant_service: GrantService, service: PoolService) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool
    kept: dict[tuple[object, ...], _Kept] = {}

    @routes.post(
        "/views",
        tags=["sessions"],
        responses=problem_responses((409, "such a request never gets a vGPU"), 403, 422),
    )
    async def view(body: SessionRequest, request: Request, caller: Client) -> View:
        """The caller's vGPUs and their processes, or what it would get. Nothing is granted."""
        peer = request.client.host if request.client else ""
        asked = body.model_copy(update={"program": "", "pid": 0, "job": "", "chosen": []})
        wanted = grant_request_of(grant_service, asked, caller, peer)
        own = list(itertools.islice(_own(pool, wanted), MOST_SHOWN))
        # what begins or ends is seen at once
        key = (caller.id, caller.vm, wanted, *(session.id for session in own))
        if (known := kept.get(key)) is None or time.monotonic() >= known.until:
            known = _begin(kept, key, _shown(pool, service, wanted, own))
        return await asyncio.shield(known.answer)

    return routes


def _begin(
    kept: dict[tuple[object, ...], _Kept],
    key: tuple[object, ...],
    answer: Coroutine[Any, Any, View],
) -> _Kept:
    while len(kept) >= MOST_KEPT:
        del kept[next(iter(kept))]
    kept.pop(key, None)
    known = kept[key] = _Kept(asyncio.create_task(answer))

    def done(task: asyncio.Task[View]) -> None:
        known.until = time.monotonic() + FRESH_SECONDS
        if not task.cancelled():
            task.exception()  # seen, whoever waited

    known.answer.add_done_callback(done)
    return known


async def _shown(
    pool: Pool, service: PoolService, wanted: GrantRequest, own: Sequence[Session]
) -> View:
    views = await views_of(pool, service.links, own)
    if not views:  # or all of them have just ended
        answer = await preview(pool, service.links, wanted)
        if isinstance(answer, Refused):
            raise Problem(
                409, ProblemType.NOT_GRANTED, answer.message, cuda_error=int(answer.status)
            )
        views = answer
    processes = {session.id: Process(session.client_pid, session.program) for session in own}
    whose = f"{wanted.project} {wanted.person} {wanted.host} {wanted.domain_uuid}"
    return View.model_validate_json(view_text(views, processes, whose=whose))


def _own(pool: Pool, wanted: GrantRequest) -> Iterator[Session]:
    for grant in pool.grants_live_of(wanted.project):
        if (grant.project, grant.person) != (wanted.project, wanted.person):
            continue
        for session in pool.sessions_of(grant.id):
            if (
                session.state is SessionState.RUNNING
                and not session.relay
                and (
                    session.domain_uuid == wanted.domain_uuid
                    if wanted.domain_uuid
                    else session.channel in ("tcp", "rdma") and session.host == wanted.host
                )
            ):
                yield session
