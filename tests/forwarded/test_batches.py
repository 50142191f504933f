# SPDX-License-Identifier: Apache-2.0
"""Batches of copies and what graph nodes hold, over shared memory and TCP: as they print natively.

The software GPU has no batches; the client makes single copies of them, so none reaches it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

PROGRAMS = Path(__file__).resolve().parents[2] / "tests" / "programs"
NAMES = ("batch_copies", "graph_params")


@pytest.fixture(scope="session")
def built() -> Path:
    return build_programs(*NAMES)


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "TCP"])
@pytest.mark.parametrize("name", NAMES)
def test_prints_what_it_prints_natively(tmp_path: Path, built: Path, name: str, tcp: bool) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = subprocess.run(
            [str(built / name)],
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == (PROGRAMS / "expected" / f"{name}.out").read_text(), done.stderr
    assert done.returncode == 0, done.stderr
