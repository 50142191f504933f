# SPDX-License-Identifier: Apache-2.0
"""Virtual environments of tests, with packages of the index that Sluice itself does not need.

One is made again when its list changes. Where the index is out of reach the test is skipped;
anything else that fails is a failure.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / "build"
#: What pip says when the registry is out of reach.
NO_NETWORK = ("connection broken", "NewConnectionError", "ConnectTimeout", "NameResolutionError")


def python_with(requirements: Path, name: str) -> Path:
    """The interpreter of the environment build/NAME/venv, which has what the file lists."""
    venv = BUILD / name / "venv"
    python = venv / "bin" / "python"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp = venv / "requirements.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--retries", "2", "--timeout", "15"]
    done = subprocess.run(
        [*pip, "--requirement", str(requirements)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        if any(sign in done.stderr for sign in NO_NETWORK):
            pytest.skip(f"what {name} needs cannot be installed: the package registry is away")
        pytest.fail(f"pip could not install {requirements}:\n{done.stderr[-2000:]}")
    stamp.write_text(wanted)
    return python
