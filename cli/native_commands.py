# SPDX-License-Identifier: Apache-2.0
"""`sluice gpu attach`, `gpu detach`, `gpu attachments`: whole GPUs that VMs hold.

Mounted by cli.application among the commands of GPUs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from sluice.cli import completion, output
from sluice.cli.options import Address, OfNode, Output, controller, given
from sluice.cli.output import Format
from sluice.cli.rest import EXIT_NOT_FOUND, CommandError, Controller
from sluice.cli.waiting import follow

Gpu = Annotated[
    str, typer.Argument(help="NODE:UUID, UUID, or its beginning", autocompletion=completion.gpus)
]
Wait = Annotated[float, typer.Option("--wait", min=0, help="wait so many seconds for its end")]


class When(StrEnum):
    """Into what a GPU is put."""

    BOTH = "both"
    NOW = "now"
    NEXT_START = "next-start"


def attach_gpu(
    gpu: Gpu,
    domain: Annotated[str, typer.Argument(help="a VM of the GPU's node: its name or UUID")],
    when: Annotated[
        When, typer.Option(help="into what runs, what the next start uses, or both")
    ] = When.BOTH,
    rom: Annotated[bool, typer.Option(help="the guest sees the card's option ROM")] = True,
    wait: Wait = 180.0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Gives a native GPU whole to a VM."""
    api = controller(address)
    body = {"domain": domain, "when": when.value, "rom_bar": rom}
    answer = api.put(_path(gpu), body)
    if answer["state"] == "attaching" and wait:
        _leaves(api, gpu, "attaching", wait, f"GPU {gpu} goes to VM {domain}")
        if _state(api, gpu) == "detached":
            raise CommandError(_why(api, answer["gpu"]))
        answer = api.get(_path(gpu))
    _show(answer, output_format)


def detach_gpu(
    gpu: Gpu,
    forget: Annotated[
        bool, typer.Option("--forget", help="drop the record only: its node does not return")
    ] = False,
    wait: Wait = 180.0,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Takes a GPU back from its VM; it stays native."""
    api = controller(address)
    answer = api.delete(_path(gpu), **({"forget": "true"} if forget else {}))
    if answer["state"] == "detaching" and wait:
        what = f"GPU {gpu} comes back from VM {answer['domain_name']}"
        _leaves(api, gpu, "detaching", wait, what)
        if _state(api, gpu) != "detached":
            answer = api.get(_path(gpu))
            raise CommandError(f"VM {answer['domain_name']} has it still: {answer['reason']}")
        answer["state"] = "detached"
    _show(answer, output_format)


def list_attachments(
    node: OfNode = None,
    domain: Annotated[str | None, typer.Option(help="only this VM's, by name or UUID")] = None,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lists the GPUs that VMs hold whole."""
    answer = controller(address).every(
        "/attachments", "attachments", **given(node=node, domain=domain)
    )
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {
            "GPU": "gpu",
            "PCI": "pci_address",
            "VM": "domain_name",
            "STATE": "state",
            "IN": "places",
            "SINCE": "age",
            "REASON": "reason",
        },
        [
            {**each, "places": _places(each), "age": output.age(each["since"])}
            for each in answer["attachments"]
        ],
        "no VM holds a GPU",
    )


def _path(gpu: str) -> str:
    return f"/gpus/{gpu}/attachment"


def _leaves(api: Controller, gpu: str, state: str, seconds: float, what: str) -> None:
    follow(lambda: (_state(api, gpu) != state, ""), seconds, what)


def _state(api: Controller, gpu: str) -> str:
    try:
        return str(api.get(_path(gpu))["state"])
    except CommandError as error:
        if error.status != EXIT_NOT_FOUND:
            raise
        return "detached"


def _why(api: Controller, gpu: str) -> str:
    """The event log knows what became of it."""
    events = api.get("/events", subject=gpu, kind="gpu.not_attached", limit=1)["events"]
    return f"GPU {gpu}: {events[0]['text'] if events else 'it is not attached'}"


def _places(attachment: dict[str, Any]) -> str:
    places = {"live": "what runs", "config": "definition"}
    return " and ".join(text for key, text in places.items() if attachment[key])


def _show(answer: dict[str, Any], output_format: Format) -> None:
    if output.show_data(answer, output_format):
        return
    if answer["state"] == "detached":
        print(f"GPU {answer['gpu']} is held by no VM; it is native still")
        return
    places = _places(answer)
    where = f" ({places})" if places else ""
    why = f": {answer['reason']}" if answer["reason"] else ""
    print(f"GPU {answer['gpu']} is {answer['state']} to VM {answer['domain_name']}{where}{why}")
