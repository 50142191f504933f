# SPDX-License-Identifier: Apache-2.0
"""What the commands of `sluice vm` share: their options, libvirt's domains by name, their errors.

Used by cli.py and moving_commands.py. A domain that fails is named and disturbs no other; the exit
status is then 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import libvirt
import typer

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import connected, default_uri, find_domains, libvirt_identity
from sluice.hypervisor.region_file import RUN_FOLDER, RegionFiles

Domain = Annotated[str, typer.Argument(metavar="DOMAIN", help="name, UUID or number of a domain")]
Domains = Annotated[
    list[str],
    typer.Argument(metavar="DOMAIN...", help="names, UUIDs, numbers or patterns ('web-*')"),
]
MODE_HELP = "reserved: held for the domain all the time; on-demand: never; auto: if there is one"
Mode = Annotated[str, typer.Option(help=MODE_HELP)]
Connect = Annotated[
    str | None,
    typer.Option(
        "--connect",
        "-c",
        metavar="URI",
        help="libvirt, as in virsh -c (LIBVIRT_DEFAULT_URI, else qemu:///system)",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show the XML and change nothing")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def files_of(uri: str) -> RegionFiles:
    """The regions of that libvirt on this host."""
    run_folder = os.environ.get("SLUICE_RUN_DIR")
    return RegionFiles(
        libvirt_identity(uri), run_folder=Path(run_folder) if run_folder else RUN_FOLDER
    )


def for_each(
    names: list[str],
    connect: str | None,
    work: Callable[[str, libvirt.virDomain, RegionFiles], None],
) -> None:
    """Does it to each; one that fails is named and disturbs no other."""
    uri = connect or default_uri()
    failed = False
    try:
        with connected(uri) as connection:
            files = files_of(uri)
            for name, domain in find_domains(connection, names):
                try:
                    work(name, domain, files)
                except HypervisorError as error:
                    print(f"sluice vm: {error}", file=sys.stderr)
                    failed = True
    except HypervisorError as error:
        fail(str(error))
    if failed:
        raise typer.Exit(1)


def run(work: Callable[[], None]) -> None:
    """Does it; what is wrong is one line on standard error."""
    try:
        work()
    except HypervisorError as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """Ends the command."""
    print(f"sluice vm: {message}", file=sys.stderr)
    raise typer.Exit(1)
