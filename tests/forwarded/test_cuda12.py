# SPDX-License-Identifier: Apache-2.0
"""Programs compiled against CUDA 12's headers, by libcudart.so.12: as the same ones for 13 print.

Client, worker and software GPU are the ones of CUDA 13; only the runtime in the program is another.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from static_pool import StaticPool

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "demo"))
from programs import Program, facts, load_programs  # noqa: E402

BUILT = ROOT / "build" / "programs" / "cuda12"
#: What neither this channel nor the software GPU has, in programs of 13 as well.
ELSEWHERE = {
    "green_context": "the software GPU has no green contexts",
    "link_ptx": "the software GPU links nothing",
    "two_nodes": "wants GPUs of two nodes",
}
OVER_TCP = ("vector_add", "device_query", "batch_copies", "conditional", "graphs")
PROGRAMS = load_programs(milestone_only=False, devices=2)


@pytest.fixture(scope="session")
def built() -> Path:
    build = ROOT / "tests" / "programs" / "build.py"
    subprocess.run([sys.executable, build], check=True, timeout=300)
    return BUILT


def expected(program: Program) -> str:
    """What it prints: but for the version of the runtime the same as for CUDA 13."""
    assert program.expected is not None
    return program.expected.replace("runtime 13.0,", "runtime 12.9,")


def run(pool: StaticPool, built: Path, program: Program) -> None:
    done = subprocess.run(
        program.command(built),
        env=pool.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert facts(done.stdout) == facts(expected(program)), done.stderr
    assert done.returncode == program.exit_code, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_prints_what_it_prints_for_cuda_13(tmp_path: Path, built: Path, program: Program) -> None:
    if program.name in ELSEWHERE:
        pytest.skip(ELSEWHERE[program.name])
    with StaticPool(tmp_path, vgpus=2, gpus=2) as pool:
        run(pool, built, program)


@pytest.mark.parametrize("name", OVER_TCP)
def test_over_tcp_as_well(tmp_path: Path, built: Path, name: str) -> None:
    [program] = [one for one in PROGRAMS if one.name == name]
    with StaticPool(tmp_path, tcp=True) as pool:
        run(pool, built, program)
