#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs this project's requirements and the named extras, not the project itself.

Called by the Makefile: a checkout runs from python/, so only what pyproject.toml lists is
wanted. libvirt-python has to match the libvirt that is installed, so it is pinned to that.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(extras: list[str]) -> list[str]:
    """The project's dependencies and those of the extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return [pinned(name) for name in wanted]


def pinned(requirement: str) -> str:
    """The binding of libvirt in the version of the library."""
    if not requirement.startswith("libvirt-python"):
        return requirement
    found = subprocess.run(
        ["pkg-config", "--modversion", "libvirt"], capture_output=True, text=True, check=True
    )
    return f"libvirt-python=={found.stdout.strip()}"


def main() -> int:
    """Runs pip once for everything."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*command, *requirements(sys.argv[1:])], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
