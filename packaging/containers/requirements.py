# SPDX-License-Identifier: Apache-2.0
"""Prints what the project depends on, without the project: requirements.py pyproject.toml EXTRA…

With --build it prints what the project is built with, where what is generated comes from. Called
when images are built: a layer of its own, which is built anew only when these change.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """One requirement a line, as pip reads it."""
    path, *extras = sys.argv[1:]
    told = tomllib.loads(Path(path).read_text())
    if extras == ["--build"]:
        wanted = told["build-system"]["requires"]
    else:
        wanted = list(told["project"]["dependencies"])
        for extra in extras:
            wanted += told["project"]["optional-dependencies"][extra]
    print("\n".join(wanted))


if __name__ == "__main__":
    main()
