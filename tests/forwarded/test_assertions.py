# SPDX-License-Identifier: Apache-2.0
"""The text of an assertion that fails in a kernel reaches the program's standard error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"


@pytest.fixture(scope="session")
def built() -> Path:
    return build_programs("device_assert")


@pytest.mark.parametrize("tcp", [False, True])
def test_text_and_error(tmp_path: Path, built: Path, tcp: bool) -> None:
    """Natively the driver prints it at the synchronisation that returns the error."""
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = subprocess.run(
            [str(built / "device_assert")],
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == (PROGRAMS / "expected" / "device_assert.out").read_text(), done.stderr
    assert "Assertion `" in done.stderr
    assert "limit" in done.stderr
