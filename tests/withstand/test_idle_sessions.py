# SPDX-License-Identifier: Apache-2.0
"""A session that waits for long uses no processor, however short its waits were before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from control_plane import ControlPlane, running

PROGRAM = Path(__file__).resolve().parents[1] / "harness" / "idle_program.py"
#: Longer than what both ends do every five seconds.
IDLE_SECONDS, AT_MOST = 12.0, 0.03  # of a processor, also where others slow it down


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_an_idle_session_uses_no_processor(built: None, tmp_path: Path, channel: str) -> None:
    with running(tmp_path) as plane, idle(plane, channel) as program:
        assert program.stdin
        assert program.stdout
        before = float(program.stdout.readline())
        [worker] = plane.session_worker_pids()
        workers = processor_seconds(worker)
        time.sleep(IDLE_SECONDS)
        workers = processor_seconds(worker) - workers
        program.stdin.write("\n")
        program.stdin.flush()
        its_own = float(program.stdout.readline()) - before
        program.stdin.write("\n")
        program.stdin.close()
        assert program.wait(60) == 0
    used = {"program": its_own, "worker": workers}
    assert max(used.values()) < AT_MOST * IDLE_SECONDS, used


def idle(plane: ControlPlane, channel: str) -> subprocess.Popen[str]:
    """The program."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env=plane.program_environment(SLUICE_CHANNEL=channel, SLUICE_GMEM="64"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
