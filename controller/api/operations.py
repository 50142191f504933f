# SPDX-License-Identifier: Apache-2.0
"""REST handlers of operators: the two pools, drains, resizing; and how a step becomes an answer.

Mounted by controller.api.app. They decide nothing: every change is one step of the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NoReturn

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.api import schemas
from sluice.controller.api.authorisation import Operator
from sluice.controller.api.generations import IfMatch, check_generation
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.problems import Problem, ProblemDocument, not_found
from sluice.controller.api.schemas import Time, time_of
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions, ResizeOrder
from sluice.controller.pool.impossible import Impossible, Outdated, Over, Unknown
from sluice.controller.pool.model import GpuKey, GpuMode, Grant
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import OrderRefused, ServerSilent
from sluice.controller.store.store import StoreError
from sluice.resources.problem_types import ProblemType
from sluice.resources.vgpu_request import COMPUTE_PERCENT, I32

RESIZE_SECONDS = 10.0
_OVER = {"grant": ProblemType.GRANT_ENDED, "reservation": ProblemType.RESERVATION_OVER}
_CHANGED: dict[int | str, dict[str, Any]] = {
    404: {"model": ProblemDocument},
    409: {"model": ProblemDocument},
    412: {"model": ProblemDocument},
}


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


class GrantSize(BaseModel):
    """The limits of each vGPU that are to change; zeros leave one as it is."""

    memory_mib: int = Field(0, ge=0, le=I32.high)
    compute_percent: int = Field(0, ge=0, le=COMPUTE_PERCENT.high)


def problem_of(error: Impossible | Unknown | Outdated) -> Problem:
    """What the pool could not do, as a problem."""
    if isinstance(error, Unknown):
        return not_found(error.kind, error.name)
    if isinstance(error, Outdated):
        return Problem(412, ProblemType.GENERATION_CHANGED, str(error))
    kind = _OVER[error.kind] if isinstance(error, Over) else ProblemType.NOT_POSSIBLE
    return Problem(409, kind, str(error))


async def carried_out(grant_service: GrantService, decide: Callable[[], Decisions]) -> None:
    """Takes a step; what cannot be is a problem document, what is not stored an error."""
    try:
        stored = await grant_service.step(decide)
    except (Impossible, Unknown, Outdated) as error:
        raise problem_of(error) from None
    if not stored:
        raise StoreError(f"it is done, but not stored yet: {grant_service.trouble}")


def operation_routes(grant_service: GrantService, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter()
    pool = grant_service.pool

    def key_of(gpu_id: str) -> GpuKey:
        return gpu_key(pool.gpus, gpu_id)

    def view(key: GpuKey) -> SwitchView:
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

    @routes.get("/gpus/{gpu_id}/switch", tags=["gpus"], responses=_CHANGED)
    async def show_switch(gpu_id: str, _: Operator) -> SwitchView:
        """Which pool the GPU is in, or on its way to."""
        return view(key_of(gpu_id))

    @routes.put("/gpus/{gpu_id}/switch", tags=["gpus"], status_code=202, responses=_CHANGED)
    async def switch_gpu(
        gpu_id: str, body: SwitchRequest, _: Operator, if_match: IfMatch = None
    ) -> SwitchView:
        """Takes a GPU out of the pool or back: it drains, waits or preempts, then switches."""
        key = key_of(gpu_id)
        check_generation(if_match, "gpu", gpu_id, view(key).generation)
        to = GpuMode(body.to)
        await carried_out(
            grant_service, lambda: pool.switching.switch_gpu(key, to, preempt=body.preempt)
        )
        return view(key)

    @routes.delete("/gpus/{gpu_id}/switch", tags=["gpus"], responses=_CHANGED)
    async def cancel_switch(gpu_id: str, _: Operator) -> SwitchView:
        """Leaves a GPU in the pool that is still draining."""
        key = key_of(gpu_id)
        await carried_out(grant_service, lambda: pool.switching.cancel_switch(key))
        return view(key)

    @routes.put("/nodes/{name}/drain", tags=["nodes"], responses=_CHANGED)
    async def drain_node(name: str, _: Operator) -> schemas.NodeView:
        """A node takes nothing new; what runs there goes on."""
        await carried_out(grant_service, lambda: pool.switching.drain_node(name, drained=True))
        return schemas.node_view(pool, pool.nodes[name])

    @routes.delete("/nodes/{name}/drain", tags=["nodes"], responses=_CHANGED)
    async def undrain_node(name: str, _: Operator) -> schemas.NodeView:
        """It takes new grants again."""
        await carried_out(grant_service, lambda: pool.switching.drain_node(name, drained=False))
        return schemas.node_view(pool, pool.nodes[name])

    async def _not_known(grant: Grant, why: str) -> NoReturn:
        await carried_out(
            grant_service, lambda: pool.lifecycle.finish_resize(grant.id, why, known=False)
        )
        if link := service.links.get(grant.node):
            link.close()  # it connects anew and reports what it runs
        raise Problem(
            503,
            ProblemType.RESIZE_UNKNOWN,
            f"grant {grant.id}: {why}; its node reports what it runs, look at it in some seconds",
        )

    @routes.patch(
        "/grants/{grant_id}",
        tags=["grants"],
        responses={**_CHANGED, 503: {"model": ProblemDocument}},
    )
    async def resize_grant(
        grant_id: str, body: GrantSize, _: Operator, if_match: IfMatch = None
    ) -> schemas.GrantView:
        """Changes the limits of a grant while it is in use, or says why that cannot be."""
        if (grant := pool.grants.get(grant_id)) is None:
            raise not_found("grant", grant_id)
        check_generation(if_match, "grant", grant_id, grant.generation)
        order: ResizeOrder | None = None

        def begin() -> Decisions:
            nonlocal order
            order = pool.lifecycle.begin_resize(grant_id, body.memory_mib, body.compute_percent)
            return Decisions()

        await carried_out(grant_service, begin)
        if order is not None:
            why = ""
            try:
                await service.link_of(grant.node).resize(order, RESIZE_SECONDS)
            except ServerSilent as silent:
                await _not_known(grant, str(silent))
            except OrderRefused as refused:
                why = str(refused)
            await carried_out(grant_service, lambda: pool.lifecycle.finish_resize(grant_id, why))
            if why:
                raise Problem(
                    409, ProblemType.NOT_RESIZED, f"grant {grant_id} stays as it was: {why}"
                )
        return schemas.grant_view(grant, pool.sessions_of(grant_id))

    return routes
