# SPDX-License-Identifier: Apache-2.0
"""`sluice pool switch`, `node drain`, `gpu drain`, `grant resize`: what operators do to a pool.

Mounted by cli.__main__, the drains and the resize into the commands of nodes, GPUs and grants.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sluice.cli import output
from sluice.cli.options import Address, Output, controller
from sluice.cli.output import Format
from sluice.cli.pool_commands import gpu_app, grant_app, node_app
from sluice.cli.rest import CommandError

pool_app = typer.Typer(help="The two pools: shared out, or one VM's alone.", no_args_is_help=True)

Preempt = Annotated[bool, typer.Option("--preempt", help="end what runs on it, do not wait")]


@pool_app.command("switch")
def switch(
    gpu: Annotated[str, typer.Argument(help="NODE:UUID or UUID")],
    to: Annotated[str | None, typer.Option(help="native or pooled")] = None,
    preempt: Preempt = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="leave it in the pool")] = False,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Takes a GPU out of the pool for one VM, or back; without --to, shows where it is."""
    if cancel and to:
        raise CommandError("give --to or --cancel, not both", 2)
    api, path = controller(address), f"/gpus/{gpu}/switch"
    if cancel:
        answer = api.delete(path)
    elif to:
        answer = api.put(path, {"to": to, "preempt": preempt})
    else:
        answer = api.get(path)
    _show(answer, output_format)


@gpu_app.command("drain")
def drain_gpu(
    gpu: str,
    preempt: Preempt = False,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets a GPU take nothing new; `sluice gpu undrain` takes it back."""
    body = {"to": "drained", "preempt": preempt}
    _show(controller(address).put(f"/gpus/{gpu}/switch", body), output_format)


@gpu_app.command("undrain")
def undrain_gpu(gpu: str, address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lets it take grants again."""
    _show(controller(address).put(f"/gpus/{gpu}/switch", {"to": "pooled"}), output_format)


@node_app.command("drain")
def drain_node(node: str, address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lets a node take nothing new; what runs there goes on."""
    answer = controller(address).put(f"/nodes/{node}/drain", {})
    if not output.show_data(answer, output_format):
        print(f"node {node} is drained: {answer['sessions']} session(s) still run there")


@node_app.command("undrain")
def undrain_node(node: str, address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lets it take grants again."""
    answer = controller(address).delete(f"/nodes/{node}/drain")
    if not output.show_data(answer, output_format):
        print(f"node {node} takes grants again")


@grant_app.command("resize")
def resize_grant(
    grant: str,
    memory: Annotated[int, typer.Option(help="MiB of each vGPU (0: as it is)")] = 0,
    compute: Annotated[int, typer.Option(help="percent of each vGPU (0: as it is)")] = 0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Changes its limits while it is in use, or says why that cannot be."""
    body = {"memory_mib": memory, "compute_percent": compute}
    answer = controller(address).patch(f"/grants/{grant}", body)
    if not output.show_data(answer, output_format):
        print(f"grant {grant} is resized")


def _show(answer: dict[str, Any], output_format: Format) -> None:
    if output.show_data(answer, output_format):
        return
    why = f": {answer['reason']}" if answer["reason"] else ""
    print(f"GPU {answer['gpu']} is {answer['mode']}{why}")
