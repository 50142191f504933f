# SPDX-License-Identifier: Apache-2.0
"""Lays out build/python, from which a checkout runs without being installed.

Called by `make python` and by hand after a clone. It owns build/python (links to the top-level
folders under the package name `sluice`, and what is generated: `sluice/rpc` from controller/proto,
`sluice/protocol` from native/api) and
build/bin (launchers). Run with a virtual environment's Python it also writes a .pth file there, so
that `python -m sluice.server` needs no PYTHONPATH. Running it again is cheap and changes only what
is out of date; it needs no network.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "cli",
    "config",
    "controller",
    "guest_runtime",
    "hypervisor",
    "nova_driver",
    "pool_client",
    "resources",
    "server",
    "templates",
)
COMMANDS = {
    "sluice": "sluice.cli",
    "sluice-controller": "sluice.controller",
    "sluice-server": "sluice.server",
    "sluice-vsphere": "sluice.hypervisor.vsphere",
}


def link_folders(package: Path) -> None:
    """Makes package/<folder> a link to each top-level folder that exists."""
    package.mkdir(parents=True, exist_ok=True)
    for name in FOLDERS:
        source, link = CHECKOUT / name, package / name
        if link.is_symlink() and link.readlink() == source:
            continue
        link.unlink(missing_ok=True)
        if source.is_dir():
            link.symlink_to(source)


def write_launchers(folder: Path, python_path: Path) -> None:
    """Writes the console commands, bound to the Python that runs this script."""
    folder.mkdir(parents=True, exist_ok=True)
    for command, module in COMMANDS.items():
        text = (
            "#!/bin/sh\n"
            f'PYTHONPATH="{python_path}${{PYTHONPATH:+:$PYTHONPATH}}" '
            f'exec "{sys.executable}" -m {module} "$@"\n'
        )
        path = folder / command
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            path.chmod(0o755)


def write_pth(python_path: Path) -> None:
    """Lets this virtual environment's Python find the layout without PYTHONPATH."""
    if sys.prefix == sys.base_prefix:
        return
    pth = Path(sysconfig.get_path("purelib")) / "sluice-checkout.pth"
    line = f"{python_path}\n"
    if not pth.exists() or pth.read_text() != line:
        pth.write_text(line)


def main() -> int:
    """Parses the arguments and lays everything out; returns the exit status."""
    parser = argparse.ArgumentParser(description="Lay out build/python for a checkout.")
    parser.add_argument("--build", type=Path, default=CHECKOUT / "build")
    build = Path(os.path.abspath(parser.parse_args().build))
    python_path = build / "python"
    link_folders(python_path / "sluice")
    sys.path.insert(0, str(CHECKOUT / "controller" / "proto"))
    from generate import generate  # type: ignore[import-not-found]

    generate(python_path)
    sys.path.insert(0, str(CHECKOUT / "native" / "codegen"))
    from generate_protocol import generate as generate_protocol

    generate_protocol(python_path)
    write_launchers(build / "bin", python_path)
    write_pth(python_path)
    print(f"build/python is laid out; commands are in {build / 'bin'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
