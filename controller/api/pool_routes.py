# SPDX-License-Identifier: Apache-2.0
"""REST handler of the pool as a whole.

Mounted by controller.api.app under /v1.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from sluice.config.version import own_version
from sluice.controller.api import schemas
from sluice.controller.api.authorisation import Viewer
from sluice.controller.api.routing import REST
from sluice.controller.grant_service import GrantService
from sluice.controller.metrics.tallies import LOST
from sluice.controller.pool.model import NodeState


def pool_routes(grant_service: GrantService) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/pool", tags=["pool"])
    async def show_pool(_: Viewer) -> schemas.PoolView:
        """The pool in one look."""
        tallies = grant_service.tallies
        return schemas.PoolView(
            version=own_version(),
            nodes=len(pool.nodes),
            nodes_up=tallies.nodes[NodeState.UP],
            gpus=sum(n for (_, health), n in tallies.gpus.items() if health != LOST),
            memory_mib=tallies.memory_mib,
            granted_mib=tallies.granted.memory_mib,
            grants=tallies.grants,
            sessions=tallies.sessions.total(),
            waiting=len(pool.queue),
            fragmentation=schemas.FragmentationView(**asdict(pool.fragmentation())),
        )

    return routes
