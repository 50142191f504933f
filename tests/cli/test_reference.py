# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md is what the commands say."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

from control_plane import PYTHON_PATH

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_reference_is_current(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    code = (
        "import sys, pathlib; sys.path.insert(0, 'dev'); import cli_reference as c;"
        f"c.REFERENCE = pathlib.Path({str(tmp_path / 'cli.md')!r}); c.main()"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
        check=True,
        timeout=120,
    )
    written = (tmp_path / "cli.md").read_text()
    difference = difflib.unified_diff(page.splitlines(), written.splitlines(), lineterm="")
    assert list(difference) == [], "run `make docs`"
