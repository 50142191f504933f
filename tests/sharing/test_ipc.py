# SPDX-License-Identifier: Apache-2.0
"""CUDA IPC between two processes with a session each, on the software GPU.

The program prints what it would natively; descriptors go back with the session that shared them.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

from sluice.config.native_files import NativeFileMissing, find_native

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"


@pytest.fixture(scope="session")
def programs() -> Path:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    return build_programs("ipc", "shared_allocations")


def descriptors_of(process: subprocess.Popen[bytes]) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


@pytest.mark.parametrize("name", ["ipc", "shared_allocations"])
@pytest.mark.parametrize("sandbox", ["on", "off"])
@pytest.mark.parametrize("tcp", [False, True], ids=["shm", "tcp"])
def test_two_processes_share_memory_and_events(
    tmp_path: Path, programs: Path, tcp: bool, sandbox: str, name: str
) -> None:
    with StaticPool(tmp_path, tcp=tcp, sandbox=sandbox) as pool:
        before = descriptors_of(pool.process)
        done = subprocess.run(
            [programs / name],
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr + pool.log.read_text()
        assert done.stdout == (PROGRAMS / "expected" / f"{name}.out").read_text()
        deadline = time.monotonic() + 5
        # each session left its worker's control socket and nothing else; the warm one is new
        while descriptors_of(pool.process) > before + 3:
            assert time.monotonic() < deadline, "descriptors of what was shared stay behind"
            time.sleep(0.05)
    assert "ERROR" not in pool.log.read_text()
