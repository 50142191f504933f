# SPDX-License-Identifier: Apache-2.0
"""`sluice pool switch`, `node drain`, `gpu drain`, `grant resize`: what operators do to a pool.

Mounted by cli.application, the drains and the resize into the commands of nodes, GPUs and grants.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sluice.cli import completion, output
from sluice.cli.options import Address, Output, Wait, controller
from sluice.cli.output import Format
from sluice.cli.rest import CommandError, Controller
from sluice.cli.waiting import follow

pool_app = typer.Typer(help="The two pools: shared out, or one VM's alone.", no_args_is_help=True)

Gpu = Annotated[
    str, typer.Argument(help="NODE:UUID, UUID, or its beginning", autocompletion=completion.gpus)
]
Node = Annotated[str, typer.Argument(autocompletion=completion.nodes)]
Target = Annotated[
    str,
    typer.Argument(
        help="a node, or a GPU as NODE:UUID or UUID", autocompletion=completion.drainable
    ),
]
Preempt = Annotated[bool, typer.Option("--preempt", help="end what runs on it, do not wait")]


@pool_app.command("switch")
def switch(
    gpu: Gpu,
    to: Annotated[str | None, typer.Option(help="native or pooled")] = None,
    preempt: Preempt = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="leave it in the pool")] = False,
    wait: Wait = 0.0,
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
        answer = _switched(api, gpu, to, wait, preempt=preempt)
    else:
        answer = api.get(path)
    _show(answer, output_format)


def drain_gpu(
    gpu: Gpu,
    preempt: Preempt = False,
    wait: Wait = 0.0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets a GPU take nothing new; `sluice gpu undrain` takes it back."""
    _show(_switched(controller(address), gpu, "drained", wait, preempt=preempt), output_format)


def undrain_gpu(gpu: Gpu, address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lets it take grants again."""
    _show(controller(address).put(f"/gpus/{gpu}/switch", {"to": "pooled"}), output_format)


def drain_node(
    node: Node,
    wait: Wait = 0.0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets a node take nothing new; what runs there goes on."""
    api = controller(address)
    answer = api.put(f"/nodes/{node}/drain", {})
    if wait:

        def look() -> tuple[bool, str]:
            nonlocal answer
            answer = api.get(f"/nodes/{node}")
            return answer["sessions"] == 0, f"{answer['sessions']} session(s) to end"

        follow(look, wait, f"node {node} is draining")
    if not output.show_data(answer, output_format):
        print(f"node {node} is drained: {answer['sessions']} session(s) still run there")


def undrain_node(node: Node, address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lets it take grants again."""
    answer = controller(address).delete(f"/nodes/{node}/drain")
    if not output.show_data(answer, output_format):
        print(f"node {node} takes grants again")


def resize_grant(
    grant: Annotated[str, typer.Argument(autocompletion=completion.grants)],
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


def drain(
    target: Target,
    preempt: Preempt = False,
    wait: Wait = 0.0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets a node or a GPU take nothing new: `sluice node drain` and `sluice gpu drain` in one."""
    if _is_gpu(target):
        drain_gpu(target, preempt, wait, address, output_format)
    elif preempt:
        raise CommandError("--preempt is for a GPU; end a node's grants with `sluice grant end`", 2)
    else:
        drain_node(target, wait, address, output_format)


def undrain(
    target: Target,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets it take grants again."""
    (undrain_gpu if _is_gpu(target) else undrain_node)(target, address, output_format)


def _is_gpu(target: str) -> bool:
    return ":" in target or target.startswith("GPU-")


def _switched(api: Controller, gpu: str, to: str, wait: float, *, preempt: bool) -> dict[str, Any]:
    """Begins the switch, and waits for its end if that is wanted."""
    path = f"/gpus/{gpu}/switch"
    answer: dict[str, Any] = api.put(path, {"to": to, "preempt": preempt})
    if not wait:
        return answer

    def look() -> tuple[bool, str]:
        nonlocal answer
        answer = api.get(path)
        if answer["mode"] == "draining" and answer["step"] == "stuck":
            raise CommandError(f"GPU {answer['gpu']} {answer['reason']}")
        return answer["mode"] == to, answer["reason"]

    follow(look, wait, f"GPU {answer['gpu']}")
    return answer


def _show(answer: dict[str, Any], output_format: Format) -> None:
    if output.show_data(answer, output_format):
        return
    why = f": {answer['reason']}" if answer["reason"] else ""
    print(f"GPU {answer['gpu']} is {answer['mode']}{why}")
