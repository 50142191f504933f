# SPDX-License-Identifier: Apache-2.0
"""The commands `sluice vsphere connect|pool|client|check`.

Mounted by sluice.cli where pyvmomi is installed. They read vsphere.conf and look at the vCenter and
at the controller themselves; sluice-vsphere need not run. Exit statuses are those of every command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from sluice.cli import output
from sluice.cli.options import Output
from sluice.cli.output import Format
from sluice.cli.rest import (
    EXIT_NOT_ALLOWED,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    CommandError,
)
from sluice.config.ini import ConfigError
from sluice.config.vsphere import VsphereConfig, read_credentials, read_vsphere_config
from sluice.hypervisor.vsphere import overview
from sluice.hypervisor.vsphere.clients import Clients
from sluice.hypervisor.vsphere.connection import thumbprint_of
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.errors import (
    BadCertificate,
    BadLogin,
    ControllerRefused,
    Unreachable,
    VsphereError,
)
from sluice.hypervisor.vsphere.guestinfo import GuestInfo
from sluice.hypervisor.vsphere.model import Vm

USAGE = 2
T = TypeVar("T")

app = typer.Typer(help="VMs and GPUs of a vSphere vCenter.", no_args_is_help=True)
client_app = typer.Typer(help="VMs that get vGPUs.", no_args_is_help=True)
app.add_typer(client_app, name="client")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="SLUICE_VSPHERE_CONF",
        help="vsphere.conf to read (SLUICE_VSPHERE_CONF, else /etc/sluice/vsphere.conf)",
    ),
]


@app.command("connect")
def connect(
    show_thumbprint: Annotated[
        bool,
        typer.Option(
            "--show-thumbprint",
            help="print the thumbprint of whoever answers, unchecked, and send nothing",
        ),
    ] = False,
    config_file: ConfigFile = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Logs in to the vCenter, and shows what it is and what is in it."""

    def work() -> None:
        config = _config(config_file)
        if show_thumbprint:
            print(thumbprint_of(config.vcenter))
            return
        seen = overview.look(config, read_credentials(config.vcenter))
        try:
            about = seen.vcenter.content.about
            record = {
                "vcenter": seen.vcenter.address,
                "product": about.fullName,
                "api_version": about.apiVersion,
                "thumbprint": seen.vcenter.thumbprint,
                "certificate": "not checked" if config.vcenter.certificate == "any" else "checked",
                "hosts": len(seen.inventory.hosts()),
                "gpus": sum(len(host.gpus) for host in seen.inventory.hosts()),
                "vms": len(seen.inventory.vms()),
            }
        finally:
            seen.vcenter.close()
        if not output.show_data(record, output_format):
            output.show_record(record)

    _told(work)


@app.command("pool")
def pool(
    hosts: Annotated[bool, typer.Option("--hosts", help="the hosts' GPUs instead")] = False,
    config_file: ConfigFile = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists VMs that hold GPUs, and what keeps them from being nodes."""

    def work() -> None:
        config = _config(config_file)
        if hosts:
            rows = _seen(config, lambda _, seen: _done(overview.host_rows(seen)))
        else:
            rows = _seen(config, lambda line, seen: overview.pool_rows(config, line, seen))
        if output.show_data({"hosts" if hosts else "vms": rows}, output_format):
            return
        if hosts:
            columns = {
                "HOST": "host",
                "GPU": "gpu",
                "PCI": "pci_address",
                "MIB": "memory_mib",
                "PASSTHROUGH": "passthrough",
            }
            output.show_table(columns, rows, "no host has a GPU")
            return
        columns = {
            "VM": "vm",
            "NODE": "node",
            "STATE": "state",
            "ENROLMENT": "enrolment",
            "PROBLEMS": "problems",
            "HOST": "host",
        }
        output.show_table(columns, rows, "no VM holds a GPU")

    _told(work)


@client_app.command("list")
def list_clients(config_file: ConfigFile = None, output_format: Output = Format.TABLE) -> None:
    """Lists VMs that are to get vGPUs, what they ask for, and what they have."""

    def work() -> None:
        config = _config(config_file)
        rows = _seen(config, lambda line, seen: overview.client_rows(config, line, seen))
        if output.show_data({"clients": rows}, output_format):
            return
        columns = {
            "VM": "vm",
            "STATE": "state",
            "COUNT": "count",
            "MIB": "memory_mib",
            "PERCENT": "compute_percent",
            "MODE": "mode",
            "ENROLMENT": "enrolment",
            "ERROR": "error",
        }
        output.show_table(columns, rows, "no VM asks for a vGPU")

    _told(work)


@client_app.command("renew")
def renew_client(
    vm: Annotated[str, typer.Argument(metavar="VM", help="its name or instance UUID")],
    config_file: ConfigFile = None,
) -> None:
    """Gives a VM another one-time enrolment; the token that it had is revoked."""

    def work() -> None:
        config = _config(config_file)

        async def renew(line: ControllerLine, seen: overview.Seen) -> None:
            named = [v for v in seen.inventory.vms() if vm in (v.name, v.instance_uuid)]
            if not named:
                raise CommandError(f"there is no VM {vm} in this vCenter", EXIT_NOT_FOUND)
            if len(named) > 1:
                raise CommandError(f"{len(named)} VMs are called {vm}; give the instance UUID")

            async def write(one: Vm, values: dict[str, str]) -> None:
                target = seen.inventory.object(one.id)
                await asyncio.to_thread(GuestInfo().write, seen.vcenter, one, target, values)

            clients = Clients(config, line, write)
            await clients.load(await line.every("/enrolments", "enrolments"))
            if not clients.is_client(named[0]):
                raise CommandError(f"VM {vm} is no client: nothing chooses it")
            await clients.renew(named[0])

        _seen(config, renew)
        print(f"VM {vm} has no token now; sluice-vsphere gives it another enrolment")

    _told(work)


@app.command("check")
def check(config_file: ConfigFile = None, output_format: Output = Format.TABLE) -> None:
    """Explains every difference between the vCenter and the controller; 1 if there is one."""

    def work() -> None:
        config = _config(config_file)

        async def both(
            line: ControllerLine, seen: overview.Seen
        ) -> tuple[list[overview.Row], list[overview.Row]]:
            pool_vms = await overview.pool_rows(config, line, seen)
            return pool_vms, await overview.client_rows(config, line, seen)

        pool_vms, clients = _seen(config, both)
        found = [
            {"what": f"pool VM {row['vm']}", "problem": name, "text": text}
            for row in pool_vms
            if row["chosen"]
            for name, text in zip(row["problems"], row["details"], strict=True)
        ]
        found += [
            {"what": f"VM {row['vm'] or row['instance_uuid']}", "problem": row["state"],
             "text": row["error"] or "it waits for room in the pool"}
            for row in clients
            if row["state"] not in ("held", "on-demand")
        ]  # fmt: skip
        if not output.show_data({"differences": found}, output_format):
            columns = {"WHAT": "what", "PROBLEM": "problem", "TEXT": "text"}
            output.show_table(columns, found, "vCenter and controller agree")
        if found:
            raise typer.Exit(EXIT_REFUSED)

    _told(work)


# within


def _config(path: Path | None) -> VsphereConfig:
    return read_vsphere_config(path)


def _seen(
    config: VsphereConfig, work: Callable[[ControllerLine, overview.Seen], Awaitable[T]]
) -> T:
    seen = overview.look(config, read_credentials(config.vcenter))

    async def run() -> T:
        line = ControllerLine(config.controller)
        try:
            return await work(line, seen)
        finally:
            await line.close()

    try:
        return asyncio.run(run())
    finally:
        seen.vcenter.close()


async def _done(rows: list[overview.Row]) -> list[overview.Row]:
    return rows


def _told(work: Callable[[], None]) -> None:
    """Runs a command; its errors become exit statuses."""
    try:
        work()
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from None
    except (BadCertificate, Unreachable) as error:
        raise CommandError(str(error), EXIT_UNREACHABLE) from None
    except BadLogin as error:
        raise CommandError(str(error), EXIT_NOT_ALLOWED) from None
    except ControllerRefused as error:
        status = EXIT_NOT_ALLOWED if error.status in (401, 403) else EXIT_REFUSED
        raise CommandError(str(error), status) from None
    except VsphereError as error:
        raise CommandError(str(error)) from None
