# SPDX-License-Identifier: Apache-2.0
"""A process with two devices of one node and one of another: work that names others than the
current one.

Skipped where the native part is not built.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for
from network_program import built, start
from node_pair import clean, of_both

PROGRAM = Path(__file__).with_name("third_device_program.py")

pytestmark = pytest.mark.skipif(not built(), reason="the native part is not built")


def test_order_and_reach_are_those_of_the_devices_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with running(tmp_path, environment={"SLUICE_SOFTGPU_COUNT": "2"}) as first:
        second = ControlPlane(tmp_path / "b", server={"node_name": "node-b"}, pool_of=first)
        try:
            second.start_server()
            told = {**of_both(first), "SLUICE_VGPU": "3"}
            with start(tmp_path, sys.executable, PROGRAM, **told) as process:
                out, error = process.communicate(timeout=120)
            assert out == "all of it\n", error
            assert "is lost to this process" not in error
            wait_for(lambda: clean(first, second))
        finally:
            second.close()
