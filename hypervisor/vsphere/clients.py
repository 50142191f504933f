# SPDX-License-Identifier: Apache-2.0
"""Client VMs: what their administrators ask for becomes a reservation, an enrolment and guestinfo.

Called by service.py, for all VMs at a time that have something to be seen to. It owns what is known
of the controller's records of these VMs. It promises that a VM that is as asked for costs no call,
that a request which cannot be read or held changes nothing and is told (`refused`, and once in the
event log), and that a VM which asks for nothing any more, or is gone, leaves neither reservation
nor token behind.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sluice.config.vsphere import VsphereConfig
from sluice.hypervisor.vsphere.batched_calls import BatchedCalls
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.enrolments import Enrolments
from sluice.hypervisor.vsphere.errors import BadVmRequest, ControllerRefused
from sluice.hypervisor.vsphere.guestinfo import GuestInfo, own_keys, value_of
from sluice.hypervisor.vsphere.model import Vm
from sluice.hypervisor.vsphere.vm_request import is_reserved, parse, wanted_text
from sluice.resources.vgpu_request import VgpuRequest

log = logging.getLogger("sluice.vsphere")

Write = Callable[[Vm, dict[str, str]], Awaitable[None]]
Step = Callable[[], Awaitable[None]]
LONGEST_EVENT = 250


class Clients:
    """Every client VM of one vCenter."""

    def __init__(self, config: VsphereConfig, line: ControllerLine, write: Write) -> None:
        self._section = config.clients
        self._line = line
        self._calls = BatchedCalls(line, "reservation")
        self._write = write
        self._origin = config.vcenter.name
        self._info = GuestInfo()
        self._told = read_told(config)
        self.enrolments = Enrolments(line, self._origin, "tenant")
        self.reservations: dict[str, dict[str, Any]] = {}  # by instance UUID
        self.refused: dict[str, str] = {}  # why a VM's request is not met, by instance UUID

    async def load(self, enrolments: list[dict[str, Any]]) -> None:
        """Takes in what the controller has; what is there twice is given back."""
        await self.enrolments.load(enrolments)
        self.reservations = {}
        found = await self._line.every("/reservations", "reservations", origin=self._origin)
        for each in found:
            if each["owner"] in self.reservations:
                await self._calls.remove("end", each["id"])
            else:
                self.reservations[each["owner"]] = each

    @property
    def known(self) -> set[str]:
        """The instance UUIDs of VMs that the controller has something of."""
        return self.reservations.keys() | self.enrolments.by_vm.keys()

    def is_client(self, vm: Vm) -> bool:
        """Whether it is chosen."""
        return wanted_text(vm, self._section) is not None

    async def reconcile(self, vm: Vm) -> Step | None:
        """Sees to what a VM asks of the pool, and returns what brings it to its guest, if any.

        Both raise VsphereError. In between, the VM's secret is not made yet: it is good for minutes
        only, and vCenter may be long at others' reconfigurations.
        """
        text = wanted_text(vm, self._section)
        if text is None:
            await self.remove(vm.instance_uuid, vm)
            return None
        try:
            request = parse(text, self._section)
            reservation = await self._reserve(vm, request)
        except (BadVmRequest, ControllerRefused) as refused:
            await self._refuse(vm, str(refused))
            return None
        return lambda: self._bring(vm, request, reservation)

    async def _bring(
        self, vm: Vm, request: VgpuRequest, reservation: dict[str, Any] | None
    ) -> None:
        try:
            secret = await self._enrol(vm, request, reservation)
        except ControllerRefused as refused:
            await self._refuse(vm, str(refused))
            return
        if self.refused.pop(vm.instance_uuid, None):
            await self._tell("client_met", vm, "its request is met now")
        wanted = secret if not vm.is_on else {**self._told, **_settings(vm, request), **secret}
        if differences := self._info.differences(vm, wanted):
            await self._write(vm, differences)

    async def remove(self, uuid: str, vm: Vm | None) -> None:
        """A VM is no client, or is no more: nothing of it stays."""
        self.refused.pop(uuid, None)
        had = uuid in self.known
        await self.enrolments.withdraw(uuid)
        if reservation := self.reservations.get(uuid):
            await self._calls.remove("end", reservation["id"])
            self.reservations.pop(uuid, None)
        if had:
            log.info("VM %s is no client any more", vm.name if vm else uuid)
        if vm and value_of(vm, "role") in ("", "client") and (keys := own_keys(vm)):
            await self._write(vm, dict.fromkeys(keys, ""))

    async def renew(self, vm: Vm) -> None:
        """Gives a VM another one-time secret on its operator's word; the old token ends."""
        await self.enrolments.withdraw(vm.instance_uuid)
        await self._write(vm, {"enrolment": "", "enrolment_id": ""})

    # within

    async def _reserve(self, vm: Vm, request: VgpuRequest) -> dict[str, Any] | None:
        uuid = vm.instance_uuid
        known = self.reservations.get(uuid)
        wanted = (request.count, request.memory_mib, request.compute_percent)
        if known:
            has = (known["count"], known["memory_mib"], known["compute_percent"])
            # a size cannot be changed back to the pool's default, nor a project at all
            anew = known["project"] != request.project or any(
                old and not new for old, new in zip(has, wanted, strict=True)
            )
            if not is_reserved(request) or anew:
                await self._calls.remove("end", known["id"])
                self.reservations.pop(uuid, None)
                known = None
            elif has != wanted:
                size = {"count": wanted[0], "memory_mib": wanted[1], "compute_percent": wanted[2]}
                known = await self._calls.ask("resize", id=known["id"], **size)
                self.reservations[uuid] = known
        if known is None and is_reserved(request):
            body = {
                "owner_kind": "vm",
                "owner": uuid,
                "project": request.project,
                "count": request.count,
                "memory_mib": request.memory_mib,
                "compute_percent": request.compute_percent,
                "wait": True,
                "origin": self._origin,
            }
            known = self.reservations[uuid] = await self._calls.ask("create", **body)
            log.info("VM %s (%s): reservation %s", vm.name, uuid, known["id"])
        return known

    async def _enrol(
        self, vm: Vm, request: VgpuRequest, reservation: dict[str, Any] | None
    ) -> dict[str, str]:
        """The keys of its secret: new ones, as they are, or empty."""
        uuid = vm.instance_uuid
        known = await self.enrolments.current(vm)
        if known and known["project"] != request.project:
            await self.enrolments.withdraw(uuid)
            known = None
        gone = {"enrolment": ""}
        if known and known["state"] == "used":
            return {**gone, "enrolment_id": known["id"]}
        if not vm.is_on:
            # nobody reads it now, and it would not wait: there is another when it is powered on
            await self.enrolments.withdraw(uuid)
            return {"enrolment": "", "enrolment_id": ""}
        if known and self.enrolments.is_waiting(vm, known):
            same_room = known["reservation"] == (reservation["id"] if reservation else "")
            if same_room:
                return {}
        elif known is None and value_of(vm, "vm") == uuid and value_of(vm, "enrolment_id"):
            return gone  # it was told one, which expired: another when it is powered on, or by hand
        if known:
            await self.enrolments.withdraw(uuid)  # its secret is lost, or for another's room
        where = (
            {"reservation": reservation["id"]}
            if reservation
            else {"project": request.project, "vm": uuid}
        )
        return await self.enrolments.make(uuid, self._section.enrolment_seconds, **where)

    async def _refuse(self, vm: Vm, why: str) -> None:
        if self.refused.get(vm.instance_uuid) != why:
            self.refused[vm.instance_uuid] = why
            log.warning("VM %s (%s): %s", vm.name, vm.instance_uuid, why)
            await self._tell("client_refused", vm, why)

    async def _tell(self, kind: str, vm: Vm, text: str) -> None:
        line = "".join(c if c.isprintable() else "?" for c in f"VM {vm.name}: {text}")
        body = {
            "kind": f"adapter.vsphere.{kind}",
            "subject": vm.instance_uuid,
            "text": line[:LONGEST_EVENT],
        }
        try:
            await self._line.post("/events", body)
        except ControllerRefused as refused:
            log.warning("the event log does not take it: %s", refused)


def read_told(config: VsphereConfig) -> dict[str, str]:
    """What every VM is told of the controllers."""
    told = {"controller": config.guest_addresses}
    if config.controller.ca_file:
        told["ca"] = Path(config.controller.ca_file).read_text()
    return told


def _settings(vm: Vm, request: VgpuRequest) -> dict[str, str]:
    settings = {
        "count": request.count,
        "memory_mib": request.memory_mib,
        "compute_percent": request.compute_percent,
        "mode": request.mode,
        "project": request.project,
    }
    return {"role": "client", "vm": vm.instance_uuid, "settings": json.dumps(settings)}
