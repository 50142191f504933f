# SPDX-License-Identifier: Apache-2.0
"""Pinned host memory where CUDA takes it for the device's, over shared memory and TCP.

Over TCP no memory is shared, so the client does what the device would, and kernels get copies.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

EXPECTED = Path(__file__).resolve().parents[1] / "programs" / "expected"


@pytest.fixture(scope="session")
def built() -> Path:
    return build_programs("pinned_unified")


@pytest.mark.parametrize("tcp", [False, True])
def test_fills_and_copies_take_it_for_the_devices(tmp_path: Path, built: Path, tcp: bool) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = subprocess.run(
            [str(built / "pinned_unified")],
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        log = pool.log.read_text()
    assert done.stdout == (EXPECTED / "pinned_unified.out").read_text(), done.stderr
    assert done.returncode == 0, done.stderr
    assert "poisoned" not in log, log
