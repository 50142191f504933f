# SPDX-License-Identifier: Apache-2.0
"""Every test program by the shared runtime of its CUDA version, over shared memory and TCP.

test_cuda12.py has those of CUDA 12 over shared memory, test_runtimes_inside.py programs with the
runtime inside. Client, server and worker are real; the GPU is the software GPU.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from static_pool import StaticPool

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "demo"))
from programs import Program, facts, load_programs, natively_with  # noqa: E402

BUILT = ROOT / "build" / "programs"
#: Processes that share memory have to be known to belong together, which a network tells nobody.
OF_A_JOB = {"shared_pool"}
#: test_waits.py has the first over both channels; the other wants GPUs of two nodes.
ELSEWHERE = {"other_streams", "two_nodes"}
CASES = [
    pytest.param(program, channel, major, id=f"{program.name}-{channel}-{major}")
    for channel, majors in (("shm", (13,)), ("tcp", (12, 13)))
    for major in majors
    for program in load_programs(milestone_only=False, devices=2)
    if program.softgpu
    and program.name not in ELSEWHERE
    and (program.tcp or channel != "tcp")
    and (program.cuda12 or major != 12)
]


@pytest.fixture(scope="session")
def built() -> Path:
    build = ROOT / "tests" / "programs" / "build.py"
    subprocess.run([sys.executable, build], check=True, timeout=300)
    return BUILT


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StaticPool]]:
    """One for each channel."""
    shm, tcp = tmp_path_factory.mktemp("shm"), tmp_path_factory.mktemp("tcp")
    with StaticPool(shm, 2, gpus=2) as one, StaticPool(tcp, 2, gpus=2, tcp=True) as other:
        yield {"shm": one, "tcp": other}


@pytest.mark.parametrize(("program", "channel", "major"), CASES)
def test_prints_what_it_prints_natively(
    pools: dict[str, StaticPool], built: Path, program: Program, channel: str, major: int
) -> None:
    folder = built if major == 13 else built / "cuda12"
    job = {"SLUICE_JOB": secrets.token_hex(16)} if program.name in OF_A_JOB else {}
    done = subprocess.run(
        program.command(folder),
        env=pools[channel].environment(**job),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert facts(done.stdout) == facts(natively_with(program, major)), done.stderr
    assert done.returncode == program.exit_code, done.stderr
