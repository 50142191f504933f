# SPDX-License-Identifier: Apache-2.0
"""Writes docs/cli.md from the commands themselves.

Called by `make docs`, and by tests/cli/test_reference.py, which holds the file against what would
be written. Only commands of typer are described; `sluice run`, `check` and `enrol` read their own
arguments and are described in docs/guest.md and docs/vsphere.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
ELSEWHERE = {"run": "guest.md", "check": "guest.md", "enrol": "guest.md"}

HEAD = """\
# The command `sluice`

Written from the commands by `dev/cli_reference.py` (`make docs`); do not edit.

It asks the controller that `--controller`, `SLUICE_CONTROLLER` or this host's `server.conf` names
(several with commas), with the token of `--token-file`, `SLUICE_TOKEN` or `~/.sluice/token`. With a
CA (`--ca`, `SLUICE_CA`, `[tls] ca_file` of `server.conf`) or an address that begins with `https://`
it speaks TLS. `-o json` and `-o yaml` print what REST answered, for scripts; lists are complete,
however many pages they have. `source <(sluice completion bash)` (in `~/.bashrc`) makes the shell
complete commands, options, and the names of what is in the pool; zsh and fish have theirs. Tables
leave out their last columns on a narrow terminal, and say so; ids stay whole. `--wait SECONDS`
follows what takes long, and says on standard error what it waits for.

| exit status | means |
| --- | --- |
| 0 | done |
| 1 | refused or failed; the reason is on standard error |
| 2 | wrong usage |
| 3 | no such thing |
| 4 | the controller does not answer (or its certificate is not of the CA) |
| 5 | not allowed: no valid token, or another role is needed |
| 130 | Ctrl-C |

`sluice run` has the status of the program that it runs. `sluice vm` is there where
libvirt-python is installed ([libvirt.md](libvirt.md)), `sluice vsphere` where pyvmomi is
([vsphere.md](vsphere.md)).
"""


def reference(app: typer.Typer) -> str:
    """The whole page."""
    command: Any = typer.main.get_command(app)
    parts = [HEAD, "## Before every command\n", _options(command)]
    parts += _commands(command, "sluice")
    return "\n".join(parts).rstrip() + "\n"


def _commands(group: Any, prefix: str) -> list[str]:
    parts: list[str] = []
    for name in group.commands:
        command = group.commands[name]
        if hasattr(command, "commands"):
            parts += [f"## {prefix} {name}\n", f"{_first(command)}\n"]
            parts += _commands(command, f"{prefix} {name}")
            continue
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        words = " ".join(_metavar(p) for p in arguments)
        mark = "##" if prefix == "sluice" else "###"
        parts += [f"{mark} {prefix} {name}{' ' + words if words else ''}\n", f"{_first(command)}\n"]
        if name in ELSEWHERE and prefix == "sluice":
            parts.append(f"See [{ELSEWHERE[name]}]({ELSEWHERE[name]}).\n")
        elif any(_rows(command)):
            parts.append(_options(command))
    return parts


def _options(command: Any) -> str:
    lines = ["| option | default | |", "| --- | --- | --- |", *_rows(command)]
    return "\n".join(lines) + "\n"


def _rows(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or "completion" in (parameter.name or ""):
            continue
        text = getattr(parameter, "help", None) or ""
        if parameter.param_type_name == "argument":
            if text:
                rows.append(f"| `{_metavar(parameter)}` |  | {text} |")
            continue
        default = parameter.default
        shown = "" if default in (None, "", False, ()) or callable(default) else f"`{default}`"
        names = ", ".join(f"`{name}`" for name in reversed(parameter.opts))
        rows.append(f"| {names} | {shown} | {text} |")
    return rows


def _metavar(parameter: Any) -> str:
    name = (parameter.name or "").upper()
    return name if parameter.required else f"[{name}]"


def _first(command: Any) -> str:
    return str(command.help or "").strip().partition("\n\n")[0].replace("\n", " ")


def main() -> int:
    """Writes the page."""
    # what is generated exists after python_layout only
    from sluice.cli.application import application

    REFERENCE.write_text(reference(application(optional=False)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
