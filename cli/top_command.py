# SPDX-License-Identifier: Apache-2.0
"""`sluice top`: GPUs, the vGPUs on them and their sessions, with what each uses, as it changes.

Mounted by cli.application. A look is four REST calls; what it shows is a second old at most.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import yaml
from rich.console import Group
from rich.live import Live
from rich.text import Text

from sluice.cli import output
from sluice.cli.options import Address, Output, controller
from sluice.cli.output import Format
from sluice.cli.pool_commands import SESSION_COLUMNS, gpu_rows, pool_line, session_rows
from sluice.cli.rest import Controller

EVERY_SECONDS = 1.0

GPU_COLUMNS = {
    "GPU": "short",
    "NODE": "node",
    "1 S": "used_1s",
    "60 S": "used_60s",
    "COMPUTE": "compute",
    "GRANTED": "memory",
    "VGPUS": "vgpus",
    "STATE": "state",
    "HEALTH": "health",
    "POOL": "pool",
    "MODEL": "model",
}
VGPU_COLUMNS = {
    "VGPU": "id",
    "GPU": "short",
    "SHARE": "share",
    "1 S": "used_1s",
    "60 S": "used_60s",
    "GPU TIME": "used",
    "WAITED": "waited",
    "ON GPU": "resident",
    "OUT": "swapped",
    "MOVES": "moves",
    "MEM WAIT": "memory_waited",
    "PROGRAMS": "programs",
    "MIB": "memory_mib",
    "PROJECT": "project",
    "NODE": "node",
    "AGE": "age",
}


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.2, max=60, help="how often it looks, in seconds")
    ] = EVERY_SECONDS,
    times: Annotated[
        int, typer.Option("--times", "-n", min=0, help="how often it looks (0: until Ctrl-C)")
    ] = 0,
    once: Annotated[bool, typer.Option("--once", help="it looks once, as --times 1")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="a line for each look, as -o json")] = (
        False
    ),
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows GPUs, vGPUs and sessions as they change, until Ctrl-C.

    1 S and 60 S are what was used of the GPU in the last second and minute, GPU TIME is all of it,
    WAITED how long work waited for its turn while others had theirs. Where memory is promised more
    than once, ON GPU and OUT are the MiB of its grant on the GPU and in host memory, MOVES how
    often it moved, MEM WAIT how long work waited for it.
    """
    api = controller(address)
    times = 1 if once else times
    form = Format.JSON if as_json else output_format
    looked = 0
    while form is not Format.TABLE:
        _print_look(_look(api), form)
        looked += 1
        if looked == times:
            return
        time.sleep(every)
    console = output.console()
    if times == 1:
        console.print(_picture(api, console.width))  # it stays to be read
        return
    with Live(
        _picture(api, console.width),
        console=console,
        screen=console.is_terminal,
        auto_refresh=False,
        vertical_overflow="crop",
    ) as live:
        while True:
            looked += 1
            if looked == times:
                return
            time.sleep(every)
            live.update(_picture(api, console.width), refresh=True)


def _look(api: Controller) -> dict[str, Any]:
    return {
        **api.get("/pool"),
        "gpu_list": api.every("/gpus", "gpus")["gpus"],
        "vgpu_list": api.every("/vgpus", "vgpus")["vgpus"],
        "session_list": api.every("/sessions", "sessions")["sessions"],
    }


def _picture(api: Controller, width: int) -> Group:
    found = _look(api)
    gpus, vgpus, sessions = (found[f"{kind}_list"] for kind in ("gpu", "vgpu", "session"))
    parts: list[Any] = [Text(pool_line(api, found)), Text()]
    if gpus:
        parts += [output.table_of(GPU_COLUMNS, used_gpu_rows(gpus, vgpus), width), Text()]
    if vgpus:
        parts += [output.table_of(VGPU_COLUMNS, vgpu_rows(gpus, vgpus), width), Text()]
    if sessions:
        parts.append(output.table_of(SESSION_COLUMNS, session_rows(sessions), width))
    return Group(*parts)


def used_gpu_rows(
    gpus: Sequence[dict[str, Any]], vgpus: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """GPUs as rows of GPU_COLUMNS: what a GPU's vGPUs used is what was used of it."""
    used: dict[tuple[str, str], list[float]] = defaultdict(list)
    for vgpu in vgpus:
        for window in ("1s", "60s"):
            if (share := vgpu.get(f"share_{window}")) is not None:
                used[vgpu["gpu"], window].append(share)
    rows = gpu_rows(list(gpus))
    for row in rows:
        for window in ("1s", "60s"):
            found = used.get((row["id"], window))
            row[f"used_{window}"] = _percent(min(1.0, sum(found)) if found else None)
    return rows


def vgpu_rows(
    gpus: Sequence[dict[str, Any]], vgpus: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """vGPUs as rows of VGPU_COLUMNS, those that use most first."""
    short = output.short_ids([*gpus, *({"uuid": _uuid(v)} for v in vgpus)], "uuid")
    in_order = sorted(vgpus, key=lambda v: (-(v.get("share_60s") or 0.0), v["id"]))
    return [
        {
            **vgpu,
            "short": short[_uuid(vgpu)],
            "share": f"{vgpu['compute_percent']} %",
            "used_1s": _percent(vgpu.get("share_1s")),
            "used_60s": _percent(vgpu.get("share_60s")),
            "used": _duration(vgpu.get("gpu_seconds")),
            "waited": _duration(vgpu.get("waited_seconds")),
            "resident": _number(vgpu.get("resident_mib")),
            "swapped": _number(vgpu.get("swapped_mib")),
            "moves": _number(vgpu.get("memory_moves")),
            "memory_waited": _duration(vgpu.get("memory_waited_seconds")),
            "age": output.age(vgpu["created"]),
        }
        for vgpu in in_order
    ]


def _print_look(found: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        print(json.dumps(found), flush=True)
    else:
        print(yaml.safe_dump(found, sort_keys=False, explicit_start=True), end="", flush=True)


def _uuid(vgpu: dict[str, Any]) -> str:
    return str(vgpu["gpu"]).rpartition(":")[2]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}".replace("%", " %")


def _number(count: int | None) -> str:
    return "-" if count is None else str(count)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f}s" if seconds < 60 else output.span(int(seconds))
