# SPDX-License-Identifier: Apache-2.0
"""500 sessions that lose their network at once, again and again, and all of it at the same address.

Real controller, server, workers and programs; the data port has far fewer places than that, so
most are turned away first and come again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for

from sluice.config.native_files import NativeFileMissing, find_native
from tests.withstand.prompted import Prompted, build_programs

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

MANY, BREAKS, AT_ONCE = 500, 3, 4
SERVER = {"advertise_addr": "127.0.0.2", "context_overhead_mib": 16}
GPUS = {"SLUICE_SOFTGPU_COUNT": "8", "SLUICE_SOFTGPU_MEMORY_MIB": "65536"}


def opened(plane: ControlPlane, programs: list[Prompted]) -> None:
    """Starts so many more, a few at a time."""
    while len(programs) < MANY:
        few = [Prompted(plane, "tcp", SLUICE_RATIO="1", SLUICE_GMEM="16") for _ in range(AT_ONCE)]
        programs += few
        for program in few:
            program.say("open")
        assert {program.answer() for program in few} == {"open: ok"}


def test_five_hundred_lose_and_regain_their_network_at_once(tmp_path: Path) -> None:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    build_programs()
    programs: list[Prompted] = []
    with (
        running(tmp_path, server=SERVER, environment=GPUS) as plane,
        BreakingNetwork(plane.data_port) as network,
    ):
        try:
            opened(plane, programs)
            before = {session["id"] for session in plane.sessions()}
            for _ in range(BREAKS):
                network.cut()
                for program in programs:
                    program.say("compute 1000")
                assert {p.answer() for p in programs} == {"compute: wrong 0 of 1000"}
            assert {session["id"] for session in plane.sessions()} == before
            assert len(before) == MANY
        finally:
            for program in programs:
                program.kill()
        wait_for(lambda: not plane.grants(), message="the grants to return")
