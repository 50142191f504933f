# SPDX-License-Identifier: Apache-2.0
"""Registration, launches and resets from many threads at once, under ThreadSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "native"
SOURCES = ("device.cc", "error.cc", "launch.cc", "registration.cc", "state.cc")


@pytest.mark.slow
def test_threads_do_not_race(generated: Path, tmp_path: Path) -> None:
    program = tmp_path / "races"
    sources = [HERE / "races.cc", HERE / "fake_driver.cc"]
    sources += [NATIVE / "client" / "cudart" / source for source in SOURCES]
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread"]
    includes = [f"-I{generated}", f"-I{NATIVE}"]
    subprocess.run(["g++", *flags, *includes, "-o", program, *sources], check=True)
    result = subprocess.run(
        [program],
        env={"TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
