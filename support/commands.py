# SPDX-License-Identifier: Apache-2.0
"""The commands `sluice doctor` and `sluice support-bundle`.

Mounted by cli.application. What they do is imported when they run: the other commands need not wait
for the server's and the controller's modules.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.options import Address, controller
from sluice.cli.rest import CommandError
from sluice.config.version import own_version
from sluice.support.parts import Part

ServerFile = Annotated[Path | None, typer.Option("--server-config", help="the server.conf to read")]
ControllerFile = Annotated[
    Path | None, typer.Option("--controller-config", help="the controller.conf to read")
]


def doctor(
    part: Annotated[
        list[Part] | None,
        typer.Option(help="what to look at (default: what this host has a .conf file for)"),
    ] = None,
    server_file: ServerFile = None,
    controller_file: ControllerFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document, for scripts")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="problems and notes only")] = False,
) -> None:
    """Looks at this host from top to bottom: what is wrong, and what to do, a line each."""
    _quiet_modules()
    from sluice.guest_runtime.doctor import report
    from sluice.support.doctor import examined, parts_here

    parts = part or parts_here(server_file, controller_file)
    results = examined(parts, server_file, controller_file)
    raise typer.Exit(report(results, as_json=as_json, quiet=quiet))


def support_bundle(
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="the file to write, or its folder")
    ] = None,
    log_mib: Annotated[
        int, typer.Option(min=1, max=1024, help="how much of the end of each log")
    ] = 4,
    server_file: ServerFile = None,
    controller_file: ControllerFile = None,
    address: Address = None,
) -> None:
    """Collects logs, settings without secrets, versions, figures and doctor's word in a file."""
    _quiet_modules()
    from sluice.guest_runtime.bundle_file import BundleFile
    from sluice.guest_runtime.secret_removal import SecretRemoval
    from sluice.guest_runtime.support_bundle import finish, known_secrets, target_of
    from sluice.support.bundle import add_state, collect, secret_files, secret_values, settings_of
    from sluice.support.doctor import parts_here

    removal = SecretRemoval()
    settings = settings_of(server_file, controller_file)
    known_secrets(removal, secret_files(settings))
    removal.know(secret_values(settings))
    bundle = BundleFile(removal)
    print("looking at this host ...", file=sys.stderr)
    parts = parts_here(server_file, controller_file)
    collect(bundle, parts, server_file, controller_file, log_mib << 20)
    try:
        asked = controller(address, patience_seconds=5)
        removal.know([asked.access.token])
        add_state(bundle, asked)
    except CommandError as error:
        bundle.leave_out("the pool's state", str(error))
    raise typer.Exit(finish(bundle, target_of(output), own_version()))


def _quiet_modules() -> None:
    """What the server's modules would log is among the findings."""
    logging.getLogger("sluice").addHandler(logging.NullHandler())
