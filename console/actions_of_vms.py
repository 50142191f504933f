# SPDX-License-Identifier: Apache-2.0
"""What a VM asks for, and whole GPUs that go to VMs and come back. Part of console.actions."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.console.inner_rest import RestCall
from sluice.console.kinds import gpu_of
from sluice.console.parts import Hidden
from sluice.console.plans import Action, Field, Plan, number, operators
from sluice.console.rendering import link
from sluice.console.rights import Rights
from sluice.controller.api.vm_routes import generation_of
from sluice.controller.pool.gpus.attachment import Attachment
from sluice.controller.pool.model import Gpu, GpuMode
from sluice.controller.pool.pool import Pool

SEEING_ALL = Rights(sees_pool=True, operates=True)
WHEN = (
    ("both", "into what runs and into its definition, as far as they are there"),
    ("now", "into what runs only"),
    ("next-start", "into its definition only: from its next start on"),
)


MODES = (
    ("auto", "auto: from a reservation if there is one"),
    ("reserved", "reserved: kept for it all the time"),
    ("on-demand", "on-demand: never from a reservation"),
)


def _of(pool: Pool, target: str) -> tuple[Gpu, Attachment | None]:
    gpu = gpu_of(pool, SEEING_ALL, target)
    return gpu, pool.attachments.get(gpu.key)


def _attach(pool: Pool, target: str) -> Plan:
    gpu, held = _of(pool, target)
    mode = pool.mode(gpu.key)
    obsolete = "" if mode is GpuMode.NATIVE else f"It is {mode.value}: take it out of the pool."
    if held is not None:
        obsolete = f"VM {held.domain_name or held.domain_uuid} has it already."
    return Plan(
        title=f"Give GPU {gpu.uuid} to a VM",
        button="Give it to the VM",
        will=[
            (f"The server of node {gpu.node} puts the whole card into a VM of that host, which "
            "then needs NVIDIA's own driver."),
            "The pool keeps away from it until it is taken back.",
        ],
        fields=[
            Field("domain", "The VM, by name or UUID, of that node", required=True),
            Field("when", "When", "select", "both", options=WHEN),
            Field("rom_bar", "The guest sees the card's option ROM", "checkbox", "1"),
        ],
        back=link("gpu", id=target),
        generation=held.generation if held else 0,
        obsolete=obsolete,
    )  # fmt: skip


def _attach_call(target: str, fields: Mapping[str, str]) -> RestCall:
    body = {
        "domain": fields.get("domain", "").strip(),
        "when": fields.get("when", ""),
        "rom_bar": "rom_bar" in fields,
    }
    return RestCall("PUT", ("gpus", target, "attachment"), body=body)


def _detach(pool: Pool, target: str) -> Plan:
    gpu, held = _of(pool, target)
    name = (held.domain_name or held.domain_uuid) if held else ""
    return Plan(
        title=f"Take GPU {gpu.uuid} back from its VM",
        button="Take it back",
        will=[
            f"It is unplugged from VM {name}: what computes on it there fails."
            if held and held.live
            else f"It is taken out of VM {name}'s definition.",
            "It stays out of the pool, for another VM or to be returned.",
        ],
        back=link("gpu", id=target),
        generation=held.generation if held else None,
        danger=True,
        obsolete="" if held else "No VM has it.",
    )


def _change(pool: Pool, uuid: str) -> Plan:
    if (vm := pool.machines.records.get(uuid)) is None:
        raise Hidden
    follows = (
        f"Its reservation {vm.reservation} is made to fit, where the pool has room for that."
        if vm.reservation
        else "With mode reserved so much is kept for it; else its programs queue as others do."
    )
    return Plan(
        title=f"What VM {vm.name} asks for",
        button="Change the request",
        will=[
            f"The server of node {vm.node} writes it into the VM's definition, and into what runs.",
            f"Now it asks for {vm.requested}.",
            "Programs that run keep what they have; the next ones get the new figures.",
            follows,
        ],
        fields=[
            Field("count", "How many vGPUs", "number", str(vm.count or ""), least=1),
            Field("memory_mib", "Memory of each, MiB", "number", str(vm.memory_mib or ""), least=1),
            Field(
                "compute_percent", "Compute of each, percent", "number",
                str(vm.compute_percent or ""), least=1, most=100,
            ),
            Field("priority", "Priority", "number", str(vm.priority)),
            Field("mode", "Mode", "select", vm.mode.value, options=MODES),
        ],
        back=link("vms"),
        generation=generation_of(vm),
        obsolete="" if vm.count else "It asks for nothing that could be changed from here.",
    )  # fmt: skip


def _change_call(uuid: str, fields: Mapping[str, str]) -> RestCall:
    names = ("count", "memory_mib", "compute_percent", "priority")
    given = {name: number(fields, name) for name in names}
    body: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if mode := fields.get("mode", ""):
        body["mode"] = mode
    return RestCall("PATCH", ("vms", uuid), body=body)


VMS: dict[str, Action] = {
    "vm.request": Action("The VM asks for that from now on.", operators, _change, _change_call),
    "gpu.attach": Action("The GPU goes to the VM.", operators, _attach, _attach_call),
    "gpu.detach": Action(
        "The GPU comes back from the VM.", operators, _detach,
        lambda gpu, _: RestCall("DELETE", ("gpus", gpu, "attachment")),
    ),
}  # fmt: skip
