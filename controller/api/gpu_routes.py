# SPDX-License-Identifier: Apache-2.0
"""REST handlers of GPUs: listed, shown, and switched between the two pools.

Mounted by controller.api.app under /v1. They decide nothing: a switch is one step of the pool.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.api import schemas
from sluice.controller.api.authorisation import Operator, Viewer
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.generations import IfMatch, check_generation
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.node_routes import NodeStateName
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, page, page_in_order
from sluice.controller.api.problems import CHANGE_PROBLEMS, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Time, time_of
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.model import Gpu, GpuKey, GpuMode
from sluice.controller.pool.pool import Pool


class SwitchRequest(BaseModel):
    """Where a GPU is to go."""

    to: Literal["native", "pooled", "drained"]
    preempt: bool = Field(False, description="end what runs on it, rather than wait")


class SwitchView(BaseModel):
    """Which pool a GPU is in, or on its way to, and what it waits for."""

    gpu: str
    mode: Literal["pooled", "draining", "drained", "native", "returning"]
    target: Literal["pooled", "drained", "native"]
    preempt: bool
    reason: str
    since: Time | None
    generation: int
    step: Literal["", "waiting", "handing-over", "stuck"] = Field(
        description="of one that drains or returns: what it waits for. stuck: its node could not "
        "hand it over, for `reason`, and tries again"
    )


def _switch_view(pool: Pool, key: GpuKey) -> SwitchView:
    switch = pool.switches.get(key)
    if switch is None:
        return SwitchView(
            gpu=str(key), mode="pooled", target="pooled", preempt=False, reason="",
            since=None, generation=0, step="",
        )  # fmt: skip
    return SwitchView(
        gpu=str(key),
        mode=switch.mode.value,
        target=switch.target.value,
        preempt=switch.preempt,
        reason=switch.reason,
        since=time_of(switch.since),
        generation=switch.generation,
        step=switch.step.value,
    )


def gpu_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/gpus", tags=["gpus"])
    async def list_gpus(
        _: Viewer,
        node: str | None = None,
        state: NodeStateName | None = None,
        model: str | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> schemas.GpuList:
        """Every GPU, or those of one node, state or model."""

        def is_wanted(gpu: Gpu) -> bool:
            return state in (None, pool.nodes[gpu.node].state) and model in (None, gpu.model)

        def place(gpu: Gpu) -> tuple[str, str]:
            return gpu.node, gpu.uuid

        if node is not None:
            few = filter(is_wanted, pool.gpus_of(node))
            shown, marker = page(few, place, limit, marker)
        else:
            shown, marker = page_in_order(
                lambda last: filter(is_wanted, pool.gpus_in_order.after(last)), place, limit, marker
            )
        gpus = [schemas.gpu_view(pool, gpu) for gpu in shown]
        return schemas.GpuList(gpus=gpus, next_marker=marker)

    @routes.get("/gpus/{gpu_id}", tags=["gpus"], responses=problem_responses(404, 409))
    async def show_gpu(gpu_id: str, _: Viewer) -> schemas.GpuView:
        """One GPU, by node:uuid, by a UUID that only one node has, or by its beginning."""
        return schemas.gpu_view(pool, pool.gpus[gpu_key(pool.gpus, gpu_id)])

    _add_switch(routes, grant_service)
    return routes


def _add_switch(routes: APIRouter, grant_service: GrantService) -> None:
    """Which pool a GPU is in, and switching it."""
    pool = grant_service.pool

    @routes.get("/gpus/{gpu_id}/switch", tags=["gpus"], responses=CHANGE_PROBLEMS)
    async def show_switch(gpu_id: str, _: Operator) -> SwitchView:
        """Which pool the GPU is in, or on its way to."""
        return _switch_view(pool, gpu_key(pool.gpus, gpu_id))

    @routes.put("/gpus/{gpu_id}/switch", tags=["gpus"], status_code=202, responses=CHANGE_PROBLEMS)
    async def switch_gpu(
        gpu_id: str, body: SwitchRequest, _: Operator, if_match: IfMatch = None
    ) -> SwitchView:
        """Takes a GPU out of the pool or back: it drains, waits or preempts, then switches."""
        key = gpu_key(pool.gpus, gpu_id)
        check_generation(if_match, "gpu", gpu_id, _switch_view(pool, key).generation)
        to = GpuMode(body.to)
        await carried_out(
            grant_service, lambda: pool.switching.switch_gpu(key, to, preempt=body.preempt)
        )
        return _switch_view(pool, key)

    @routes.delete("/gpus/{gpu_id}/switch", tags=["gpus"], responses=CHANGE_PROBLEMS)
    async def cancel_switch(gpu_id: str, _: Operator) -> SwitchView:
        """Leaves a GPU in the pool that is still draining."""
        key = gpu_key(pool.gpus, gpu_id)
        await carried_out(grant_service, lambda: pool.switching.cancel_switch(key))
        return _switch_view(pool, key)
