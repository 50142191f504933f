# SPDX-License-Identifier: Apache-2.0
"""Graph programs through client and worker, over shared memory and TCP: as they print natively."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
NAMES = ("graphs", "graph_host", "graph_copies", "attributes", "capture_errors")


@pytest.fixture(scope="session")
def built() -> Path:
    return build_programs(*NAMES)


def run(pool: StaticPool, program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program)],
        env=pool.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def expected(name: str) -> str:
    return (PROGRAMS / "expected" / f"{name}.out").read_text()


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_prints_what_it_prints_natively(tmp_path: Path, built: Path, name: str, tcp: bool) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = run(pool, built / name)
    assert done.stdout == expected(name), done.stderr
    assert done.returncode == 0, done.stderr


def test_graphs_leave_the_session_usable_when_a_capture_breaks(tmp_path: Path, built: Path) -> None:
    with StaticPool(tmp_path) as pool:
        done = run(pool, built / "capture_errors")
        log = pool.log.read_text()
    assert done.stdout.splitlines()[-1] == "the device afterwards: cudaSuccess"
    assert "poisoned" not in log, log
