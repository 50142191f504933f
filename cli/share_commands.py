# SPDX-License-Identifier: Apache-2.0
"""`sluice reservation`, `quota`, `queue`, `usage`: who may have how much, who waits, who had what.

Mounted by cli.application. Every command is one or two REST calls.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from sluice.cli import completion, output
from sluice.cli.options import Address, Output, controller
from sluice.cli.output import Format
from sluice.cli.rest import CommandError
from sluice.cli.waiting import follow
from sluice.resources.vgpu_request import Sharing

reservation_app = typer.Typer(help="Room that is one owner's alone.", no_args_is_help=True)
quota_app = typer.Typer(help="The most that projects may hold.", no_args_is_help=True)


Which = Annotated[str, typer.Argument(autocompletion=completion.reservations)]
Project = Annotated[str, typer.Argument(autocompletion=completion.projects)]


class UsageFormat(StrEnum):
    """What `sluice usage -o` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@reservation_app.command("create")
def create(
    owner: Annotated[str, typer.Argument(help="vm:NAME, project:NAME or label:NAME")],
    count: Annotated[int, typer.Option(help="how many vGPUs")] = 1,
    memory: Annotated[int, typer.Option(help="MiB of each (0: the pool's default)")] = 0,
    compute: Annotated[int, typer.Option(help="percent of each (0: the pool's default)")] = 0,
    project: Annotated[str | None, typer.Option(help="on whose account")] = None,
    node: Annotated[str | None, typer.Option(help="where it must be")] = None,
    priority: Annotated[int, typer.Option(help="its place in the queue")] = 0,
    sharing: Annotated[
        Sharing,
        typer.Option(help="how what draws on it shares GPUs (auto: as pool and server say)"),
    ] = Sharing.AUTO,
    queue: Annotated[
        bool, typer.Option("--queue", help="let it queue for room; else it is refused")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="let it queue, and wait so many seconds until it is held")
    ] = 0.0,
    idempotency_key: Annotated[str, typer.Option(help="sent twice, one is made")] = "",
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Holds vGPUs for an owner, whether they are used or not."""
    kind, _, name = owner.partition(":")
    body = {
        "owner_kind": kind,
        "owner": name,
        "project": project or (name if kind == "project" else None),
        "count": count,
        "memory_mib": memory,
        "compute_percent": compute,
        "priority": priority,
        "node": node,
        "sharing": sharing.value,
        "wait": queue or wait > 0,
    }
    api = controller(address)
    answer = api.post("/reservations", body, idempotency_key)
    if wait:
        name = answer["id"]

        def look() -> tuple[bool, str]:
            nonlocal answer
            answer = api.get(f"/reservations/{name}")
            if answer["state"] == "ended":
                raise CommandError(f"reservation {name} has ended: {answer['reason']}")
            return answer["state"] == "held", "it queues for room"

        follow(look, wait, f"reservation {name}")
    if not output.show_data(answer, output_format):
        print(f"reservation {answer['id']} is {answer['state']}")


@reservation_app.command("list")
def list_reservations(
    every: Annotated[bool, typer.Option("--all", "-a", help="ended ones too")] = False,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists the reservations."""
    state = "all" if every else "live"
    answer = controller(address).every("/reservations", "reservations", state=state)
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {
            "RESERVATION": "id",
            "STATE": "state",
            "OWNER": "whose",
            "PROJECT": "project",
            "VGPUS": "count",
            "MIB": "memory_mib",
            "PERCENT": "compute_percent",
            "DRAWN MIB": "drawn_mib",
            "GPUS": "gpus",
            "REASON": "reason",
        },
        [
            {
                **r,
                "whose": f"{r['owner_kind']}:{r['owner']}",
                "gpus": sorted({slot["gpu"] for slot in r["slots"]}),
            }
            for r in answer["reservations"]
        ],
        "no reservations",
    )


@reservation_app.command("show")
def show(reservation: Which, address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Shows one reservation and what draws on it."""
    answer = controller(address).get(f"/reservations/{reservation}")
    if not output.show_data(answer, output_format):
        output.show_record(answer)


@reservation_app.command("resize")
def resize(
    reservation: Which,
    count: Annotated[int, typer.Option(help="how many vGPUs (0: as it is)")] = 0,
    memory: Annotated[int, typer.Option(help="MiB of each (0: as it is)")] = 0,
    compute: Annotated[int, typer.Option(help="percent of each (0: as it is)")] = 0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Changes its size while it is in use, or says why that cannot be."""
    body = {"count": count, "memory_mib": memory, "compute_percent": compute}
    answer = controller(address).patch(f"/reservations/{reservation}", body)
    if not output.show_data(answer, output_format):
        print(
            f"reservation {reservation}: {answer['count']} vGPU(s) of {answer['memory_mib']} MiB "
            f"and {answer['compute_percent']} %"
        )


@reservation_app.command("delete")
def delete(
    reservation: Which, address: Address = None, output_format: Output = Format.TABLE
) -> None:
    """Gives its room back; what draws on it goes on."""
    answer = controller(address).delete(f"/reservations/{reservation}")
    if not output.show_data(answer, output_format):
        print(f"reservation {reservation} is deleted")


@quota_app.command("set")
def set_quota(
    project: Project,
    vgpus: Annotated[int, typer.Option(help="vGPUs (0: no limit)")] = 0,
    memory: Annotated[int, typer.Option(help="MiB in all (0: no limit)")] = 0,
    compute: Annotated[int, typer.Option(help="percent in all (0: no limit)")] = 0,
    may_preempt: Annotated[
        bool, typer.Option("--may-preempt", help="its requests may end lower-priority work")
    ] = False,
    max_priority: Annotated[
        int | None,
        typer.Option(help="the highest of its requests (default: any; 0 with a tenant's token)"),
    ] = None,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Sets what a project may hold from now on; what it holds already stays."""
    body = {
        "vgpus": vgpus,
        "memory_mib": memory,
        "compute_percent": compute,
        "may_preempt": may_preempt,
        "max_priority": max_priority,
    }
    answer = controller(address).put(f"/quotas/{project}", body)
    if not output.show_data(answer, output_format):
        output.show_record(answer)


@quota_app.command("list")
def list_quotas(address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lists projects, what they hold and what they may hold."""
    answer = controller(address).get("/quotas")
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {
            "PROJECT": "project",
            "VGPUS": "v",
            "MIB": "m",
            "PERCENT": "p",
            "PREEMPTS": "may_preempt",
            "MAX PRIORITY": "max_priority",
        },
        [
            {
                **q,
                "v": _of(q["held_vgpus"], q["vgpus"]),
                "m": _of(q["held_mib"], q["memory_mib"]),
                "p": _of(q["held_percent"], q["compute_percent"]),
            }
            for q in answer["quotas"]
        ],
        "no project holds anything or has a quota",
    )


@quota_app.command("remove")
def remove_quota(
    project: Project, address: Address = None, output_format: Output = Format.TABLE
) -> None:
    """Lets a project hold whatever there is."""
    answer = controller(address).delete(f"/quotas/{project}")
    if not output.show_data(answer, output_format):
        print(f"project {project} has no quota")


def queue(address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lists who waits, the next first."""
    answer = controller(address).get("/queue")
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {
            "POSITION": "position",
            "REQUEST": "request_id",
            "PROJECT": "project",
            "PRIORITY": "priority",
            "VGPUS": "vgpu_count",
            "MIB": "memory_mib",
            "PERCENT": "compute_percent",
            "NODE": "node",
            "PROGRAM": "program",
        },
        answer["waiting"],
        "nobody waits",
    )


def move(
    request: Annotated[str, typer.Argument(help="a waiting request, of `sluice queue`")],
    to: Annotated[int, typer.Option(min=1, help="its new place; 1: the next")] = 1,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Moves a waiting request in the queue."""
    answer = controller(address).patch(f"/queue/{request}", {"position": to})
    if output.show_data(answer, output_format):
        return
    if answer["waiting"]:
        print(f"request {request}: place {answer['waiting'][0]['position']} of {answer['total']}")
    else:
        print(f"request {request} waits no more")


def usage(
    begin: Annotated[
        str | None, typer.Option("--from", help="the first hour, as 2026-01-31T00:00Z")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="the last hour")] = None,
    project: Annotated[str | None, typer.Option(help="only this project's")] = None,
    people: Annotated[
        bool, typer.Option("--people", help="by person and label, by the day (UTC)")
    ] = False,
    address: Address = None,
    output_format: Annotated[
        UsageFormat, typer.Option("--output", "-o", help="table, json, yaml or csv")
    ] = UsageFormat.TABLE,
) -> None:
    """Shows what projects, or people, held times how long and had of GPUs."""
    wanted = {"from": begin, "to": end, "project": project}
    parameters: dict[str, Any] = {key: value for key, value in wanted.items() if value is not None}
    api = controller(address)
    if output_format is UsageFormat.CSV:
        sys.stdout.write(api.text("/usage/shares.csv" if people else "/usage.csv", **parameters))
        return
    answer = api.get("/usage/shares" if people else "/usage", **parameters)
    if output.show_data(answer, Format(output_format.value)):
        return
    whose = {"DAY": "day", "PROJECT": "project", "PERSON": "person", "LABEL": "label"}
    output.show_table(
        {
            **(whose if people else {"HOUR": "hour", "PROJECT": "project"}),
            "VGPU SECONDS": "vgpu_seconds",
            "MIB SECONDS": "memory_mib_seconds",
            "PERCENT SECONDS": "compute_percent_seconds",
            "GPU SECONDS": "gpu_seconds",
            "GPU WAIT": "gpu_wait_seconds",
        },
        answer["shares" if people else "usage"],
        "nothing was used",
    )


def _of(held: int, most: int) -> str:
    return f"{held} of {most}" if most else str(held)
