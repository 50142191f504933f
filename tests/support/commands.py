# SPDX-License-Identifier: Apache-2.0
"""Starts Sluice's commands as processes, with an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from control_plane import PYTHON_PATH


def run(
    *words: str, module: str = "sluice.cli", **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    native = {k: v for k, v in os.environ.items() if k == "SLUICE_NATIVE_DIR"}
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        env={**kept, **native, "PYTHONPATH": str(PYTHON_PATH), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
