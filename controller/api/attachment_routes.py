# SPDX-License-Identifier: Apache-2.0
"""REST handlers of native GPUs: which VM holds one, giving one to a VM, taking it back.

Mounted by controller.api.app. They decide nothing: the pool books, the node's server does it. An
answer comes when it is done, or after a while with the state that it is in; it goes on then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Operator, Viewer
from sluice.controller.api.carrying_out import carried_out
from sluice.controller.api.generations import IfMatch, check_generation
from sluice.controller.api.gpu_ids import gpu_key
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import CHANGE_PROBLEMS, Problem, not_found
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Line, Time, time_of
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.gpus.attachment import Attachment, AttachWhen
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import GpuKey
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.attaching import Attaching
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import OrderRefused, ServerSilent
from sluice.resources.problem_types import ProblemType

PATIENCE_SECONDS = 8.0  # callers give up sooner or later; what they asked for does not


class AttachRequest(BaseModel):
    """The VM that a native GPU goes to."""

    domain: Annotated[Line, Field(min_length=1, description="a libvirt domain's name or UUID")]
    when: Literal["both", "now", "next-start"] = Field(
        "both", description="put it into what runs, into the definition, or both as far as they are"
    )
    rom_bar: bool = Field(True, description="false: the guest does not see the card's option ROM")


class AttachmentView(BaseModel):
    """A native GPU and the VM that holds it."""

    gpu: str
    node: str
    pci_address: str
    domain_uuid: str = Field(description="empty until its server has found it")
    domain_name: str
    state: Literal["attaching", "attached", "detaching", "detached"]
    live: bool = Field(description="it is plugged into what runs")
    config: bool = Field(description="it is in the definition")
    reason: str
    since: Time
    generation: int


class AttachmentList(Page):
    """Native GPUs that VMs hold, by node and GPU."""

    attachments: list[AttachmentView]


def attachment_view(pool: Pool, found: Attachment) -> AttachmentView:
    """A record as the API shows it."""
    key = GpuKey(found.node, found.uuid)
    gpu = pool.gpus.get(key)
    return AttachmentView(
        gpu=str(key),
        node=found.node,
        pci_address=gpu.pci_address if gpu else "",
        domain_uuid=found.domain_uuid,
        domain_name=found.domain_name,
        state=found.state.value,
        live=found.live,
        config=found.config,
        reason=found.reason,
        since=time_of(found.since),
        generation=found.generation,
    )


def attachment_routes(grant_service: GrantService, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    attaching = Attaching(grant_service, service)
    _add_reading(routes, grant_service.pool)
    _add_attaching(routes, grant_service.pool, attaching)
    _add_detaching(routes, grant_service, attaching)
    return routes


def _record_of(pool: Pool, key: GpuKey) -> Attachment:
    if (found := pool.attachments.get(key)) is None:
        raise not_found("attachment", str(key))
    return found


async def _outcome(
    order: Coroutine[Any, Any, asyncio.Task[None]], kind: ProblemType, what: str
) -> None:
    """Gives an order and waits a while for what comes of it; raises Problem where it is refused."""
    try:
        task = await order
    except Impossible as error:
        raise Problem(409, ProblemType.NOT_POSSIBLE, str(error)) from None
    except Unknown as error:
        raise not_found(error.kind, error.name) from None
    await asyncio.wait([task], timeout=PATIENCE_SECONDS)
    try:
        if task.done():
            task.result()
    except (OrderRefused, ServerSilent) as why:
        raise Problem(409, kind, f"{what}: {why}") from None


def _add_reading(routes: APIRouter, pool: Pool) -> None:
    """Who holds what."""

    @routes.get("/attachments", tags=["gpus"])
    async def list_attachments(
        _: Viewer,
        node: str | None = None,
        domain: Annotated[str | None, Query(description="a VM's name or UUID")] = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> AttachmentList:
        """Every native GPU that a VM holds."""
        wanted = (
            found
            for found in pool.attachments.values()
            if node in (None, found.node) and domain in (None, found.domain_name, found.domain_uuid)
        )
        shown, marker = page(wanted, lambda a: (a.node, a.uuid), limit, marker)
        views = [attachment_view(pool, found) for found in shown]
        return AttachmentList(attachments=views, next_marker=marker)

    @routes.get("/gpus/{gpu_id}/attachment", tags=["gpus"], responses=CHANGE_PROBLEMS)
    async def show_attachment(gpu_id: str, _: Viewer) -> AttachmentView:
        """The VM that holds the GPU."""
        return attachment_view(pool, _record_of(pool, gpu_key(pool.gpus, gpu_id)))


def _add_attaching(routes: APIRouter, pool: Pool, attaching: Attaching) -> None:
    """A GPU goes to a VM."""

    @routes.put(
        "/gpus/{gpu_id}/attachment", tags=["gpus"], status_code=202, responses=CHANGE_PROBLEMS
    )
    async def attach_gpu(
        gpu_id: str, body: AttachRequest, _: Operator, if_match: IfMatch = None
    ) -> AttachmentView:
        """Gives a native GPU to a VM of its own node; again for the same VM does no harm."""
        key = gpu_key(pool.gpus, gpu_id)
        known = pool.attachments.get(key)
        check_generation(if_match, "attachment", gpu_id, known.generation if known else 0)
        order = attaching.attach(key, body.domain, AttachWhen(body.when), rom_bar=body.rom_bar)
        await _outcome(order, ProblemType.NOT_ATTACHED, f"GPU {key} is not in VM {body.domain}")
        return attachment_view(pool, _record_of(pool, key))


def _add_detaching(routes: APIRouter, grant_service: GrantService, attaching: Attaching) -> None:
    """A GPU comes back from a VM."""
    pool = grant_service.pool

    @routes.delete(
        "/gpus/{gpu_id}/attachment", tags=["gpus"], status_code=202, responses=CHANGE_PROBLEMS
    )
    async def detach_gpu(
        gpu_id: str,
        _: Operator,
        forget: Annotated[
            bool, Query(description="drop the record only: its node does not return")
        ] = False,
        if_match: IfMatch = None,
    ) -> AttachmentView:
        """Takes a GPU back from its VM; it stays native, for another VM or for the pool."""
        key = gpu_key(pool.gpus, gpu_id)
        found = _record_of(pool, key)
        check_generation(if_match, "attachment", gpu_id, found.generation)
        if forget:

            def drop() -> Decisions:
                pool.native_gpus.forget(key)
                return Decisions()

            await carried_out(grant_service, drop)
        else:
            order = attaching.detach(key)
            await _outcome(order, ProblemType.NOT_DETACHED, f"GPU {key}, VM {found.domain_name}")
        view = attachment_view(pool, found)
        return view if key in pool.attachments else view.model_copy(update={"state": "detached"})
