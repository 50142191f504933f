# SPDX-License-Identifier: Apache-2.0
"""The coverage table in docs/ is what the generator makes of the registry now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_coverage_table_is_current(tmp_path: Path) -> None:
    generator = ROOT / "native" / "codegen" / "generate_abi.py"
    subprocess.run([sys.executable, str(generator), "--out", str(tmp_path)], check=True)
    made = (tmp_path / "docs" / "api-coverage.md").read_text()
    assert (ROOT / "docs" / "api-coverage.md").read_text() == made, "run `make docs` and commit it"
