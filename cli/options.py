# SPDX-License-Identifier: Apache-2.0
"""Options that many commands have, and what all of them share: how the controller is spoken to.

Used by every module of commands. `--ca` and `--token-file` come before the command, as they belong
to the pool and not to what is asked of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.cli import rest
from sluice.cli.output import Format
from sluice.cli.rest import PATIENCE_SECONDS, Controller, controller_address

Output = Annotated[
    Format, typer.Option("--output", "-o", help="table for people, json and yaml for scripts")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="HOST:PORT",
        help="the controller's REST address (SLUICE_CONTROLLER, else this host's server.conf)",
    ),
]
Everything = Annotated[bool, typer.Option("--all", "-a", help="ended ones too")]
Wait = Annotated[float, typer.Option("--wait", min=0, help="wait so many seconds until it is done")]

OfNode = Annotated[str | None, typer.Option("--node", help="only this node's")]
OfProject = Annotated[str | None, typer.Option("--project", help="only this project's")]


def given(**filters: str | None) -> dict[str, str]:
    """The filters that were given."""
    return {name: value for name, value in filters.items() if value is not None}


_given = rest.Credentials()


WITH_VALUE = ("--ca", "--token-file")
"""The options of take_credentials, each with a value behind it."""


def take_credentials(
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", help="the CA of the controller's certificate (SLUICE_CA, else server.conf's)"
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help="the file with your token (SLUICE_TOKEN, else ~/.sluice/token)"
        ),
    ] = None,
) -> None:
    """GPUs of a pool, for virtual machines, containers and processes."""
    global _given
    _given = rest.Credentials(ca, token_file)


def controller(address: str | None, *, patience_seconds: float = PATIENCE_SECONDS) -> Controller:
    """The controller that the options name."""
    return Controller(
        controller_address(address), credentials=_given, patience_seconds=patience_seconds
    )
