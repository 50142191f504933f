# SPDX-License-Identifier: Apache-2.0
"""`sluice events`, `audit` and `top`: what happened, who did it, and what goes on.

Mounted by cli.__main__. `events --follow` reads the controller's event stream and takes it up where
it ended when the line breaks or another controller leads.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sluice.cli import output
from sluice.cli.options import Address, Output, controller
from sluice.cli.output import Format
from sluice.cli.pool_commands import (
    GPU_COLUMNS,
    SESSION_COLUMNS,
    gpu_rows,
    pool_line,
    session_rows,
)
from sluice.cli.rest import Controller

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="how many at most")]

TOP_SECONDS = 1.0


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


def audit(
    token: Annotated[str | None, typer.Option(help="only what this token's owner did")] = None,
    limit: Limit = 100,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows who changed what, from where, oldest first."""
    wanted = {} if token is None else {"token": token}
    _show_events(controller(address).get("/audit", limit=limit, **wanted), output_format)


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.2, max=60, help="how often it looks, in seconds")
    ] = TOP_SECONDS,
    times: Annotated[
        int, typer.Option("--times", "-n", min=0, help="how often it looks (0: until Ctrl-C)")
    ] = 0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows the pool and its sessions as they change, until Ctrl-C."""
    api = controller(address)
    looked = 0
    while output_format is not Format.TABLE:
        _print_event(_look(api), output_format)
        looked += 1
        if looked == times:
            return
        time.sleep(every)
    console = output.console()
    with Live(
        _picture(api, console.width),
        console=console,
        screen=console.is_terminal,
        auto_refresh=False,
        vertical_overflow="crop",
    ) as live:
        while True:
            live.update(_picture(api, console.width), refresh=True)
            looked += 1
            if looked == times:
                return
            time.sleep(every)


def _look(api: Controller) -> dict[str, Any]:
    return {
        **api.get("/pool"),
        "gpu_list": api.every("/gpus", "gpus")["gpus"],
        "session_list": api.every("/sessions", "sessions")["sessions"],
    }


def _picture(api: Controller, width: int) -> Group:
    found = _look(api)
    gpus, sessions = found["gpu_list"], found["session_list"]
    parts: list[Any] = [Text(pool_line(api, found)), Text()]
    if gpus:
        parts += [output.table_of(GPU_COLUMNS, gpu_rows(gpus), width), Text()]
    if sessions:
        parts.append(output.table_of(SESSION_COLUMNS, session_rows(sessions), width))
    return Group(*parts)


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
