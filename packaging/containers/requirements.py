# SPDX-License-Identifier: Apache-2.0
"""Prints what the project depends on, without the project: requirements.py pyproject.toml EXTRA…

Called when images are built: a layer of its own, which is built anew only when these change.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """One requirement a line, as pip reads it."""
    project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in sys.argv[2:]:
        wanted += project["optional-dependencies"][extra]
    print("\n".join(wanted))


if __name__ == "__main__":
    main()
