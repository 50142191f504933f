# SPDX-License-Identifier: Apache-2.0
"""`sluice units`: writes the systemd units of this installation from templates/systemd.

Mounted by cli.application and called by packaging. The commands in the units are those of the
Python that runs this, unless told otherwise.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import jinja2
import typer

from sluice.cli.rest import CommandError

TEMPLATES = Path(__file__).parent.parent / "templates" / "systemd"
SERVICES = ("sluice-controller", "sluice-server", "sluice-vsphere")


def render_units(programs: dict[str, str], config_dir: Path, worker_user: str) -> dict[str, str]:
    """Returns the text of each unit by its file name."""
    folder = TEMPLATES if TEMPLATES.is_dir() else _checkout_templates()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return {
        f"{name}.service": environment.get_template(f"{name}.service.j2").render(
            program=programs[name], config_dir=config_dir, worker_user=worker_user
        )
        for name in SERVICES
    }


def units(
    folder: Annotated[Path, typer.Option("--dir", help="where to write them")] = Path(
        "/etc/systemd/system"
    ),
    config_dir: Annotated[Path, typer.Option(help="where the .conf files are")] = Path(
        "/etc/sluice"
    ),
    worker_user: Annotated[str, typer.Option(help="the account of workers")] = "sluice-worker",
) -> None:
    """Writes the systemd units of the controller, the server and the vSphere adapter."""
    for path in write_units(folder, config_dir, worker_user):
        print(path)


def write_units(folder: Path, config_dir: Path, worker_user: str) -> list[Path]:
    """Writes them and returns where they are. Raises CommandError."""
    texts = render_units({name: _program(name) for name in SERVICES}, config_dir, worker_user)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise CommandError(f"{folder}: cannot be written ({error.strerror})") from None
    return [folder / name for name in texts]


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    if found := shutil.which(name):
        return found
    # a checkout's launchers, written by dev/python_layout.py
    launcher = Path(__file__).resolve().parent.parent / "build" / "bin" / name
    if launcher.exists():
        return str(launcher)
    raise CommandError(f"{name} is not installed beside {sys.executable} nor in PATH")


def _checkout_templates() -> Path:
    return Path(__file__).resolve().parent.parent / "templates" / "systemd"
