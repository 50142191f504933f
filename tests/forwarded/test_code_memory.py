# SPDX-License-Identifier: Apache-2.0
"""What code takes of a GPU is the vGPU's, also on the software GPU: the steps of
tests/gpu/code_memory.py, by Sluice's account. What the driver says needs a card.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from static_pool import StaticPool

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
sys.path.insert(0, str(ROOT / "tests" / "demo"))

from code_memory import PROGRAM, judge  # noqa: E402

GMEM = 16


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "TCP"])
def test_no_way_leads_beyond_the_vgpu(tmp_path: Path, tcp: bool) -> None:
    with StaticPool(tmp_path, memory_mib=GMEM, tcp=tcp) as pool:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=pool.environment(SLUICE_GMEM=str(GMEM)),
            input="\n" * 100,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = {s["step"]: problem for s in said if (problem := judge(s, said[0]["left"]))}
    assert not wrong, done.stderr
    assert done.returncode == 0, done.stderr
    assert len(said) > 20
    assert said[-1]["made"] <= GMEM * 16
