# SPDX-License-Identifier: Apache-2.0
"""What there is in a vCenter and what the controller has of it, side by side, for the commands.

Used by cli.py. It reads both once and changes nothing; each row is a plain dict that can be shown
as a table or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.config.vsphere import Credentials, VsphereConfig
from sluice.hypervisor.vsphere.connection import Vcenter
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.enrolments import Enrolments
from sluice.hypervisor.vsphere.errors import BadVmRequest, ControllerRefused
from sluice.hypervisor.vsphere.guestinfo import value_of
from sluice.hypervisor.vsphere.inventory import Inventory
from sluice.hypervisor.vsphere.model import Vm
from sluice.hypervisor.vsphere.pool_checks import problems_of
from sluice.hypervisor.vsphere.pool_vms import PoolVms, node_name
from sluice.hypervisor.vsphere.tags import TagReader
from sluice.hypervisor.vsphere.vm_request import is_reserved, parse, wanted_text

Row = dict[str, Any]


@dataclass
class Seen:
    """A vCenter's inventory, read once."""

    vcenter: Vcenter
    inventory: Inventory


def look(config: VsphereConfig, credentials: Credentials) -> Seen:
    """Connects and reads; raises VsphereError."""
    vcenter = Vcenter(config.vcenter, credentials)
    try:
        inventory = Inventory(vcenter)
        inventory.wait(config.vcenter.poll_seconds)
        if config.clients.category:
            tags = TagReader(vcenter, credentials, config.clients.category)
            try:
                inventory.set_tags(tags.read())
            finally:
                tags.close()
    except BaseException:
        vcenter.close()
        raise
    return Seen(vcenter, inventory)


def host_rows(seen: Seen) -> list[Row]:
    """Every GPU of every host."""
    return [
        {
            "host": host.name,
            "gpu": gpu.name,
            "pci_address": gpu.pci_address,
            "memory_mib": gpu.memory_mib,
            "passthrough": gpu.is_active,
            "host_connected": host.connected,
            "maintenance": host.in_maintenance,
        }
        for host in sorted(seen.inventory.hosts(), key=lambda h: h.name)
        for gpu in host.gpus
    ]


async def pool_rows(config: VsphereConfig, line: ControllerLine, seen: Seen) -> list[Row]:
    """Every VM that holds a GPU, with what keeps it from being a node."""
    enrolments = Enrolments(line, config.vcenter.name, "node")
    enrolments.take(await line.every("/enrolments", "enrolments"))
    nodes = {each["name"]: each for each in await line.every("/nodes", "nodes")}
    chosen = PoolVms(config, line, _no_write).is_chosen
    rows = []
    for vm in _sorted(seen, lambda v: bool(v.gpus)):
        host = seen.inventory.host(vm.host)
        problems = problems_of(vm, host)
        enrolment = enrolments.by_vm.get(vm.instance_uuid)
        node = nodes.get(node_name(vm))
        rows.append(
            {
                "vm": vm.name,
                "instance_uuid": vm.instance_uuid,
                "host": host.name if host else "",
                "gpus": [f"{g.kind} {g.pci_address}".strip() for g in vm.gpus],
                "chosen": chosen(vm),
                "node": node_name(vm),
                "state": node["state"] if node else "absent",
                "drained": bool(node and node["drained"]),
                "enrolment": enrolment["state"] if enrolment else "none",
                "problems": [problem.name for problem in problems],
                "details": [problem.text for problem in problems],
            }
        )
    return rows


async def client_rows(config: VsphereConfig, line: ControllerLine, seen: Seen) -> list[Row]:
    """Every VM that is chosen as a client, or has something in the controller."""
    enrolments = Enrolments(line, config.vcenter.name, "tenant")
    enrolments.take(await line.every("/enrolments", "enrolments"))
    origin = config.vcenter.name
    listed = await line.every("/reservations", "reservations", origin=origin)
    reservations = {each["owner"]: each for each in listed}
    rows, shown = [], set()
    for vm in _sorted(seen, lambda v: wanted_text(v, config.clients) is not None):
        shown.add(vm.instance_uuid)
        row = _client(config, vm, reservations.get(vm.instance_uuid))
        known = enrolments.by_vm.get(vm.instance_uuid)
        row["enrolment"] = known["state"] if known else "none"
        if not row["error"] and row["state"] in ("missing", "different"):
            row["error"] = await _refusal(line, vm.instance_uuid)
        rows.append(row)
    for uuid, reservation in reservations.items():
        if uuid not in shown:
            rows.append(
                {
                    "vm": "",
                    "instance_uuid": uuid,
                    "power": "",
                    "state": "superfluous",
                    "reservation": reservation["id"],
                    "error": "no VM asks for it any more; sluice-vsphere removes it",
                }
            )
    return rows


def _client(config: VsphereConfig, vm: Vm, reservation: Row | None) -> Row:
    row: Row = {
        "vm": vm.name,
        "instance_uuid": vm.instance_uuid,
        "power": "on" if vm.is_on else "off",
        "count": None,
        "memory_mib": None,
        "compute_percent": None,
        "mode": None,
        "project": None,
        "reservation": reservation["id"] if reservation else "",
        "state": reservation["state"] if reservation else "missing",
        "enrolment": "none",
        "error": "",
    }
    try:
        request = parse(wanted_text(vm, config.clients) or "", config.clients)
    except BadVmRequest as error:
        return {**row, "state": "refused", "error": str(error)}
    row |= {
        "count": request.count,
        "memory_mib": request.memory_mib,
        "compute_percent": request.compute_percent,
        "mode": request.mode,
        "project": request.project,
    }
    if not is_reserved(request):
        told = value_of(vm, "vm") == vm.instance_uuid
        row["state"] = "on-demand" if told or not vm.is_on else "missing"
    elif reservation:
        has = tuple(reservation[key] for key in ("count", "memory_mib", "compute_percent"))
        if has != (request.count, request.memory_mib, request.compute_percent):
            row["state"] = "different"
    return row


async def _refusal(line: ControllerLine, uuid: str) -> str:
    """What the service said last of a VM that has not what it asks for."""
    try:
        found = await line.get("/events", subject=uuid, kind="adapter.vsphere.client", limit=1)
    except ControllerRefused:
        return ""
    events = found["events"]
    if events and events[0]["kind"].endswith("client_refused"):
        return str(events[0]["text"])
    return "sluice-vsphere has not seen to it yet: does it run?"


def _sorted(seen: Seen, is_wanted: Callable[[Vm], bool]) -> list[Vm]:
    return sorted(filter(is_wanted, seen.inventory.vms()), key=lambda vm: (vm.name, vm.id))


async def _no_write(vm: Vm, values: dict[str, str]) -> None:
    raise AssertionError("a command that looks changes nothing")
