# SPDX-License-Identifier: Apache-2.0
"""One process with two vGPUs: two GPUs, or two slices of one, over memory and over TCP.

Whatever the vGPUs lie on, a program sees two devices that can be each other's peers.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

from sluice.config.native_files import NativeFileMissing, find_native

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    return build_programs("two_vgpus") / "two_vgpus"


@pytest.mark.parametrize("tcp", [False, True], ids=["shm", "tcp"])
@pytest.mark.parametrize("gpus", [1, 2], ids=["one GPU", "two GPUs"])
def test_a_process_with_two_vgpus_prints_what_it_would_with_two_gpus(
    tmp_path: Path, program: Path, gpus: int, tcp: bool
) -> None:
    with StaticPool(tmp_path, vgpus=2, gpus=gpus, tcp=tcp) as pool:
        done = subprocess.run(
            [program],
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (PROGRAMS / "expected" / "two_vgpus.out").read_text()
    assert done.stderr == ""
    assert "ERROR" not in pool.log.read_text()
