# SPDX-License-Identifier: Apache-2.0
"""The commands `sluice vm save|restore|snapshot|migrate`, for guests with a channel.

libvirt refuses to move those. Added to `sluice vm` by cli.py. Exit status 0 if the domain is as
asked, channel included.
"""

from __future__ import annotations

from typing import Annotated

import libvirt
import typer

from sluice.hypervisor import moving
from sluice.hypervisor.command_line import Connect, Domain, Domains, files_of, for_each, run
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import connected, default_uri, find_domain
from sluice.hypervisor.region_file import RegionFiles

EndSessions = Annotated[
    bool, typer.Option("--end-sessions", help="end what programs of the guest have; else refuse")
]


def add_to(app: typer.Typer) -> None:
    """The commands, under `sluice vm`."""
    for command in (save, restore, snapshot, migrate):
        app.command()(command)


def save(domains: Domains, end_sessions: EndSessions = False, connect: Connect = None) -> None:
    """Save each running DOMAIN as `virsh managedsave` does, its channel left out."""

    def work(name: str, found: libvirt.virDomain, files: RegionFiles) -> None:
        moving.save(found, files, end_sessions=end_sessions)
        print(f"{name}: saved; `sluice vm restore` or `virsh start` goes on with it")

    for_each(domains, connect, work)


def restore(domains: Domains, connect: Connect = None) -> None:
    """Start each saved DOMAIN where it was, with its channel."""

    def work(name: str, found: libvirt.virDomain, files: RegionFiles) -> None:
        if problems := moving.restore(found, files):
            raise HypervisorError(problems[0])
        print(f"{name}: restored")

    for_each(domains, connect, work)


def snapshot(
    domain: Domain,
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the snapshot")],
    end_sessions: EndSessions = False,
    connect: Connect = None,
) -> None:
    """Take a snapshot of the running DOMAIN, disks and memory, its channel left out."""

    def work() -> None:
        uri = connect or default_uri()
        with connected(uri) as connection:
            found = find_domain(connection, domain)
            moving.snapshot(found, files_of(uri), name, end_sessions=end_sessions)
        print(f"{domain}: snapshot {name}; `virsh snapshot-revert {domain} {name}` goes back to it")

    run(work)


def migrate(
    domain: Domain,
    destination: Annotated[str, typer.Argument(metavar="DESTURI", help="libvirt to migrate to")],
    end_sessions: EndSessions = False,
    migrate_uri: Annotated[
        str | None, typer.Option(help="where QEMU sends the memory, as in virsh migrate")
    ] = None,
    p2p: Annotated[bool, typer.Option("--p2p", help="libvirtd connects to libvirtd")] = False,
    copy_storage: Annotated[
        bool, typer.Option("--copy-storage-all", help="the disks are not shared: copy them")
    ] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="as in virsh migrate")] = False,
    wait: Annotated[float, typer.Option(help="seconds for the channel at the destination")] = 30.0,
    connect: Connect = None,
) -> None:
    """Migrate the running DOMAIN to DESTURI, whose sluice-server gives it a channel there."""
    how = moving.Migration(migrate_uri, p2p, copy_storage, unsafe)

    def work() -> None:
        uri = connect or default_uri()
        with connected(uri) as connection, connected(destination) as other:
            found = find_domain(connection, domain)
            problem = moving.migrate(
                found,
                other,
                destination,
                files_of(uri),
                how,
                end_sessions=end_sessions,
                channel_seconds=wait,
            )
        if problem is not None:
            raise HypervisorError(problem)
        print(f"{domain}: migrated to {destination}")

    run(work)
