# SPDX-License-Identifier: Apache-2.0
"""Waits for what nothing on the host can notice ask nobody, and no other stream is the wiser."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "programs"
WAITS = TESTS / "harness" / "waits_program.py"

channels = pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "TCP"])


@channels
def test_other_streams_have_what_the_host_waited_for(tmp_path: Path, tcp: bool) -> None:
    program = build_programs("other_streams") / "other_streams"
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = pool.run(program)
    assert done.stdout == (PROGRAMS / "expected" / "other_streams.out").read_text(), done.stderr
    assert done.returncode == 0, done.stderr


@channels
def test_moving_a_model_takes_no_round_trip(tmp_path: Path, tcp: bool) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = pool.run(sys.executable, WAITS)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["same"]
    assert said["waits"] == 0
    assert said["seen_waits"] == 1
