# SPDX-License-Identifier: Apache-2.0
"""`sluice invite`: writes the file with which a further host joins the pool.

Mounted by cli.application; run on the host on which `sluice init` made the controller, as the CA
and the admin's token are there.
"""

from __future__ import annotations

import ipaddress
import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli import certificates
from sluice.cli.rest import CommandError
from sluice.cli.setup import host
from sluice.cli.setup.answers import FILE, NAME, Answers, recorded, settled
from sluice.cli.setup.init_command import DEFAULT_FOLDER
from sluice.cli.setup.join_file import JoinFile
from sluice.cli.setup.pool_files import controller_addresses
from sluice.cli.setup.steps import DAYS, own_controller, places_of
from sluice.config.ini import ConfigError


def invite(
    node: Annotated[str, typer.Argument(help="the new host's name in the pool")],
    address: Annotated[str, typer.Option(help="its IP address")],
    into: Annotated[
        Path | None, typer.Option("--into", help="the file to write (default: NODE.join)")
    ] = None,
    hours: Annotated[int, typer.Option(min=1, max=24, help="how long it may be used, once")] = 24,
    config_dir: Annotated[Path, typer.Option(help="the folder of the settings")] = DEFAULT_FOLDER,
) -> None:
    """Writes the file with which another host joins this pool: sluice init --join FILE."""
    target = into or Path(f"{node}.join")
    answers = _answers(config_dir)
    places = places_of(config_dir, answers)
    if not re.fullmatch(NAME, node) or len(node) > 120:
        raise CommandError(f"{node}: is no name; give letters, digits, dot, dash, underscore", 2)
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise CommandError(
            f"--address {address}: is no IP address; give the new host's", 2
        ) from None
    if answers.is_alone and not ipaddress.ip_address(address).is_loopback:
        raise CommandError(
            f"this controller listens on {answers.address}, where no other host reaches it: "
            "sluice init --address ADDRESS first"
        )
    if target.exists():
        raise CommandError(f"{target}: is there already; move it away, or give --into")
    body = {"role": "node", "node": node, "name": "invited", "expires_seconds": hours * 3600}
    ca = certificate = key = ""
    if answers.tls:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                issued, private = certificates.issue(
                    places.authority, Path(scratch), node, "node", [address], DAYS
                )
                ca = (places.authority / "ca.crt").read_text()
            except (OSError, certificates.CertificateError) as error:
                raise CommandError(str(error)) from None
            certificate, key = issued.read_text(), private.read_text()
    enrolment = own_controller(places, answers).post("/enrolments", body, "")
    made = JoinFile(
        controllers=controller_addresses(answers, places),
        node=node,
        address=address,
        secret=enrolment["secret"],
        ca=ca,
        certificate=certificate,
        key=key,
    )
    host.write(target, made.model_dump_json(indent=1) + "\n", 0o600)
    print(target)
    typer.echo(
        f"it is as secret as a key, and good once, until {enrolment['expires']}: copy it to "
        f"{node}, and there: sluice init --join {target.name}",
        err=True,
    )


def _answers(folder: Path) -> Answers:
    """What `sluice init` was told here. Raises CommandError."""
    try:
        before = recorded(folder)
    except ConfigError as error:
        raise CommandError(str(error), 2) from None
    if not before:
        raise CommandError(
            f"{folder / FILE}: is missing: `sluice init` makes a pool, and `sluice invite` is run "
            "on its controller's host"
        )
    answers = settled({}, before)
    if not answers.runs_controller:
        raise CommandError("this host has no controller: run it on the controller's host")
    return answers
