# SPDX-License-Identifier: Apache-2.0
"""Whose usage it is that a host's users make: from the socket's credentials to the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

from control_plane import PYTHON_PATH, running


def sluice(address: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sluice.cli", *words, "--controller", address],
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_a_users_grants_are_the_users_usage(tmp_path: Path) -> None:
    with running(tmp_path, fake=True) as plane:
        client = plane.client(gmem_mib=512, ratio_percent=10)
        user = pwd.getpwuid(os.getuid()).pw_name
        [grant] = plane.grants()
        assert (grant["person"], grant["label"]) == (user, "")
        address = f"127.0.0.1:{plane.rest_port}"
        [share] = json.loads(sluice(address, "usage", "--people", "-o", "json"))["shares"]
        assert (share["person"], share["project"], share["label"]) == (user, "default", "")
        assert share["vgpu_seconds"] > 0
        assert share["memory_mib_seconds"] / share["vgpu_seconds"] == 512
        [row] = csv.DictReader(io.StringIO(sluice(address, "usage", "--people", "-o", "csv")))
        assert row["person"] == user
        assert user in sluice(address, "usage", "--people")
        client.kill()
