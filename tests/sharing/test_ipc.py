# SPDX-License-Identifier: Apache-2.0
"""CUDA IPC and what else two processes share, with a session each, on the software GPU.

The program prints what it would natively; descriptors go back with the session that shared them.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from open_files import count_descriptors
from static_pool import StaticPool, build_programs

from sluice.config.native_files import NativeFileMissing, find_native

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
PARTNER = Path(__file__).with_name("pool_partner.py")
NAMES = ("ipc", "shared_allocations", "shared_pool")


@pytest.fixture(scope="session")
def programs() -> Path:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    return build_programs(*NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sandbox", ["on", "off"])
@pytest.mark.parametrize("tcp", [False, True], ids=["shm", "tcp"])
def test_two_processes_share_memory_and_events(
    tmp_path: Path, programs: Path, tcp: bool, sandbox: str, name: str
) -> None:
    with StaticPool(tmp_path, tcp=tcp, sandbox=sandbox) as pool:
        before = count_descriptors(pool.process.pid)
        # processes elsewhere have no user that the server knows: what they share is their job's
        done = subprocess.run(
            [programs / name],
            env=pool.environment(**({"SLUICE_JOB": secrets.token_hex(16)} if tcp else {})),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr + pool.log.read_text()
        assert done.stdout == (PROGRAMS / "expected" / f"{name}.out").read_text()
        deadline = time.monotonic() + 60
        # sessions leave nothing; the warm worker, which has two, may not have been there
        while count_descriptors(pool.process.pid) > before + 2:
            assert time.monotonic() < deadline, "descriptors of what was shared stay behind"
            time.sleep(0.05)
    assert "ERROR" not in pool.log.read_text()


def test_a_pool_outlives_its_process_only_where_it_is_open(tmp_path: Path, programs: Path) -> None:
    """What is open stays; what is not is refused, though the exporter has freed nothing."""
    del programs  # which skips where nothing is built
    ends = socket.socketpair()
    with StaticPool(tmp_path) as pool:
        partners = [
            subprocess.Popen(
                [sys.executable, PARTNER, role, str(end.fileno())],
                env=pool.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[end.fileno()],
                text=True,
            )
            for role, end in zip(("export", "import"), ends, strict=True)
        ]
        exporter, importer = partners
        try:
            assert importer.stdout
            assert importer.stdin
            assert importer.stdout.readline() == "ready 41\n"
            exporter.kill()
            exporter.wait(60)
            importer.stdin.write("go on\n")
            importer.stdin.flush()
            assert importer.stdout.readline() == "refused 1 kept 41\n"
            assert importer.wait(60) == 0
        finally:
            for partner in partners:
                partner.kill()
                partner.communicate()
            for end in ends:
                end.close()
