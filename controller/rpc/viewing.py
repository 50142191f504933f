# SPDX-License-Identifier: Apache-2.0
"""What is shown of the pool to a client that only looks, from the nodes that know it.

Called by node_service for clients of a server, and by api.view_routes for those that ask over REST.
Nothing is granted, stored or queued. A node that does not answer costs what only it knows; what the
pool itself knows of its GPUs is shown all the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence

from sluice.controller.pool.decisions import GrantRequest, Refused
from sluice.controller.pool.model import GpuKey, Session, Vgpu
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.messages import vgpu_messages
from sluice.controller.rpc.server_link import OrderRefused, ServerLink, ServerSilent
from sluice.rpc import pool_pb2 as rpc

VIEW_SECONDS = 3.0


async def views_of(
    pool: Pool, links: Mapping[str, ServerLink], sessions: Iterable[Session]
) -> list[rpc.SessionView]:
    """What these sessions have."""
    by_node: dict[str, list[Session]] = {}
    for session in sessions:
        by_node.setdefault(session.node, []).append(session)
    found = await asyncio.gather(
        *(_of_node(pool, links, node, there) for node, there in by_node.items())
    )
    return [view for views in found for view in views]


async def preview(
    pool: Pool, links: Mapping[str, ServerLink], request: GrantRequest
) -> list[rpc.SessionView] | Refused:
    """What such a request would get."""
    vgpus = pool.requests.preview(request)
    if isinstance(vgpus, Refused):
        return vgpus
    by_node: dict[str, list[Vgpu]] = {}
    for vgpu in vgpus:
        by_node.setdefault(vgpu.node, []).append(vgpu)
    whole = rpc.SessionView()  # one, so that its vGPUs are numbered
    for node, there in by_node.items():
        asked = rpc.ReadView(idle=vgpu_messages(there))
        told = await _told(links, node, asked)
        known = _known(pool, node, there)
        whole.vgpus.extend(told[-1].vgpus if told else known.vgpus)
    return [whole]


async def _of_node(
    pool: Pool, links: Mapping[str, ServerLink], node: str, sessions: Sequence[Session]
) -> list[rpc.SessionView]:
    ids = {session.id for session in sessions}
    told = await _told(links, node, rpc.ReadView(session_ids=sorted(ids)))
    if told is not None:
        return [view for view in told if view.session_id in ids]
    views = []
    for session in sessions:
        if grant := pool.grants.get(session.grant_id):
            own = [
                vgpu
                for place, (key, vgpu) in enumerate(grant.placed())
                if key.node == node and (not session.chosen or place in session.chosen)
            ]
            view = _known(pool, node, own)
            view.session_id = session.id
            for vgpu in view.vgpus:
                vgpu.uuid = vgpu.gpu_uuid
            views.append(view)
    return views


async def _told(
    links: Mapping[str, ServerLink], node: str, asked: rpc.ReadView
) -> Sequence[rpc.SessionView] | None:
    """The node's word; None where it has none."""
    link = links.get(node)
    if link is None or not link.tells_views:
        return None
    try:
        return await link.read_view(asked, VIEW_SECONDS)
    except (OrderRefused, ServerSilent):
        return None


def _known(pool: Pool, node: str, vgpus: Iterable[Vgpu]) -> rpc.SessionView:
    """What the pool knows itself."""
    view = rpc.SessionView()
    for vgpu in vgpus:
        gpu = pool.gpus.get(GpuKey(node, vgpu.gpu_uuid))
        capability = re.fullmatch(r"sm_(\d+)(\d)\D*", gpu.architecture if gpu else "")
        view.vgpus.add(
            gpu_uuid=vgpu.gpu_uuid,
            name=gpu.model if gpu else "",
            memory_mib=vgpu.memory_mib,
            compute_percent=vgpu.compute_percent,
            attributes=f"75={capability[1]} 76={capability[2]}" if capability else "",
        )
    return view
