# SPDX-License-Identifier: Apache-2.0
"""Reserving: made, resized, ended. Part of console.actions."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.console.inner_rest import RestCall
from sluice.console.parts import Hidden
from sluice.console.plans import Action, Field, Plan, number, operators, several
from sluice.console.rendering import link, mib
from sluice.controller.pool.model import Reservation, ReservationState
from sluice.controller.pool.pool import Pool

OWNERS = (("project", "a project"), ("vm", "a VM, by UUID or name"), ("label", "a label"))


def _reservation_of(pool: Pool, name: str) -> Reservation:
    if (found := pool.reservations.get(name)) is None:
        raise Hidden
    return found


def _reserve(_: Pool, project: str) -> Plan:
    """`project`: for which the form is filled in; empty: for none."""
    return Plan(
        title="Reserve vGPUs",
        button="Reserve",
        will=[
            ("So many vGPUs of this size are kept for their owner, whether it uses them or not. "
            "They count against its project's quota."),
            "Where there is no room it is refused, or waits in the queue if you say so.",
        ],
        fields=[
            Field("owner_kind", "For", "select", "project", options=OWNERS),
            Field("owner", "Its name", value=project, required=True),
            Field("project", "On the account of project (empty: default)", value=project),
            Field("count", "How many vGPUs", "number", "1", least=1, most=1024, required=True),
            Field("memory_mib", "Memory of each, MiB (empty: default)", "number", least=1),
            Field(
                "compute_percent", "Compute of each, percent (empty: default)", "number",
                least=1, most=100,
            ),
            Field("priority", "Priority", "number", "0"),
            Field("node", "On node (empty: anywhere)"),
            Field("wait", "Let it wait in the queue where there is no room", "checkbox"),
        ],
        back=link("reservations"),
        creates=True,
    )  # fmt: skip


def _create(_: str, fields: Mapping[str, str]) -> RestCall:
    body: dict[str, object] = {
        "owner_kind": fields.get("owner_kind", ""),
        "owner": fields.get("owner", "").strip(),
        "count": number(fields, "count") or 1,
        "memory_mib": number(fields, "memory_mib") or 0,
        "compute_percent": number(fields, "compute_percent") or 0,
        "priority": number(fields, "priority") or 0,
        "wait": "wait" in fields,
    }
    for name in ("project", "node"):
        if text := fields.get(name, "").strip():
            body[name] = text
    return RestCall("POST", ("reservations",), body=body)


def _drawing(pool: Pool, reservation: Reservation) -> str:
    return several(len(pool.grants_of_reservation(reservation)), "grant")


def _resize(pool: Pool, name: str) -> Plan:
    found = _reservation_of(pool, name)
    return Plan(
        title=f"Resize reservation {found.id}",
        button="Resize the reservation",
        will=[
            (f"It is {several(found.count, 'vGPU')} of {mib(found.memory_mib)} and "
            f"{found.compute_percent} % for {found.owner_kind.value} {found.owner} now; "
            f"what draws on it goes on ({_drawing(pool, found)})."),
            "It is refused where the pool has no room for it, or more is in use.",
        ],
        fields=[
            Field("count", "How many vGPUs", "number", str(found.count), least=1, most=1024),
            Field(
                "memory_mib", "Memory of each, MiB", "number",
                str(found.memory_mib or ""), least=1,
            ),
            Field(
                "compute_percent", "Compute of each, percent", "number",
                str(found.compute_percent or ""), least=1, most=100,
            ),
        ],
        back=link("reservation", id=found.id),
        generation=found.generation,
        obsolete=_over(found),
    )  # fmt: skip


def _end(pool: Pool, name: str) -> Plan:
    found = _reservation_of(pool, name)
    return Plan(
        title=f"End reservation {found.id}",
        button="End the reservation",
        will=[
            f"What is kept for {found.owner_kind.value} {found.owner} goes back to the pool.",
            f"What draws on it goes on: {_drawing(pool, found)}.",
        ],
        back=link("reservation", id=found.id),
        generation=found.generation,
        danger=True,
        obsolete=_over(found),
    )


def _over(reservation: Reservation) -> str:
    return "It has ended." if reservation.state is ReservationState.ENDED else ""


def _sizes(fields: Mapping[str, str]) -> dict[str, object]:
    names = ("count", "memory_mib", "compute_percent")
    return {name: number(fields, name) or 0 for name in names}


RESERVATIONS: dict[str, Action] = {
    "reservation.create": Action("It is reserved.", operators, _reserve, _create),
    "reservation.resize": Action(
        "The reservation has its new size.", operators, _resize,
        lambda name, fields: RestCall("PATCH", ("reservations", name), body=_sizes(fields)),
    ),
    "reservation.end": Action(
        "The reservation has ended.", operators, _end,
        lambda name, _: RestCall("DELETE", ("reservations", name)),
    ),
}  # fmt: skip
