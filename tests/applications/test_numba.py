# SPDX-License-Identifier: Apache-2.0
"""numba-cuda, unmodified, with `sluice run`: it compiles locally and computes on the software GPU.

Skipped where its packages cannot be fetched. docs/applications.md says which way its code takes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from control_plane import PYTHON_PATH, native_worker, running, wait_for

APPLICATION = Path(__file__).with_name("numba_app.py")
EXPECTED = """\
elementwise: right, 100003 elements, checksum f98a0801
matrix product: right, 5810 elements, checksum 191a36b1
"""

pytestmark = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_numba_computes_on_a_vgpu(applications_python: Path, tmp_path: Path, channel: str) -> None:
    with running(tmp_path) as plane:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "sluice.guest_runtime", "run"),
                *(str(applications_python), "-I", "-W", "ignore", str(APPLICATION)),
            ],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")},
                "PYTHONPATH": str(PYTHON_PATH),
                "SLUICE_SERVER_SOCKET": str(plane.socket_path),
                "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
                "SLUICE_CHANNEL": channel,
                "SLUICE_STATS": "1",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        facts = [line for line in done.stdout.splitlines() if not line.startswith("# ")]
        assert facts == EXPECTED.splitlines()
        # On Sluice and nowhere else: the device's name, the client's count, the pool's record.
        assert "# device: Sluice software GPU" in done.stdout
        counted = re.search(r"sluice: (\d+) asynchronous commands, (\d+) round trips", done.stderr)
        assert counted
        assert int(counted[1]) > 2
        wait_for(lambda: not plane.grants())
        [session] = plane.sessions("ended")
        assert session["channel"] == channel
