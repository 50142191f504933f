# SPDX-License-Identifier: Apache-2.0
"""A GPU node that reboots under clients elsewhere: they are told at once, as their session is gone.

Real controller, server, worker and client over TCP on the software GPU; the way to the data port is
a BreakingNetwork. All of the node's processes are killed and its run folder, which no reboot
leaves, is emptied; then a server of the same name begins.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for
from standing_processes import end_standing_processes

from .at_work import Start, goes_on, working
from .prompted import ENDLESS, Prompted
from .traces import LIMIT

#: Much longer than a test waits: whoever is told in time was not told by its end.
GRACE_SECONDS = 900


@pytest.fixture
def plane(built: None, tmp_path: Path) -> Iterator[ControlPlane]:
    """A server that tells its clients to come through the network that breaks."""
    server = {
        "advertise_addr": "127.0.0.2",
        "network_grace_seconds": GRACE_SECONDS,
        "closed_grace_seconds": GRACE_SECONDS,
    }
    with running(tmp_path, server=server) as control_plane:
        yield control_plane


@pytest.fixture
def network(plane: ControlPlane) -> Iterator[BreakingNetwork]:
    """The way to it."""
    with BreakingNetwork(plane.data_port) as way:
        yield way


def goes_down(plane: ControlPlane) -> None:
    """Nothing of the node is left but what lies on its disk."""
    plane.stop("server", signal.SIGKILL)
    for pid in plane.worker_pids():
        os.kill(pid, signal.SIGKILL)
    end_standing_processes(plane.folder / "run")
    shutil.rmtree(plane.folder / "run")


def reboots(plane: ControlPlane, network: BreakingNetwork, how: str) -> None:
    """Once in good order: clients see the end of their connections; or the power fails."""
    if how == "the power fails":  # nobody says anything until the next boot's kernel does
        network.silence()
        for connection in network.connections:
            connection.hides_ends = True
    goes_down(plane)
    plane.start_server()
    if how == "the power fails":
        network.silence(False)
        for connection in network.connections:
            connection.cut()


def is_told(plane: ControlPlane, programs: list[Prompted]) -> None:
    """Every call of each fails from now on, one line says why, and the pool has all back."""
    for program in programs:
        assert "error 999" in program.ask("compute")
        assert "error 999" in program.ask("wait")
        program.say("quit")
        assert "is over, or was never here" in program.errors()
    wait_for(lambda: not plane.grants() and not plane.sessions(), LIMIT, "the grants' end")


@pytest.mark.parametrize("how", ["in good order", "the power fails"])
def test_programs_of_a_node_that_reboots_are_told_at_once(
    plane: ControlPlane, network: BreakingNetwork, start: Start, how: str
) -> None:
    waiting, idle = start("tcp"), start("tcp")
    busy = working(start, 20, "tcp")
    assert waiting.ask(f"launch {ENDLESS}") == "launch: ok"
    waiting.say("wait")
    before = {session["id"] for session in plane.sessions()}
    assert len(before) == 3
    reboots(plane, network, how)
    assert waiting.answer(LIMIT) == "wait: error 999 cudaErrorUnknown"
    wait_for(lambda: "error 999" in busy.ask("worked"), LIMIT, "the error")
    is_told(plane, [waiting, idle, busy])
    another = working(start, 20, "tcp")
    goes_on(another, 20)
    assert before.isdisjoint(session["id"] for session in plane.sessions())


def test_while_the_node_is_down_programs_wait(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    """It could be the network: they are told when somebody answers who knows no such session."""
    program = working(start, 20, "tcp")
    refused = network.refused
    network.refuse()
    goes_down(plane)
    program.say("wait")
    wait_for(lambda: network.refused >= refused + 5, LIMIT, "it to look for its node")
    assert program.is_silent(0)
    plane.start_server()
    network.refuse(False)
    assert program.answer(LIMIT) == "wait: error 999 cudaErrorUnknown"
    is_told(plane, [program])
