# SPDX-License-Identifier: Apache-2.0
"""`sluice run`, `check`, `smi` and `enrol` as the list of commands shows them.

Mounted by cli.application. They run from here only where options stand before the word: otherwise
cli.__main__ has asked the guest's part already.
"""

from __future__ import annotations

import typer

from sluice.cli import guest_part


def run_program(ctx: typer.Context) -> None:
    """Starts a program on a vGPU of the pool: sluice run CMD [ARGUMENT...]."""
    raise typer.Exit(guest_part.run(["run", *ctx.args]))


def check_program(ctx: typer.Context) -> None:
    """Says whether a program would work here, and if not, what to do: sluice check [PROGRAM]."""
    raise typer.Exit(guest_part.run(["check", *ctx.args]))


def show_own(ctx: typer.Context) -> None:
    """Shows the vGPUs of one's own programs as nvidia-smi does: sluice smi [OPTION...]."""
    raise typer.Exit(guest_part.run(["smi", *ctx.args]))


def enrol_vm(ctx: typer.Context) -> None:
    """Gets this VM's token from what vSphere or OpenStack tells it: sluice enrol [OPTIONS]."""
    raise typer.Exit(guest_part.run(["enrol", *ctx.args]))
