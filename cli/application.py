# SPDX-License-Identifier: Apache-2.0
"""The commands of `sluice` put together, and their errors turned into exit statuses.

Called by cli.__main__, and by what describes or completes the commands. Exit status: 0 done;
1 refused or failed; 2 wrong usage; 3 no such thing; 4 the controller does not answer; 5 not allowed
(no valid token, or another role is needed); 130 Ctrl-C. `sluice run` has the status of the program
that it runs. Parts that are not installed here (the hypervisor part needs libvirt-python, the
vSphere part pyvmomi) are simply not mounted.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import typer

from sluice.cli import guest_part, options, words
from sluice.cli.rest import CommandError

GUEST_ARGUMENTS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
    "allow_interspersed_args": False,
}


def application(arguments: Sequence[str] = (), *, optional: bool = True) -> typer.Typer:
    """The command line with what these arguments need: all of it where that is not known.

    Without the `optional` parts it is the same wherever sluice is installed.
    """
    app = typer.Typer(
        name="sluice",
        callback=options.take_credentials,
        epilog=(
            "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no such thing, "
            "4 the controller does not answer, 5 not allowed."
        ),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    word = first_word(arguments)
    known = word in words.COMMANDS or word in words.GROUPS
    for name in (word,) if known else (*words.COMMANDS, *words.GROUPS):
        if optional or name not in words.OPTIONAL:
            mount(app, name)
    return app


def first_word(arguments: Sequence[str]) -> str:
    """The command's or the group's; "" where other options than the pool's come before it."""
    coming = iter(arguments)
    for argument in coming:
        if argument in options.WITH_VALUE:
            next(coming, None)
        else:
            return argument
    return ""


def mount(app: typer.Typer, name: str) -> None:
    """Adds the command or the group of this name, if it is installed here."""
    if name in words.COMMANDS:
        settings = GUEST_ARGUMENTS if name in guest_part.WORDS else None
        app.command(name, context_settings=settings)(found(words.COMMANDS[name]))
        return
    try:
        app.add_typer(group(name), name=name)
    except ImportError:
        if name not in words.OPTIONAL:
            raise


@functools.cache
def group(name: str) -> typer.Typer:
    """A group with all its commands. Raises ImportError."""
    app: typer.Typer = found(words.GROUPS[name])
    for command, place in words.MORE.get(name, {}).items():
        app.command(command)(found(place))
    return app


def found(place: str) -> Any:
    """What stands at MODULE:NAME."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns the exit status."""
    try:
        application(arguments)(arguments, prog_name="sluice")
    except CommandError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return error.status
    return 0
