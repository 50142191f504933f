# SPDX-License-Identifier: Apache-2.0
"""`sluice ca`: the pool's own certificate authority, where the operator has none.

Mounted by cli.application. It asks no controller: it reads and writes files of this host.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli import certificates
from sluice.cli.rest import CommandError

DEFAULT_FOLDER = Path("/etc/sluice/ca")

Folder = Annotated[Path, typer.Option("--dir", help="the CA's folder")]

app = typer.Typer(help="The pool's own certificate authority.", no_args_is_help=True)


class Kind(StrEnum):
    """Whose certificate it is."""

    CONTROLLER = "controller"
    NODE = "node"


@app.command("init")
def init(
    folder: Folder = DEFAULT_FOLDER,
    days: Annotated[int, typer.Option(min=1, max=36500, help="how long it is good for")] = 3650,
) -> None:
    """Makes a CA: ca.crt, which everybody gets, and ca.key, which stays where it is."""
    try:
        certificate, key = certificates.make_ca(folder, days)
    except (OSError, certificates.CertificateError) as error:
        raise CommandError(str(error)) from None
    print(f"{certificate}\n{key}")


@app.command("issue")
def issue(
    name: Annotated[str, typer.Argument(help="a node's name in the pool, or a controller's host")],
    kind: Annotated[Kind, typer.Option("--for", help="whose it is")] = Kind.NODE,
    san: Annotated[
        list[str] | None, typer.Option("--san", help="another name or address; may be repeated")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    into: Annotated[
        Path | None, typer.Option("--into", help="where to write it (default: the CA's folder)")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="how long it is good for")] = 825,
) -> None:
    """Issues a certificate and its key, NAME.crt and NAME.key."""
    for each in (name, *(san or ())):
        if not re.fullmatch(r"[A-Za-z0-9._:-]{1,120}", each):
            raise CommandError(f"{each} is neither a name nor an address", 2)
    try:
        certificate, key = certificates.issue(
            folder, into or folder, name, kind.value, san or [], days
        )
    except (OSError, certificates.CertificateError) as error:
        raise CommandError(str(error)) from None
    print(f"{certificate}\n{key}")
