# SPDX-License-Identifier: Apache-2.0
"""REST handler of VMs that ask for vGPUs: what each asks for, and what is wrong with that.

Mounted by controller.api.app. A VM's request is written where the VM is (libvirt's metadata, by
`sluice vm`) and reported by its node's server; here it is shown.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Viewer
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.pool.pool import Pool
from sluice.controller.pool.reservations.machines import Machine


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
    mode: str = Field(description="auto, or reserved: its reservation follows its request")
    problems: list[str]
    reservation: str = Field(description="that was made for it; empty: none")
    refused: str = Field(description="why it has none, or not one of its size; empty: it has")


class VmList(Page):
    """VMs, by name."""

    vms: list[VmView]


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
    )


def vm_routes(pool: Pool) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()

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

    return routes
