# SPDX-License-Identifier: Apache-2.0
"""The commands `sluice vm attach|resize|detach|list|show`; moving_commands.py adds others.

Mounted by sluice.cli. They talk to libvirt and need no running server: a server that runs follows
what they change; `SLUICE_RUN_DIR` names that server's run_dir where it is not /run/sluice. Exit
status 0 if the domain is as asked, 1 with one line on standard error if not.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Annotated, Any

import libvirt
import typer

from sluice.hypervisor import channel_devices, hook_commands, inspection, moving_commands
from sluice.hypervisor.command_line import (
    MODE_HELP,
    AsJson,
    Connect,
    Domain,
    Domains,
    DryRun,
    Mode,
    files_of,
    for_each,
    run,
)
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import (
    call,
    connected,
    default_uri,
    find_domain,
)
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import DomainRequest, read_mode

app = typer.Typer(
    name="vm", help="Give libvirt domains a vGPU, and take it back.", no_args_is_help=True
)


@app.command()
def attach(
    domains: Domains,
    memory_mib: Annotated[int, typer.Option(help="GPU memory of each vGPU, in MiB")],
    compute: Annotated[int, typer.Option(help="share of a GPU's time of each vGPU, in percent")],
    count: Annotated[int, typer.Option(help="how many vGPUs")] = 1,
    region_mib: Annotated[
        int, typer.Option(help="size of the channel in MiB, a power of two")
    ] = 256,
    slots: Annotated[int, typer.Option(help="how many processes of the guest at once")] = 4,
    priority: Annotated[int, typer.Option(help="in the queue; higher goes first")] = 0,
    mode: Mode = "auto",
    channel: Annotated[
        str,
        typer.Option(
            help="ivshmem: shared memory; ivshmem-doorbell: with a register that wakes the host; "
            "vsock: a vsock device alone"
        ),
    ] = "ivshmem",
    vsock: Annotated[bool, typer.Option(help="also add a vsock device if the host can")] = True,
    dry_run: DryRun = False,
    connect: Connect = None,
) -> None:
    """Give each DOMAIN a channel to the pool, now and for every later start."""

    def work(name: str, found: libvirt.virDomain, files: RegionFiles) -> None:
        request = DomainRequest(
            count=count,
            memory_mib=memory_mib,
            compute_percent=compute,
            region_mib=region_mib,
            slots=slots,
            priority=priority,
            mode=read_mode(mode),
            channel=channel,
        )
        _attach(name, found, files, request, vsock=vsock, dry_run=dry_run)

    for_each(domains, connect, work)


@app.command()
def resize(
    domains: Domains,
    memory_mib: Annotated[int | None, typer.Option(help="GPU memory of each vGPU, in MiB")] = None,
    compute: Annotated[int | None, typer.Option(help="share of each vGPU, in percent")] = None,
    count: Annotated[int | None, typer.Option(help="how many vGPUs")] = None,
    slots: Annotated[int | None, typer.Option(help="how many processes at once")] = None,
    priority: Annotated[int | None, typer.Option(help="in the queue; higher goes first")] = None,
    mode: Annotated[str | None, typer.Option(help=MODE_HELP)] = None,
    region_mib: Annotated[
        int | None, typer.Option(help="size of the channel in MiB; of a domain that is off")
    ] = None,
    dry_run: DryRun = False,
    connect: Connect = None,
) -> None:
    """Change what each DOMAIN asks for; what is not named stays.

    Programs that run keep the grant they have; the next ones get the new figures.
    """
    wanted: dict[str, Any] = {
        "memory_mib": memory_mib,
        "compute_percent": compute,
        "count": count,
        "slots": slots,
        "priority": priority,
        "mode": mode,
        "region_mib": region_mib,
    }
    changes = {field: value for field, value in wanted.items() if value is not None}

    def work(name: str, found: libvirt.virDomain, files: RegionFiles) -> None:
        request = channel_devices.request_of(found)
        if not changes:
            raise HypervisorError("nothing to change: name --memory-mib, --compute or another")
        _attach(
            name, found, files, replace(request, **changes), vsock=request.vsock, dry_run=dry_run
        )

    for_each(domains, connect, work)


@app.command()
def detach(domains: Domains, dry_run: DryRun = False, connect: Connect = None) -> None:
    """End each DOMAIN's grant and remove its channel, now and from its definition."""

    def work(name: str, found: libvirt.virDomain, files: RegionFiles) -> None:
        outcome = channel_devices.detach(found, files, dry_run=dry_run)
        _report(outcome, dry_run)
        if not dry_run:
            print(f"{name}: {'detached' if outcome.changed else 'nothing was attached'}")

    for_each(domains, connect, work)


def _attach(
    name: str,
    domain: libvirt.virDomain,
    files: RegionFiles,
    request: DomainRequest,
    *,
    vsock: bool,
    dry_run: bool,
) -> None:
    outcome = channel_devices.attach(domain, request, files, vsock=vsock, dry_run=dry_run)
    _report(outcome, dry_run)
    if dry_run:
        return
    shown = inspection.inspect(domain, files)
    region = shown["region"] if shown else {}
    verb = "attached" if outcome.changed else "already attached"
    device = region if request.has_region else (shown or {}).get("vsock") or {}
    where = "plugged in" if device.get("plugged") else "from the next start"
    place = "vsock" if not request.has_region else f"at {device.get('address')}"
    print(
        f"{name}: {verb}, {request.count} x {request.memory_mib} MiB, "
        f"{request.compute_percent} %, {place}, {where}"
    )


@app.command(name="list")
def list_domains(connect: Connect = None, as_json: AsJson = False) -> None:
    """List the domains that have a request, a channel or a GPU of their own."""

    def work() -> None:
        uri = connect or default_uri()
        files = files_of(uri)
        with connected(uri) as connection:
            rows = [
                row
                for domain in call(connection.listAllDomains)
                if (row := inspection.inspect(domain, files)) is not None
            ]
        rows.sort(key=lambda row: str(row["domain"]))
        if as_json:
            print(json.dumps(rows, indent=2))
        else:
            _print_table(rows)

    run(work)


@app.command()
def show(domain: Domain, connect: Connect = None, as_json: AsJson = False) -> None:
    """Show DOMAIN's request, its channel, its own GPUs, and what is wrong with them."""

    def work() -> None:
        uri = connect or default_uri()
        with connected(uri) as connection:
            found = find_domain(connection, domain)
            row = inspection.inspect(found, files_of(uri))
        if row is None:
            raise HypervisorError(
                f"{domain} has neither a vGPU (`sluice vm attach {domain}` gives it one) nor a GPU "
                f"of its own (`sluice gpu attach GPU {domain}`)"
            )
        if as_json:
            print(json.dumps(row, indent=2))
        else:
            _print_domain(row)

    run(work)


def _report(outcome: channel_devices.Outcome, dry_run: bool) -> None:
    for note in outcome.notes:
        print(note, file=sys.stderr)
    if dry_run:
        print("\n".join(outcome.documents) if outcome.changed else "nothing to do")


def _print_table(rows: list[dict[str, Any]]) -> None:
    head = ("DOMAIN", "STATE", "VGPUS", "MIB", "COMPUTE", "CHANNEL", "OWN GPUS", "PROBLEM")
    lines = [head]
    for row in rows:
        request = row["request"] or {}
        lines.append(
            (
                row["domain"],
                row["state"],
                request.get("count", "-"),
                request.get("memory-mib", "-"),
                f"{request['compute']} %" if request else "-",
                _channel_of(row),
                ", ".join(device["host"] for device in row["native_gpus"]) or "-",
                row["problems"][0] if row["problems"] else "",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def _channel_of(row: dict[str, Any]) -> str:
    if row["region"]["address"]:
        return str(row["region"]["address"])
    vsock = row["vsock"]
    if vsock is None:
        return "-"
    return "vsock" + (f" {vsock['cid']}" if vsock["cid"] is not None else "")


def _print_domain(row: dict[str, Any]) -> None:
    region = row["region"]
    request = row["request"]
    print(f"domain   {row['domain']}  {row['uuid']}  ({row['state']}, {row['machine']})")
    if request:
        print("request  " + "  ".join(f"{name}={value}" for name, value in request.items()))
    if region["mib"] is not None or (request and request["channel"] != "vsock"):
        print(f"channel  {region['mib']} MiB at {region['address']}, {_where(region)}")
        print(f"file     {region['file']}{'' if region['present'] else '  (missing)'}")
    for device in row["native_gpus"]:
        guest = device["guest"] or "a place of libvirt's choice"
        print(f"GPU      {device['host']} of the host at {guest}, {_where(device)}")
    if vsock := row["vsock"]:
        what = f"CID {vsock['cid']}" if vsock["cid"] is not None else "by vhost-user"
        print(f"vsock    {what}, {_where(vsock)}")
    for problem in row["problems"]:
        print(f"problem  {problem}")


def _where(device: dict[str, Any]) -> str:
    plugged = "plugged in" if device["plugged"] else "not plugged in"
    defined = "in the definition" if device["in_definition"] else "not in the definition"
    return f"{plugged}, {defined}"


moving_commands.add_to(app)
app.add_typer(hook_commands.app, name="hook")

if __name__ == "__main__":
    app()
