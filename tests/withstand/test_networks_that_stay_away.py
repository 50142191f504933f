# SPDX-License-Identifier: Apache-2.0
"""Sessions whose network does not come back in time: a CUDA error that says so, and nothing stays.

Real controller, servers, relay and workers on the software GPU; the way to the data port is a
BreakingNetwork. The grace is short here, as these tests wait for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for
from holder import Holder
from relay_host import relay_host
from vsock_relay import vsock_relay_host

from sluice.server.workers.session_start import ResumeTerms
from tests.compatibility.recording.stand_ins import has_compiler

from .at_work import Start, relayed, working
from .prompted import Prompted
from .traces import LIMIT

GRACE_SECONDS = 8


@pytest.fixture(scope="module")
def plane(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server that tells its clients to come through the network that breaks."""
    server = {"advertise_addr": "127.0.0.2", "network_grace_seconds": GRACE_SECONDS}
    with running(tmp_path_factory.mktemp("node"), server=server) as control_plane:
        yield control_plane


@pytest.fixture
def network(plane: ControlPlane) -> Iterator[BreakingNetwork]:
    """The way to it."""
    with BreakingNetwork(plane.data_port) as way:
        yield way


def is_told(plane: ControlPlane, program: Prompted) -> None:
    """It gets the error, keeps it, and its grant is given back."""
    wait_for(lambda: "error" in program.ask("worked"), GRACE_SECONDS + LIMIT, "the error")
    assert "error 999" in program.ask("wait")
    wait_for(lambda: not plane.grants(), GRACE_SECONDS + LIMIT, "the grant's end")


def test_a_program_is_told_when_nothing_comes_back(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    network.refuse()
    network.cut()
    is_told(plane, program)
    program.say("quit")
    assert "could not be reached again in time" in program.errors()


def test_so_is_one_whose_relay_does_not_get_through(
    plane: ControlPlane, network: BreakingNetwork, start: Start, tmp_path: Path
) -> None:
    with relay_host(plane, tmp_path) as host:
        program = relayed(host, start)
        network.refuse()
        network.cut()
        is_told(plane, program)
        wait_for(lambda: not host.relays(), GRACE_SECONDS + LIMIT, "the relay's end")
        program.say("quit")
        assert "in time" in program.errors()


@pytest.mark.skipif(
    not has_compiler(), reason="there is no C compiler for what stands in for the guest's device"
)
async def test_so_is_one_in_a_guest(
    plane: ControlPlane, network: BreakingNetwork, short_path: Path
) -> None:
    terms = ResumeTerms(GRACE_SECONDS, GRACE_SECONDS)
    async with vsock_relay_host(plane, short_path, terms) as guest:
        holder = await asyncio.to_thread(Holder, guest.environment())
        assert await asyncio.to_thread(holder.work) == 0
        [session] = guest.lifecycle.served
        network.refuse()
        network.cut()
        await asyncio.wait_for(session.gone.wait(), GRACE_SECONDS + LIMIT)
        assert await asyncio.to_thread(holder.work) != 0
        holder.kill()
        await guest.quiet(GRACE_SECONDS + LIMIT)
