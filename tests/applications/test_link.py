# SPDX-License-Identifier: Apache-2.0
"""The driver's linker as far as Sluice has it: one piece of PTX, and a refusal of the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from control_plane import native_worker, running

from sluice.config.native_files import find_native

pytestmark = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")

SUCCESS, INVALID_VALUE, INVALID_IMAGE, INVALID_HANDLE, NOT_SUPPORTED = 0, 1, 200, 400, 801


def test_one_piece_of_ptx_is_linked_and_the_rest_is_refused_with_a_reason(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("link_calls.py"))],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
                "SLUICE_SERVER_SOCKET": str(plane.socket_path),
                "SLUICE_CHANNEL": "shm",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "before cuInit": True,
        "log at the start": ["", True],
        "add": SUCCESS,
        "complete": SUCCESS,
        "product ends with NUL": True,
        "add after complete": INVALID_VALUE,
        "destroy": SUCCESS,
        "destroy again": INVALID_HANDLE,
        "add to a destroyed link": INVALID_HANDLE,
        "launch": [40, 41, 42, 43],
        "two inputs": [
            SUCCESS,
            NOT_SUPPORTED,
            "the software GPU links no more than one piece of PTX",
            True,
        ],
        "a cubin": [NOT_SUPPORTED, "the software GPU links nothing but PTX", True],
        "no cubin": [INVALID_IMAGE, "", True],
        "no input": [INVALID_IMAGE, "nothing was added to the link", True],
        "max registers": [SUCCESS, "", True],
    }
