# SPDX-License-Identifier: Apache-2.0
"""`sluice gpu health`, `gpu check`, `gpu clear`: which GPUs are fit to be given out, and why not.

Mounted by cli.application into the commands of GPUs.
"""

from __future__ import annotations

from typing import Any

from sluice.cli import output
from sluice.cli.operation_commands import Gpu
from sluice.cli.options import Address, Output, Wait, controller
from sluice.cli.output import Format
from sluice.cli.rest import Controller
from sluice.cli.waiting import follow


def health(address: Address = None, output_format: Output = Format.TABLE) -> None:
    """Lists every GPU's health, with what is wrong with it."""
    answer = controller(address).every("/gpus", "gpus")
    if output.show_data(answer, output_format):
        return
    output.show_table(
        {"GPU": "uuid", "NODE": "node", "MODEL": "model", "HEALTH": "health", "WHY": "why"},
        [{**gpu, "why": _why(gpu)} for gpu in answer["gpus"]],
        "no GPU is in the pool: start sluice-server on a GPU node",
    )


def check(
    gpu: Gpu, wait: Wait = 0.0, address: Address = None, output_format: Output = Format.TABLE
) -> None:
    """Has a GPU that nobody uses checked; it takes nothing new meanwhile."""
    api = controller(address)
    _show(api, gpu, api.post(f"/gpus/{gpu}/check", {}), wait, output_format)


def clear(
    gpu: Gpu, wait: Wait = 0.0, address: Address = None, output_format: Output = Format.TABLE
) -> None:
    """Says that a GPU is well again after a fault: it is checked, then given out."""
    api = controller(address)
    _show(api, gpu, api.delete(f"/gpus/{gpu}/fault"), wait, output_format)


def _show(
    api: Controller, gpu: str, answer: dict[str, Any], wait: float, output_format: Format
) -> None:
    if wait and (begun := answer["held"]):

        def look() -> tuple[bool, str]:
            nonlocal answer
            answer = api.get(f"/gpus/{gpu}")
            return answer["held"] != begun, begun

        follow(look, wait, f"GPU {gpu} is being checked")
    if not output.show_data(answer, output_format):
        why = _why(answer)
        print(f"GPU {answer['id']}: {answer['health']}{f': {why}' if why else ''}")


def _why(gpu: dict[str, Any]) -> str:
    return str(gpu["fault"] or gpu["held"] or gpu["note"])
