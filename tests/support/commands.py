# SPDX-License-Identifier: Apache-2.0
"""Starts Sluice's commands as processes, with an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from control_plane import PYTHON_PATH
from forks import OTHER_CODE, run_command


def run(
    *words: str, module: str = "sluice.cli", **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    native = {k: v for k, v in os.environ.items() if k == "SLUICE_NATIVE_DIR"}
    environment = {**kept, **native, "PYTHONPATH": str(PYTHON_PATH), **variables}
    if not OTHER_CODE & {*variables}:
        return run_command(*words, module=module, environment=environment)
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
