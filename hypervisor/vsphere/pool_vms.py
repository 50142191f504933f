# SPDX-License-Identifier: Apache-2.0
"""Pool VMs: those that hold GPUs become nodes, and leave in order when they cannot be nodes.

Called by service.py, a VM at a time. A VM joins with a one-time enrolment in its guestinfo, which
its guest exchanges for the node's token. It leaves when it is powered off, moved, loses its card,
does not pass pool_checks any more or is gone: the node is drained, then its token is revoked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from sluice.config.vsphere import VsphereConfig
from sluice.hypervisor.vsphere.clients import read_told
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.enrolments import Enrolments
from sluice.hypervisor.vsphere.errors import ControllerRefused
from sluice.hypervisor.vsphere.guestinfo import GuestInfo, own_keys, value_of
from sluice.hypervisor.vsphere.model import Host, Vm
from sluice.hypervisor.vsphere.pool_checks import problems_of
from sluice.hypervisor.vsphere.vm_request import is_below

log = logging.getLogger("sluice.vsphere")

Write = Callable[[Vm, dict[str, str]], Awaitable[None]]


class PoolVms:
    """Every pool VM of one vCenter."""

    def __init__(self, config: VsphereConfig, line: ControllerLine, write: Write) -> None:
        self._section = config.pool
        self._line = line
        self._write = write
        self._info = GuestInfo()
        self._told = read_told(config)
        self.enrolments = Enrolments(line, config.vcenter.name, "node")

    async def load(self, enrolments: list[dict[str, Any]]) -> None:
        """Takes in what the controller has."""
        await self.enrolments.load(enrolments)

    def is_pool_vm(self, vm: Vm) -> bool:
        """Whether it is to be a node, or was one."""
        if vm.instance_uuid in self.enrolments.by_vm:
            return True
        return self.is_chosen(vm)

    def is_chosen(self, vm: Vm) -> bool:
        """Whether it holds a GPU and is where [pool] looks."""
        section = self._section
        return (
            section.enrol
            and bool(vm.gpus)
            and not vm.is_template
            and (not section.folder or is_below(vm.folder, section.folder))
            and (not section.resource_pool or section.resource_pool in vm.resource_pool.split("/"))
        )

    async def reconcile(self, vm: Vm, host: Host | None) -> None:
        """Lets it join, or leave; raises VsphereError."""
        known = await self.enrolments.current(vm)
        reasons = [problem.name for problem in problems_of(vm, host)]
        if not self.is_chosen(vm):
            reasons.insert(0, "not chosen by [pool]")
        was_on = value_of(vm, "host")
        if was_on and was_on != vm.host:
            await self._leave(vm.instance_uuid, vm, f"it moved from {was_on} to {vm.host}")
            return  # what was written brings the next look, which may let it join anew
        if reasons:
            if known or value_of(vm, "role") == "node":
                await self._leave(vm.instance_uuid, vm, ", ".join(reasons))
            return
        secret: dict[str, str] = {}
        if known and known["state"] == "used":
            secret = {"enrolment": "", "enrolment_id": known["id"]}
        elif known is None or not self.enrolments.is_waiting(vm, known):
            told = value_of(vm, "vm") == vm.instance_uuid and value_of(vm, "enrolment_id")
            if known is None and told and was_on == vm.host:
                return  # it was told one, which expired: another when it is powered on
            await self.enrolments.withdraw(vm.instance_uuid)
            node = node_name(vm)
            if value_of(vm, "drained") == node:
                await self._line.remove(f"/nodes/{node}/drain")
            seconds = self._section.enrolment_seconds
            secret = await self.enrolments.make(vm.instance_uuid, seconds, node=node)
            log.info("VM %s joins as node %s", vm.name, node)
        wanted = {
            **self._told,
            "role": "node",
            "node": node_name(vm),
            "vm": vm.instance_uuid,
            "host": vm.host,
            "drained": "",
            **secret,
        }
        if differences := self._info.differences(vm, wanted):
            await self._write(vm, differences)

    async def remove(self, uuid: str) -> None:
        """A VM is gone."""
        if uuid in self.enrolments.by_vm:
            await self._leave(uuid, None, "the VM is gone")

    async def _leave(self, uuid: str, vm: Vm | None, why: str) -> None:
        known = self.enrolments.by_vm.get(uuid)
        node = known["node"] if known else (node_name(vm) if vm else "")
        try:
            await self._line.put(f"/nodes/{node}/drain")
        except ControllerRefused as refused:
            if refused.status != 404:  # it never joined
                raise
        await self.enrolments.withdraw(uuid)
        log.info("node %s leaves the pool: %s", node, why)
        body = {"kind": "adapter.vsphere.node_left", "subject": node, "text": why[:250]}
        await self._line.post("/events", body)
        if vm:
            await self._write(vm, {**dict.fromkeys(own_keys(vm), ""), "drained": node})


def node_name(vm: Vm) -> str:
    """What its node is called: the VM's name, as far as it can be, and what makes it unique."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", vm.name).strip("-.")[:60] or "vm"
    return f"{plain}-{vm.instance_uuid[:8]}"
