# SPDX-License-Identifier: Apache-2.0
"""The commands `sluice vm hook install|remove|show`: our hook beside those of others.

Mounted by cli.py. Doing one twice changes nothing; a file that is not ours is never touched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sluice.hypervisor import qemu_hook
from sluice.hypervisor.command_line import run
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.region_file import RUN_FOLDER

FILE = "qemu.d/50-sluice"
_MARK = "libvirt's qemu hook of Sluice"
_READ_AT_START = "libvirtd looks for hooks when it starts: restart it once (guests go on)"

app = typer.Typer(help="libvirt's qemu hook: what becomes of domains is said to sluice-server.")

Folder = Annotated[Path, typer.Option("--folder", help="the folder of libvirt's hooks")]
HOOKS = Path("/etc/libvirt/hooks")


@app.command()
def install(folder: Folder = HOOKS) -> None:
    """Put the hook beside those of others; again, to bring it to this version."""

    def work() -> None:
        path = folder / FILE
        text = hook_text(os.environ.get("SLUICE_RUN_DIR") or str(RUN_FOLDER))
        present = _ours(path)
        if present == text and os.access(path, os.X_OK):
            print(f"{path}: is there")
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # libvirt runs what lies there and may be executed: it becomes that when it is whole
            partial = path.with_name(f".{path.name}.new")
            partial.write_text(text)
            partial.chmod(0o755)
            partial.rename(path)
        except OSError as error:
            raise HypervisorError(f"{error.filename}: {error.strerror}") from error
        print(f"{path}: installed; {_READ_AT_START}")

    run(work)


@app.command()
def remove(folder: Folder = HOOKS) -> None:
    """Take the hook away; those of others stay."""

    def work() -> None:
        path = folder / FILE
        if _ours(path) is None:
            print(f"{path}: was not there")
            return
        try:
            path.unlink()
        except OSError as error:
            raise HypervisorError(f"{error.filename}: {error.strerror}") from error
        print(f"{path}: removed")

    run(work)


@app.command()
def show(folder: Folder = HOOKS) -> None:
    """Say whether the hook is there, and of this version."""

    def work() -> None:
        path = folder / FILE
        present = _ours(path)
        if present is None:
            raise HypervisorError(f"{path}: is not there: `sluice vm hook install`")
        if present != hook_text(os.environ.get("SLUICE_RUN_DIR") or str(RUN_FOLDER)):
            raise HypervisorError(f"{path}: is another version's: `sluice vm hook install`")
        print(f"{path}: is there")

    run(work)


def hook_text(run_folder: str) -> str:
    """The hook for the server of that run_dir."""
    source = Path(qemu_hook.__file__).read_text()
    line = f'RUN_FOLDER = "{qemu_hook.RUN_FOLDER}"\n'
    assert source.count(line) == 1
    return source.replace(line, f"RUN_FOLDER = {run_folder!r}\n")


def _ours(path: Path) -> str | None:
    """Its text; None where there is none."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HypervisorError(f"{path}: {error}") from error
    if _MARK not in text:
        raise HypervisorError(f"{path} is not Sluice's: move it away, it is left as it is")
    return text
