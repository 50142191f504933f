# SPDX-License-Identifier: Apache-2.0
"""`sluice token`: who may call the controller.

Mounted by cli.application. The secret of a new token is printed once and can be asked of nobody
later.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from sluice.cli import completion, output
from sluice.cli.options import Address, Output, controller
from sluice.cli.output import Format
from sluice.cli.rest import CommandError

UNITS_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

app = typer.Typer(help="Who may call the controller.", no_args_is_help=True)


@app.command("create")
def create(
    role: Annotated[str, typer.Option(help="admin, operator, viewer, node or tenant")],
    name: Annotated[str, typer.Option(help="whose it is, or what for")] = "",
    project: Annotated[str | None, typer.Option(help="a tenant's project")] = None,
    node: Annotated[str | None, typer.Option(help="a node's name")] = None,
    expires: Annotated[
        str | None, typer.Option(help="after how long, such as 30d, 12h, 5m (default: never)")
    ] = None,
    max_priority: Annotated[
        int | None,
        typer.Option(help="the highest priority of a tenant's requests (default: its project's)"),
    ] = None,
    may_preempt: Annotated[
        bool | None,
        typer.Option(
            "--may-preempt/--may-not-preempt",
            help="whether a tenant may end lower-priority work (default: as its project)",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="a tenant's: draws on reservations for this label too")
    ] = None,
    person: Annotated[
        str, typer.Option(help="whose usage it is that is begun with it (default: NAME's)")
    ] = "",
    idempotency_key: Annotated[
        str, typer.Option(help="sent twice with this key, one token is made")
    ] = "",
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Makes a token and prints its secret, this once."""
    body: dict[str, Any] = {
        "role": role,
        "name": name,
        "project": project,
        "node": node,
        "expires_seconds": _seconds(expires) if expires else None,
        "max_priority": max_priority,
        "may_preempt": may_preempt,
        "label": label,
    }
    if person:  # which a controller of the release before does not know
        body["person"] = person
    answer = controller(address).post("/tokens", body, idempotency_key)
    if output.show_data(answer, output_format):
        return
    print(answer["secret"])
    typer.echo(f"token {answer['id']} ({answer['role']}); it is not shown again", err=True)


@app.command("list")
def list_tokens(
    every: Annotated[
        bool, typer.Option("--all", "-a", help="expired and revoked ones too")
    ] = False,
    role: Annotated[str | None, typer.Option(help="only this role's")] = None,
    project: Annotated[str | None, typer.Option(help="only this project's")] = None,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists the tokens, without their secrets."""
    wanted = {"role": role, "project": project}
    parameters = {key: value for key, value in wanted.items() if value is not None}
    state = "all" if every else "valid"
    answer = controller(address).every("/tokens", "tokens", state=state, **parameters)
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {
            "TOKEN": "id",
            "ROLE": "role",
            "NAME": "name",
            "OF": "of",
            "STATE": "state",
            "AGE": "age",
            "EXPIRES": "expires",
        },
        [_row(token) for token in answer["tokens"]],
        "no tokens",
    )


@app.command("show")
def show(
    token: Annotated[str, typer.Argument(autocompletion=completion.tokens)],
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows one token, without its secret."""
    answer = controller(address).get(f"/tokens/{token}")
    if not output.show_data(answer, output_format):
        output.show_record(answer)


@app.command("revoke")
def revoke(
    token: Annotated[
        str,
        typer.Argument(help="its id, of `sluice token list`", autocompletion=completion.tokens),
    ],
    even_last: Annotated[
        bool, typer.Option("--even-last", help="even if no valid admin token is left")
    ] = False,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Revokes a token: it is refused from now on."""
    answer = controller(address).delete(f"/tokens/{token}", even_last=even_last)
    if not output.show_data(answer, output_format):
        print(f"token {token} is revoked")


@app.command("whoami")
def whoami(address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Shows who you are to the controller, and what you may do."""
    answer = controller(address).get("/whoami")
    if not output.show_data(answer, output_format):
        output.show_record(answer)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if not found:
        raise CommandError(f"--expires {text}: give a number and s, m, h or d, such as 30d", 2)
    return int(found[1]) * UNITS_SECONDS[found[2]]


def _row(token: dict[str, Any]) -> dict[str, Any]:
    return {
        **token,
        "of": token["project"] or token["node"],
        "age": output.age(token["created"]),
        "expires": token["expires"] or "",
    }
