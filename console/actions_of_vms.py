# SPDX-License-Identifier: Apache-2.0
"""Giving a GPU that is out of the pool to a VM, and taking it back. Part of console.actions."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.console.inner_rest import RestCall
from sluice.console.kinds import gpu_of
from sluice.console.plans import Action, Field, Plan, operators
from sluice.console.rendering import link
from sluice.console.rights import Rights
from sluice.controller.pool.gpus.attachment import Attachment
from sluice.controller.pool.model import Gpu, GpuMode
from sluice.controller.pool.pool import Pool

SEEING_ALL = Rights(sees_pool=True, operates=True)
WHEN = (
    ("both", "into what runs and into its definition, as far as they are there"),
    ("now", "into what runs only"),
    ("next-start", "into its definition only: from its next start on"),
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


VMS: dict[str, Action] = {
    "gpu.attach": Action("The GPU goes to the VM.", operators, _attach, _attach_call),
    "gpu.detach": Action(
        "The GPU comes back from the VM.", operators, _detach,
        lambda gpu, _: RestCall("DELETE", ("gpus", gpu, "attachment")),
    ),
}  # fmt: skip
