# SPDX-License-Identifier: Apache-2.0
"""500 sessions whose network is away for a while, again and again, and all of it at one address.

Real controller, server, workers and programs; the data port has far fewer places than that, so
when the network is there again most are turned away first and come again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for

from sluice.config.native_files import NativeFileMissing, find_native
from tests.withstand.prompted import Prompted, build_programs

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

MANY, AT_ONCE = 500, 4
#: How the network is while it is away: whoever dials is refused, or gets no word.
OUTAGES = ("refuses", "is silent", "refuses")
#: How often each is turned away on average, while it pauses longer and longer: some seconds.
REFUSED = 5
LIMIT = 120
#: No session is given up, though each loses a connection that was closed: its program may be slow.
SERVER = {
    "advertise_addr": "127.0.0.2",
    "context_overhead_mib": 16,
    "network_grace_seconds": 300,
    "closed_grace_seconds": 300,
}
GPUS = {"SLUICE_SOFTGPU_COUNT": "8", "SLUICE_SOFTGPU_MEMORY_MIB": "65536"}


def opened(plane: ControlPlane, programs: list[Prompted]) -> None:
    """Starts so many more, a few at a time."""
    while len(programs) < MANY:
        few = [Prompted(plane, "tcp", SLUICE_RATIO="1", SLUICE_GMEM="16") for _ in range(AT_ONCE)]
        programs += few
        for program in few:
            program.say("open")
        assert {program.answer() for program in few} == {"open: ok"}


@contextmanager
def away(plane: ControlPlane, network: BreakingNetwork, how: str) -> Iterator[None]:
    """All lose it, look for it in vain, and at the end find it again at the same moment."""
    refused, dialled = network.refused, len(network.connections)
    if how == "refuses":
        network.refuse()
    else:
        network.silence()
    network.cut()
    yield

    def looked() -> bool:
        if how == "refuses":
            return network.refused >= refused + MANY * REFUSED
        return len(network.connections) >= dialled + MANY

    wait_for(looked, LIMIT, "all to look for it")
    wait_for(
        lambda: all(session["disconnected_since"] for session in plane.sessions()),
        LIMIT,
        "all to be shown without a connection",
        longest_pause=1,
    )
    network.refuse(False)
    network.silence(False)


def not_over(plane: ControlPlane, programs: list[Prompted]) -> str:
    """What is left when all have been told to end."""
    running = [program for program in programs if program.process.poll() is None]
    sessions, records = plane.sessions(), plane.worker_records()
    return (
        f"the grants to return: {len(plane.grants())} have not; {len(running)} programs run, "
        f"{len(records)} workers; sessions: {sessions[:3]}"
    )


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
            for how in OUTAGES:
                with away(plane, network, how):
                    for program in programs:
                        program.say("compute 1000")
                assert {p.answer() for p in programs} == {"compute: wrong 0 of 1000"}
            assert {session["id"] for session in plane.sessions()} == before
            assert len(before) == MANY
            for program in programs:
                program.say("quit")
            wait_for(
                lambda: not plane.grants(),
                LIMIT,
                lambda: not_over(plane, programs),
                longest_pause=1,
            )
        finally:
            for program in programs:
                program.kill()
