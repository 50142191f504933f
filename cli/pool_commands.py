# SPDX-License-Identifier: Apache-2.0
"""`sluice status`, `node`, `gpu`, `grant`, `session`, `logs`: the pool as the controller knows it.

Mounted by cli.application. Every command is one or two REST calls; -o json prints what they
answered.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated, Any

import typer

from sluice.cli import completion, output
from sluice.cli.options import Address, Everything, OfNode, OfProject, Output, Wait, given
from sluice.cli.options import controller as _controller
from sluice.cli.output import Format
from sluice.cli.rest import Controller
from sluice.cli.waiting import follow

GPU_COLUMNS = {
    "GPU": "short",
    "NODE": "node",
    "STATE": "state",
    "MODE": "mode",
    "HEALTH": "health",
    "POOL": "pool",
    "GRANTED": "memory",
    "COMPUTE": "compute",
    "VGPUS": "vgpus",
    "MODEL": "model",
    "ARCH": "architecture",
}

SESSION_COLUMNS = {
    "SESSION": "id",
    "STATE": "state",
    "NODE": "node",
    "PROGRAM": "program",
    "CLIENT": "client",
    "AGE": "age",
    "GRANT": "grant_id",
    "CHANNEL": "channel",
    "REASON": "reason",
}

node_app = typer.Typer(help="Hosts in the pool.", no_args_is_help=True)
gpu_app = typer.Typer(help="GPUs in the pool.", no_args_is_help=True)
grant_app = typer.Typer(help="What jobs hold.", no_args_is_help=True)
session_app = typer.Typer(help="Client processes that use grants.", no_args_is_help=True)


def status(controller: Address = None, output_format: Output = Format.TABLE) -> None:
    """Shows the pool in one look."""
    api = _controller(controller)
    pool, gpus = api.get("/pool"), api.every("/gpus", "gpus")
    if output.show_data({**pool, **gpus}, output_format):
        return
    output.show_line(pool_line(api, pool))
    if gpus["gpus"]:
        print()
        _gpu_table(gpus["gpus"])


@node_app.command("list")
def list_nodes(controller: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lists the nodes."""
    answer = _controller(controller).every("/nodes", "nodes")
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {
            "NODE": "name",
            "STATE": "state",
            "ADDRESS": "where",
            "GPUS": "gpus",
            "SESSIONS": "sessions",
            "DRAINED": "drained",
            "LABELS": "labels",
            "VERSION": "version",
        },
        [{**node, "where": f"{node['address']}:{node['port']}"} for node in answer["nodes"]],
        "no node has joined: start sluice-server on a host",
    )


@node_app.command("show")
def show_node(
    name: Annotated[str, typer.Argument(autocompletion=completion.nodes)],
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows one node."""
    _show(_controller(controller).get(f"/nodes/{name}"), output_format)


@gpu_app.command("list")
def list_gpus(
    node: Annotated[str | None, typer.Option(help="only this node's")] = None,
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists the GPUs and what is promised of them."""
    parameters = {"node": node} if node else {}
    answer = _controller(controller).every("/gpus", "gpus", **parameters)
    if output.show_data(answer, output_format):
        return
    _gpu_table(answer["gpus"])


@gpu_app.command("show")
def show_gpu(
    gpu: Annotated[
        str,
        typer.Argument(help="NODE:UUID, UUID, or its beginning", autocompletion=completion.gpus),
    ],
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows one GPU, named NODE:UUID or UUID."""
    _show(_controller(controller).get(f"/gpus/{gpu}"), output_format)


@grant_app.command("list")
def list_grants(
    every: Everything = False,
    node: OfNode = None,
    project: OfProject = None,
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists the grants."""
    answer = _controller(controller).every(
        "/grants", "grants", state="all" if every else "live", **given(node=node, project=project)
    )
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {
            "GRANT": "id",
            "STATE": "state",
            "NODE": "where",
            "VGPUS": "slices",
            "PRIORITY": "priority",
            "PROJECT": "project",
            "AGE": "age",
            "MODE": "mode",
            "SESSIONS": "sessions",
            "JOB": "job_name",
            "REASON": "reason",
        },
        [
            {
                **g,
                "state": (g.get("suspension") or g)["state"],
                "where": ",".join(g.get("nodes") or [g["node"]]),
                "slices": _slices(g),
                "job_name": g["job"][:8],
                "age": output.age(g["created"]),
            }
            for g in answer["grants"]
        ],
        "no grants",
    )


@grant_app.command("show")
def show_grant(
    grant: Annotated[str, typer.Argument(autocompletion=completion.grants)],
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows one grant."""
    _show(_controller(controller).get(f"/grants/{grant}"), output_format)


@grant_app.command("end")
def end_grant(
    grant: Annotated[str, typer.Argument(autocompletion=completion.grants)],
    wait: Wait = 0.0,
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Ends a grant: its processes get a CUDA error, its vGPUs return within seconds."""
    api = _controller(controller)
    answer = api.delete(f"/grants/{grant}")
    if wait:

        def look() -> tuple[bool, str]:
            found = api.get(f"/grants/{grant}")
            return found["state"] == "ended", f"{len(found['sessions'])} session(s) to end"

        follow(look, wait, f"grant {grant} is ending")
        answer = api.get(f"/grants/{grant}")
    if not output.show_data(answer, output_format):
        print(f"grant {grant} {'has ended' if wait else 'is ending'}")


@session_app.command("list")
def list_sessions(
    every: Everything = False,
    node: OfNode = None,
    project: OfProject = None,
    container: Annotated[
        str | None, typer.Option("--container", help="of a container, by how its id begins")
    ] = None,
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists the sessions."""
    answer = _controller(controller).every(
        "/sessions",
        "sessions",
        state="all" if every else "live",
        **given(node=node, project=project, container=container),
    )
    if output.show_data(answer, output_format):
        return
    output.show_table(SESSION_COLUMNS, session_rows(answer["sessions"]), "no sessions")


@session_app.command("show")
def show_session(
    session: Annotated[str, typer.Argument(autocompletion=completion.sessions)],
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows one session."""
    _show(_controller(controller).get(f"/sessions/{session}"), output_format)


def logs(
    session: Annotated[
        str,
        typer.Argument(
            help="a session's id, of `sluice session list -a`",
            autocompletion=completion.ended_sessions,
        ),
    ],
    tail_bytes: Annotated[
        int, typer.Option("--tail-bytes", min=1, max=1 << 20, help="how much of its end")
    ] = 64 << 10,
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Prints a session's log, fetched from the node where it ran."""
    text = _controller(controller).text(f"/sessions/{session}/log", tail_bytes=tail_bytes)
    if not output.show_data({"session": session, "lines": text.splitlines()}, output_format):
        sys.stdout.write(text)


@session_app.command("end")
def end_session(
    session: Annotated[str, typer.Argument(autocompletion=completion.sessions)],
    wait: Wait = 0.0,
    controller: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Ends one session: its process gets a CUDA error, others of its grant go on."""
    api = _controller(controller)
    answer = api.delete(f"/sessions/{session}")
    if wait:

        def look() -> tuple[bool, str]:
            found = api.get(f"/sessions/{session}")
            return found["state"] == "ended", "its worker ends"

        follow(look, wait, f"session {session} is ending")
        answer = api.get(f"/sessions/{session}")
    if not output.show_data(answer, output_format):
        print(f"session {session} {'has ended' if wait else 'is ending'}")


def pool_line(api: Controller, pool: dict[str, Any]) -> str:
    """The pool in a line."""
    return (
        f"controller {api.address} ({pool['version']}): {pool['nodes_up']} of {pool['nodes']} "
        f"nodes up, {pool['gpus']} GPUs, {pool['grants']} grants, {pool['sessions']} sessions, "
        f"{pool['waiting']} waiting"
    )


def session_rows(sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sessions as rows of SESSION_COLUMNS."""
    return [
        {**s, "state": _state(s), "client": _client(s), "age": output.age(s["started"])}
        for s in sessions
    ]


def gpu_rows(gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """GPUs as rows of GPU_COLUMNS."""
    short = output.short_ids(gpus, "uuid")
    return [
        {
            **gpu,
            "short": short[gpu["uuid"]],
            "memory": f"{gpu['granted_mib']} / {gpu['memory_mib']} MiB",
            "compute": f"{gpu['granted_percent']} %",
            "pool": f"VM {gpu['held_by']}" if gpu["held_by"] else gpu["mode"],
            "kind": "software" if gpu["software"] else "",
        }
        for gpu in gpus
    ]


def _gpu_table(gpus: list[dict[str, Any]]) -> None:
    empty = "no GPU is in the pool: start sluice-server on a GPU node"
    output.show_table(GPU_COLUMNS, gpu_rows(gpus), empty)


def _show(record: dict[str, Any], output_format: Format) -> None:
    if not output.show_data(record, output_format):
        output.show_record(record)


def _slices(grant: dict[str, Any]) -> str:
    sizes = Counter((v["memory_mib"], v["compute_percent"]) for v in grant["vgpus"])
    return ", ".join(f"{count} of {mib} MiB {percent} %" for (mib, percent), count in sizes.items())


def _state(session: dict[str, Any]) -> str:
    # a controller of before does not know it
    if since := session.get("disconnected_since"):
        return f"no connection for {output.age(since)}"
    return str(session["state"])


def _client(session: dict[str, Any]) -> str:
    if session["domain_name"]:
        return f"domain {session['domain_name']}"
    if container := session.get("container"):  # a controller of before does not know it
        return str(container["name"])
    if session["channel"] == "tcp" or not session["client_pid"]:
        return str(session["host"])
    return f"pid {session['client_pid']}@{session['host']}"
