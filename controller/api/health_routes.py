# SPDX-License-Identifier: Apache-2.0
"""REST handlers for the health of GPUs: clearing a fault, and having a GPU checked.

Mounted by controller.api.app. The server of the GPU does either and reports what came of it; the
answer here says that it has begun.
"""

from __future__ import annotations

from fastapi import APIRouter

from sluice.controller.api import schemas
from sluice.controller.api.authorisation import Operator
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.problems import Problem, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.grant_service import GrantService
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import OrderRefused, ServerSilent
from sluice.resources.problem_types import ProblemType

ORDER_SECONDS = 10.0


def health_routes(grant_service: GrantService, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    async def order(gpu_id: str, *, clear: bool) -> schemas.GpuView:
        key = gpu_key(pool.gpus, gpu_id)
        try:
            link = service.link_of(key.node)
            await link.order_gpu(key.uuid, clear=clear, timeout=ORDER_SECONDS)
        except (OrderRefused, ServerSilent) as why:
            what = ProblemType.NOT_CLEARED if clear else ProblemType.NOT_CHECKED
            raise Problem(409, what, f"GPU {key}: {why}") from None
        return schemas.gpu_view(pool, pool.gpus[gpu_key(pool.gpus, gpu_id)])

    @routes.delete(
        "/gpus/{gpu_id}/fault",
        tags=["gpus"],
        status_code=202,
        responses=problem_responses(404, 409),
    )
    async def clear_fault(gpu_id: str, _: Operator) -> schemas.GpuView:
        """The GPU is well again, the operator says: it is checked, and then given out."""
        return await order(gpu_id, clear=True)

    @routes.post(
        "/gpus/{gpu_id}/check",
        tags=["gpus"],
        status_code=202,
        responses=problem_responses(404, 409),
    )
    async def check_gpu(gpu_id: str, _: Operator) -> schemas.GpuView:
        """Has a GPU checked that nobody uses; it takes nothing meanwhile."""
        return await order(gpu_id, clear=False)

    return routes
