# SPDX-License-Identifier: Apache-2.0
"""The connections that large copies over TCP have beside the session's own.

What is cut is in test_broken_connections.py, whose large copies have some.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running
from static_pool import build_programs

from sluice.protocol import frames
from sluice.protocol.frames import ResumeFlags
from sluice.server.listeners.resumption import proof

from .at_work import Start, goes_on, working
from .resuming import answered, asked_of, prove, session_key

EXPECTED = Path(__file__).resolve().parents[1] / "programs" / "expected"
SUBFLOW = ResumeFlags.SUBFLOW


@pytest.fixture
def plane(built: None, tmp_path: Path) -> Iterator[ControlPlane]:
    """A server that tells its clients to come through the network that is watched."""
    with running(tmp_path, server={"advertise_addr": "127.0.0.2"}) as control_plane:
        yield control_plane


@pytest.fixture
def network(plane: ControlPlane) -> Iterator[BreakingNetwork]:
    """The way to it."""
    with BreakingNetwork(plane.data_port) as way:
        yield way


def copies(plane: ControlPlane, **told: str) -> str:
    """Runs a program that copies much over TCP, and right; what it says on standard error."""
    done = subprocess.run(
        [build_programs("bulk_copies") / "bulk_copies"],
        env=plane.program_environment(SLUICE_GMEM="512", SLUICE_CHANNEL="tcp", **told),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (EXPECTED / "bulk_copies.out").read_text()
    return done.stderr


@pytest.mark.parametrize(("wanted", "are"), [(0, 0), (2, 2), (8, 4)])
def test_large_copies_have_connections_of_their_own(
    plane: ControlPlane, network: BreakingNetwork, wanted: int, are: int
) -> None:
    copies(plane, SLUICE_BULK_CONNECTIONS=str(wanted))
    first, *others = (c.passed for c in network.connections if c.passed > 1000)
    assert len(others) == are
    if others:
        assert sum(others) > 5 * first
        assert min(others) > max(others) / 2


def test_large_copies_come_in_fewer_pieces_over_several_connections(
    plane: ControlPlane, network: BreakingNetwork
) -> None:
    pieces = {}
    for connections in (0, 4):
        said = copies(plane, SLUICE_BULK_CONNECTIONS=str(connections), SLUICE_STATS="1")
        found = re.search(r"(\d+) asynchronous commands of CopyToDevice", said)
        assert found, said
        pieces[connections] = int(found[1])
    assert pieces[4] < pieces[0] / 2


def test_nobody_else_gives_a_session_subflows(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    (session,) = plane.sessions()
    key = session_key(plane)
    for number in (4, 8, 2**32 - 1):
        with plane.connect_data() as connected:
            reply = answered(connected, asked_of(session["id"], 0, SUBFLOW, number))
            assert reply.status != 0
            assert b"[server] bulk_connections here is 4" in reply.message
    tried = {
        "another key": (bytes(32), 0, 0),
        "another number": (key, 0, 1),
        "an epoch that never was": (key, 7, 0),
    }
    for what, (its_key, epoch, number) in tried.items():
        with plane.connect_data() as connected:
            asked = asked_of(session["id"], epoch, SUBFLOW, number)
            reply = answered(connected, asked)
            assert reply.status == 0
            proven = proof(b"client", its_key, replace(asked, subflow=0), reply.nonce)
            prove(connected, proven)
            connected.sendall(bytes(frames.StreamRecord.BYTES))
            connected.settimeout(10)
            greeting = b""
            while got := connected.recv(4096):
                greeting += got
            greeted = len(greeting) == frames.StreamRecord.BYTES
            assert greeted == (what == "an epoch that never was"), what
        goes_on(program, 20)
    network.cut()
    goes_on(program, 20)
    assert [s["id"] for s in plane.sessions()] == [session["id"]]
