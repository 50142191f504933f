# SPDX-License-Identifier: Apache-2.0
"""`sluice vgpu`: the slices that jobs hold, one a line.

Mounted by cli.application. A vGPU has its grant's id and its number in the grant for a name.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sluice.cli import completion, output
from sluice.cli.options import Address, OfNode, OfProject, Output, controller, given
from sluice.cli.output import Format

app = typer.Typer(help="Slices of GPUs that jobs hold.", no_args_is_help=True)


@app.command("list")
def list_vgpus(
    node: OfNode = None,
    project: OfProject = None,
    gpu: Annotated[str | None, typer.Option(help="only this GPU's, NODE:UUID or UUID")] = None,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists the vGPUs that are granted now."""
    parameters = given(node=node, project=project, gpu=gpu)
    answer = controller(address).every("/vgpus", "vgpus", **parameters)
    if output.show_data(answer, output_format):
        return
    short = output.short_ids([{"uuid": _uuid(v)} for v in answer["vgpus"]], "uuid")
    output.show_table(
        {
            "VGPU": "id",
            "NODE": "node",
            "GPU": "short",
            "MIB": "memory_mib",
            "PERCENT": "compute_percent",
            "PROJECT": "project",
            "MODE": "mode",
            "PROGRAMS": "programs",
            "AGE": "age",
            "SESSIONS": "sessions",
        },
        [{**v, "short": short[_uuid(v)], "age": output.age(v["created"])} for v in answer["vgpus"]],
        "no vGPU is granted",
    )


@app.command("show")
def show(
    vgpu: Annotated[
        str,
        typer.Argument(help="GRANT.NUMBER, of `sluice vgpu list`", autocompletion=completion.vgpus),
    ],
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Shows one vGPU."""
    answer = controller(address).get(f"/vgpus/{vgpu}")
    if not output.show_data(answer, output_format):
        output.show_record(answer)


def _uuid(vgpu: dict[str, Any]) -> str:
    return str(vgpu["gpu"]).rpartition(":")[2]
