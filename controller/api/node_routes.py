# SPDX-License-Identifier: Apache-2.0
"""REST handlers of nodes: listed, shown, drained.

Mounted by controller.api.app under /v1. A drain is one step of the pool. What can be changed
carries its generation as an ETag.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response

from sluice.controller.api import schemas
from sluice.controller.api.authorisation import Operator, Viewer
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, page_in_order
from sluice.controller.api.problems import CHANGE_PROBLEMS, SHOW_PROBLEMS, not_found
from sluice.controller.api.routing import REST
from sluice.controller.grant_service import GrantService

NodeStateName = Literal["up", "away", "lost"]


def node_routes(grant_service: GrantService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    pool = grant_service.pool

    @routes.get("/nodes", tags=["nodes"])
    async def list_nodes(
        _: Viewer,
        state: NodeStateName | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> schemas.NodeList:
        """Every node that ever joined."""
        shown, marker = page_in_order(
            lambda last: (n for n in pool.nodes_in_order.after(last) if state in (None, n.state)),
            lambda n: (n.name,),
            limit,
            marker,
        )
        nodes = [schemas.node_view(pool, node) for node in shown]
        return schemas.NodeList(nodes=nodes, next_marker=marker)

    @routes.get("/nodes/{name}", tags=["nodes"], responses=SHOW_PROBLEMS)
    async def show_node(name: str, _: Viewer, response: Response) -> schemas.NodeView:
        """One node."""
        if (node := pool.nodes.get(name)) is None:
            raise not_found("node", name)
        set_etag(response, node.generation)
        return schemas.node_view(pool, node)

    def check_known(name: str, if_match: str | None) -> None:
        if (node := pool.nodes.get(name)) is not None:
            check_generation(if_match, "node", name, node.generation)

    @routes.put("/nodes/{name}/drain", tags=["nodes"], responses=CHANGE_PROBLEMS)
    async def drain_node(name: str, _: Operator, if_match: IfMatch = None) -> schemas.NodeView:
        """A node takes nothing new; what runs there goes on."""
        check_known(name, if_match)
        await carried_out(grant_service, lambda: pool.switching.drain_node(name, drained=True))
        return schemas.node_view(pool, pool.nodes[name])

    @routes.delete("/nodes/{name}/drain", tags=["nodes"], responses=CHANGE_PROBLEMS)
    async def undrain_node(name: str, _: Operator, if_match: IfMatch = None) -> schemas.NodeView:
        """It takes new grants again."""
        check_known(name, if_match)
        await carried_out(grant_service, lambda: pool.switching.drain_node(name, drained=False))
        return schemas.node_view(pool, pool.nodes[name])

    return routes
