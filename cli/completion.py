# SPDX-License-Identifier: Apache-2.0
"""What the shell completes: `sluice completion`, and the names of what is in the pool.

Used by cli.application and the arguments of commands. The controller of the environment is asked,
for a moment: where it does not answer, or wants a token that is not there, nothing is completed and
nothing is said.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from sluice.cli.options import controller
from sluice.cli.rest import CommandError

NAME = "sluice"
VARIABLE = "_SLUICE_COMPLETE"  # as typer calls it for that name

PATIENCE_SECONDS = 1.0  # a shell waits for it

Complete = Callable[[str], list[str]]


def _names(path: str, key: str, field: str = "id", **filters: str) -> Complete:
    def complete(incomplete: str) -> list[str]:
        with contextlib.suppress(CommandError, KeyError):
            found = controller(None, patience_seconds=PATIENCE_SECONDS).get(
                path, limit=200, **filters
            )[key]
            return [name for each in found if (name := str(each[field])).startswith(incomplete)]
        return []

    return complete


nodes = _names("/nodes", "nodes", "name")
grants = _names("/grants", "grants")
sessions = _names("/sessions", "sessions")
ended_sessions = _names("/sessions", "sessions", state="all")
vgpus = _names("/vgpus", "vgpus")
reservations = _names("/reservations", "reservations")
tokens = _names("/tokens", "tokens")
projects = _names("/quotas", "quotas", "project")


def gpus(incomplete: str) -> list[str]:
    """UUIDs, with their nodes where several have one: bash takes a colon for the end of a word."""
    ids = [each.rpartition(":") for each in _names("/gpus", "gpus")("")]
    several = {uuid for uuid, count in Counter(uuid for _, _, uuid in ids).items() if count > 1}
    found = [f"{node}:{uuid}" if uuid in several else uuid for node, _, uuid in ids]
    return [each for each in found if each.startswith(incomplete)]


def drainable(incomplete: str) -> list[str]:
    """Nodes and GPUs."""
    return nodes(incomplete) + gpus(incomplete)


class Shell(StrEnum):
    """The shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def script(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish")] = Shell.BASH,
) -> None:
    """Prints the script by which a shell completes: source <(sluice completion bash)."""
    print(get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=shell.value))
