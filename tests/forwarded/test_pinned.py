# SPDX-License-Identifier: Apache-2.0
"""Pinned host memory, over shared memory, a relay and TCP.

Where CUDA takes it for the device's: over TCP no memory is shared, so the client does what the
device would, and kernels get copies. And pools of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

EXPECTED = Path(__file__).resolve().parents[1] / "programs" / "expected"
WAYS = ("shm", "relay", "tcp")


@pytest.fixture(scope="session")
def built() -> Path:
    return build_programs("pinned_unified", "host_pools")


def prints_what_is_expected(pool: StaticPool, program: Path) -> None:
    done = subprocess.run(
        [program], env=pool.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    log = pool.log.read_text()
    assert done.stdout == (EXPECTED / f"{program.name}.out").read_text(), done.stderr
    assert done.returncode == 0, done.stderr
    assert "poisoned" not in log, log


@pytest.mark.parametrize("way", WAYS)
def test_fills_and_copies_take_it_for_the_devices(tmp_path: Path, built: Path, way: str) -> None:
    with StaticPool(tmp_path, tcp=way == "tcp", relay=way == "relay") as pool:
        prints_what_is_expected(pool, built / "pinned_unified")


@pytest.mark.parametrize("way", WAYS)
def test_pools_of_it_are_in_the_order_of_streams(tmp_path: Path, built: Path, way: str) -> None:
    with StaticPool(tmp_path, tcp=way == "tcp", relay=way == "relay") as pool:
        prints_what_is_expected(pool, built / "host_pools")


@pytest.mark.parametrize("way", WAYS)
def test_pools_of_it_give_nobody_what_is_in_use(tmp_path: Path, way: str) -> None:
    turns = Path(__file__).with_name("host_pool_turns.py")
    with StaticPool(tmp_path, tcp=way == "tcp", relay=way == "relay") as pool:
        for seed in range(1, 4):
            run = pool.run(sys.executable, str(turns), str(seed))
            assert run.stdout == "right\n", f"seed {seed}: {run.stdout}{run.stderr}"
