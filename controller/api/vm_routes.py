# SPDX-License-Identifier: Apache-2.0
"""REST handlers of VMs that ask for vGPUs: what each asks for, what is wrong with it, changes.

Mounted by controller.api.app. A VM's request is written where the VM is (libvirt's metadata, by
`sluice vm`) and reported by its node's server, which is also who changes it: here is no second copy
of it. What an OpenStack instance asks for is its flavor's, and changed there.
"""

from __future__ import annotations

import zlib
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Operator, Viewer
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.node_problems import told
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import (
    CHANGE_PROBLEMS,
    SHOW_PROBLEMS,
    Problem,
    not_found,
    problem_responses,
)
from sluice.controller.api.routing import REST
from sluice.controller.pool.model import Mode
from sluice.controller.pool.pool import Pool
from sluice.controller.pool.reservations.machines import Machine
from sluice.controller.rpc.node_service import PoolService
from sluice.resources.problem_types import ProblemType
from sluice.resources.vgpu_request import COMPUTE_PERCENT, COUNT, MEMORY_MIB, PRIORITY
from sluice.rpc import pool_pb2 as rpc

#: libvirt may wait for a guest that is busy.
ANSWER_SECONDS = 30.0


class VmView(BaseModel):
    """A VM with a request, or with a problem. Memory in MiB, compute in percent, of each vGPU."""

    uuid: str
    name: str
    node: str
    project: str
    count: int = Field(description="of vGPUs; 0: it asks for nothing that can be served")
    memory_mib: int
    compute_percent: int
    priority: int
    mode: str = Field(description="reserved: its reservation follows its request; on-demand; auto")
    problems: list[str]
    reservation: str = Field(description="that was made for it; empty: none")
    refused: str = Field(description="why it has none, or not one of its size; empty: it has")
    generation: int = Field(
        description="made of what it asks for, on which node and account: it is another where "
        "those are"
    )


class VmList(Page):
    """VMs, by name."""

    vms: list[VmView]


class VmChange(BaseModel):
    """What a VM asks for from now on; what is not named stays."""

    count: Annotated[int, Field(ge=COUNT.low, le=COUNT.high)] | None = None
    memory_mib: Annotated[int, Field(ge=MEMORY_MIB.low, le=MEMORY_MIB.high)] | None = None
    compute_percent: (
        Annotated[int, Field(ge=COMPUTE_PERCENT.low, le=COMPUTE_PERCENT.high)] | None
    ) = None
    priority: Annotated[int, Field(ge=PRIORITY.low, le=PRIORITY.high)] | None = None
    mode: Mode | None = None


class VmChanged(VmView):
    """The VM as it was last reported: its server reports what was changed within a second or so."""

    notes: list[str] = Field(description="of its server, for the operator")


def generation_of(machine: Machine) -> int:
    """A number for a request, which has none of its own: libvirt keeps it."""
    text = repr((machine.node, machine.project, machine.requested))
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def vm_view(machine: Machine) -> VmView:
    """A record as the API shows it."""
    return VmView(
        uuid=machine.uuid,
        name=machine.name,
        node=machine.node,
        project=machine.project,
        count=machine.count,
        memory_mib=machine.memory_mib,
        compute_percent=machine.compute_percent,
        priority=machine.priority,
        mode=machine.mode.value,
        problems=list(machine.problems),
        reservation=machine.reservation,
        refused=machine.refused,
        generation=generation_of(machine),
    )


def vm_routes(pool: Pool, service: PoolService) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    _add_reading(routes, pool)
    _add_changing(routes, pool, service)
    return routes


def _machine_of(pool: Pool, uuid: str) -> Machine:
    if (found := pool.machines.records.get(uuid)) is None:
        raise not_found("vm", uuid)
    return found


def _add_reading(routes: APIRouter, pool: Pool) -> None:
    """VMs, listed and shown."""

    @routes.get("/vms", tags=["vms"])
    async def list_vms(
        _: Viewer,
        node: str | None = None,
        project: str | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> VmList:
        """VMs that ask for vGPUs, as their servers report them."""
        wanted = (
            machine
            for machine in pool.machines.records.values()
            if node in (None, machine.node) and project in (None, machine.project)
        )
        shown, marker = page(wanted, lambda vm: (vm.name, vm.uuid), limit, marker)
        return VmList(vms=[vm_view(machine) for machine in shown], next_marker=marker)

    @routes.get("/vms/{uuid}", tags=["vms"], responses=SHOW_PROBLEMS)
    async def show_vm(uuid: str, _: Viewer, response: Response) -> VmView:
        """One VM."""
        view = vm_view(_machine_of(pool, uuid))
        set_etag(response, view.generation)
        return view


def _add_changing(routes: APIRouter, pool: Pool, service: PoolService) -> None:
    """What a VM asks for."""

    @routes.patch(
        "/vms/{uuid}", tags=["vms"], responses={**CHANGE_PROBLEMS, **problem_responses(503)}
    )
    async def change_vm(
        uuid: str, body: VmChange, _: Operator, if_match: IfMatch = None
    ) -> VmChanged:
        """Changes what a VM asks for, by its node's server; programs that run keep what they
        have, the next ones get the new figures, and its reservation follows.
        """
        machine = _machine_of(pool, uuid)
        check_generation(if_match, "vm", uuid, generation_of(machine))
        given = body.model_dump(exclude_none=True, mode="json")
        if not given:
            raise Problem(
                422, ProblemType.INVALID_REQUEST, "nothing is to be changed: name count or another"
            )
        order = rpc.ChangeRequest(domain_uuid=uuid)
        for name, value in given.items():
            setattr(order, "vgpu_count" if name == "count" else name, value)
        away = "has the VM; start its sluice-server"
        with told(machine.node, away, ProblemType.NOT_POSSIBLE):
            notes = await service.link_of(machine.node).change_request(order, ANSWER_SECONDS)
        return VmChanged(**vm_view(_machine_of(pool, uuid)).model_dump(), notes=list(notes))
