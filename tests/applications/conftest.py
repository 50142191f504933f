# SPDX-License-Identifier: Apache-2.0
"""The environment that the applications are installed in, made again when its list changes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "applications" / "venv"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
#: What pip says when the registry is out of reach; anything else that fails is a failure.
NO_NETWORK = ("connection broken", "NewConnectionError", "ConnectTimeout", "NameResolutionError")


@pytest.fixture(scope="session")
def applications_python() -> Path:
    """The interpreter of the applications' environment."""
    python = VENV / "bin" / "python"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stamp = VENV / "requirements.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--retries", "2", "--timeout", "15"]
    done = subprocess.run(
        [*pip, "--requirement", str(REQUIREMENTS)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        if any(sign in done.stderr for sign in NO_NETWORK):
            pytest.skip("numba-cuda cannot be installed: the package registry cannot be reached")
        pytest.fail(f"pip could not install {REQUIREMENTS.name}:\n{done.stderr[-2000:]}")
    stamp.write_text(wanted)
    return python
