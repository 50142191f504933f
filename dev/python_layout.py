# SPDX-License-Identifier: Apache-2.0
"""Generates what python/sluice lacks, so that a checkout runs without being installed.

python/sluice holds a link to each top-level folder of the package and is committed: editors and
tools follow imports in a fresh clone. Called by `make python` and by hand after a clone, this adds
what is generated: `sluice/rpc` from controller/proto, `sluice/protocol` and
`sluice/guest_runtime/client_settings.py` from native/api; and it writes launchers into build/bin.
Run with a virtual environment's Python it also writes a .pth file there, so that `python -m
sluice.server` needs no PYTHONPATH. Running it again is cheap and changes only what is out of date;
it needs no network.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGE = CHECKOUT / "python"
COMMANDS = {
    "sluice": "sluice.cli",
    "sluice-controller": "sluice.controller",
    "sluice-kubernetes": "sluice.kubernetes",
    "sluice-server": "sluice.server",
    "sluice-vsphere": "sluice.hypervisor.vsphere",
}


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
    """Parses the arguments and generates; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generate what python/sluice lacks.")
    parser.add_argument("--build", type=Path, default=CHECKOUT / "build")
    build = Path(os.path.abspath(parser.parse_args().build))
    sys.path.insert(0, str(CHECKOUT / "controller" / "proto"))
    from generate import generate  # type: ignore[import-not-found]

    generate(PACKAGE)
    sys.path.insert(0, str(CHECKOUT / "native" / "codegen"))
    from generate_protocol import generate as generate_protocol

    generate_protocol(PACKAGE)
    write_launchers(build / "bin", PACKAGE)
    write_pth(PACKAGE)
    print(f"python/sluice is complete; commands are in {build / 'bin'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
