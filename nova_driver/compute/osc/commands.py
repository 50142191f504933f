# SPDX-License-Identifier: Apache-2.0
"""`openstack vgpu list`, `show` and `quota`, in the conventions of OpenStack's command line.

Loaded by the `openstack` command through the entry points of openstack.vgpu.v1. Instances and what
their flavors ask for are Nova's; held vGPUs are shown where a controller is named.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from osc_lib import exceptions, utils
from osc_lib.command import command

from ..extra_specs import InvalidSpecs, VgpuSpecs, parse

COMPUTE_VERSION = "2.79"  # servers with their flavors' extra specs
COLUMNS = ("ID", "Name", "Project ID", "Status", "vGPUs", "Memory MiB", "Compute %", "Mode")
POOL_COLUMNS = ("Grant", "Drawn MiB", "GPUs")


class ListVgpu(command.Lister):  # type: ignore[misc]
    """List servers that have vGPUs"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Adds the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--all-projects",
            action="store_true",
            help="Include all projects (admin only)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Iterable[Any]]:
        """Returns columns and rows."""
        pool = self.app.client_manager.vgpu
        held = pool.reservations() if pool.is_named else None
        columns = COLUMNS + (POOL_COLUMNS if held is not None else ())
        compute = self.app.client_manager.sdk_connection.compute
        rows = []
        for server in _servers(compute, all_projects=parsed_args.all_projects):
            if (asked := _asked(server)) is not None:
                rows.append(_row(server, asked, held))
        return columns, rows


class ShowVgpu(command.ShowOne):  # type: ignore[misc]
    """Show the vGPUs of a server"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Adds the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="<server>", help="Server (name or ID)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Returns fields and values."""
        compute = self.app.client_manager.sdk_connection.compute
        found = compute.find_server(parsed_args.server, ignore_missing=False)
        answer = compute.get(f"/servers/{found.id}", microversion=COMPUTE_VERSION)
        server = answer.json()["server"]
        asked = _asked(server)
        if asked is None:
            raise exceptions.CommandError(
                f"server {parsed_args.server} has no vGPU: its flavor has no vgpu: extra specs"
            )
        pool = self.app.client_manager.vgpu
        held = pool.reservations() if pool.is_named else None
        names = COLUMNS + (POOL_COLUMNS if held is not None else ())
        shown = dict(zip(names, _row(server, asked, held), strict=True))
        if isinstance(asked, VgpuSpecs):
            shown |= {"Priority": asked.priority}
        else:
            shown["Problem"] = str(asked)
        return tuple(_field(name) for name in shown), tuple(shown.values())


class ShowQuota(command.ShowOne):  # type: ignore[misc]
    """Show what a project may have of the pool, and what it has"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Adds the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "project",
            metavar="<project>",
            nargs="?",
            help="Project (name or ID; default: the current project)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Returns fields and values."""
        pool = self.app.client_manager.vgpu
        pool.need()
        connection = self.app.client_manager.sdk_connection
        if parsed_args.project:
            project = connection.identity.find_project(parsed_args.project, ignore_missing=False).id
        else:
            project = connection.current_project_id
        quota = pool.quota(project)
        fields = ("vgpus", "memory_mib", "compute_percent")
        shown = {"project_id": project}
        for field, held in zip(fields, ("held_vgpus", "held_mib", "held_percent"), strict=True):
            shown[field] = quota[field] or "unlimited"
            shown[f"{field}_in_use"] = quota[held]
        return tuple(shown), tuple(shown.values())


def _servers(compute: Any, *, all_projects: bool) -> Iterator[dict[str, Any]]:
    query = {"limit": "1000", **({"all_tenants": "1"} if all_projects else {})}
    while True:
        answer = compute.get("/servers/detail", params=query, microversion=COMPUTE_VERSION)
        if answer.status_code >= 400:
            raise exceptions.CommandError(f"Nova: {answer.status_code} {answer.reason}")
        page = answer.json()
        yield from page["servers"]
        if not page["servers"] or not page.get("servers_links"):
            return
        query["marker"] = page["servers"][-1]["id"]


def _asked(server: dict[str, Any]) -> VgpuSpecs | InvalidSpecs | None:
    try:
        return parse(server["flavor"].get("extra_specs") or {})
    except InvalidSpecs as error:
        return error


def _row(
    server: dict[str, Any],
    asked: VgpuSpecs | InvalidSpecs,
    held: dict[str, dict[str, Any]] | None,
) -> tuple[Any, ...]:
    row: tuple[Any, ...] = (server["id"], server["name"], server["tenant_id"], server["status"])
    if isinstance(asked, VgpuSpecs):
        row += (asked.count, asked.memory_mib, asked.compute, asked.mode)
    else:
        row += (None, None, None, "invalid")
    if held is None:
        return row
    grant = held.get(server["id"])
    if grant is None:
        return (*row, None, None, None)
    gpus = sorted({slot["gpu"] for slot in grant["slots"]})
    return (*row, grant["state"], grant["drawn_mib"], utils.format_list(gpus))


def _field(column: str) -> str:
    return column.lower().replace(" ", "_").replace("%", "percent")
