# SPDX-License-Identifier: Apache-2.0
"""`sluice events` and `audit`: what happened, and who did it.

Mounted by cli.application. `events --follow` reads the controller's event stream and takes it up
where it ended when the line breaks or another controller leads.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from sluice.cli import output
from sluice.cli.options import Address, Output, controller
from sluice.cli.output import Format

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="how many at most")]


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on with what happens from now on")
    ] = False,
    since: Annotated[
        int | None, typer.Option(min=0, help="only events after the one with this number")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="a grant's, session's, node's … id")] = None,
    kind: Annotated[str, typer.Option(help="what the kind begins with, such as grant.")] = "",
    limit: Limit = 100,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows the event log, oldest first."""
    wanted: dict[str, Any] = {"kind": kind}
    if subject is not None:
        wanted["subject"] = subject
    api = controller(address)
    if follow:
        for event in api.follow_events(since, **wanted):
            _print_event(event, output_format)
        return
    answer = api.get("/events", limit=limit, since=since or 0, **wanted)
    _show_events(answer, output_format)


def alerts(address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lists what fires now; what fired is in `sluice events --kind alert.`"""
    answer = controller(address).get("/alerts")
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {"SEVERITY": "severity", "RULE": "rule", "SINCE": "since", "WHAT": "text"},
        answer["alerts"],
        "nothing fires",
    )
    if trouble := answer["webhook_trouble"]:
        output.show_line(f"the webhook is not told: {trouble}")


def audit(
    token: Annotated[str | None, typer.Option(help="only what this token's owner did")] = None,
    limit: Limit = 100,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows who changed what, from where, oldest first."""
    wanted = {} if token is None else {"token": token}
    _show_events(controller(address).get("/audit", limit=limit, **wanted), output_format)


def _show_events(answer: dict[str, Any], form: Format) -> None:
    if output.show_data(answer, form):
        return
    if not answer["events"]:
        print("no events")
    for event in reversed(answer["events"]):
        _print_event(event, form)


def _print_event(event: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        print(json.dumps(event), flush=True)
    elif form is Format.YAML:
        print(yaml.safe_dump(event, sort_keys=False, explicit_start=True), end="", flush=True)
    elif "number" in event:
        when = event["time"].partition(".")[0].rstrip("Z")
        line = (
            f"{event['number']:>8} {when} {event['kind']:<18} {event['subject']}: {event['text']}"
        )
        print(line, flush=True)
    else:
        Console(stderr=True).print(
            f"events {event['after'] + 1} to {event['next'] - 1} are no longer kept"
        )
