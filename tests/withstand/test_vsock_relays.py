# SPDX-License-Identifier: Apache-2.0
"""Guests whose only channel is vsock, on a host without a GPU: relays carry their connections.

Real controller, node, relays and workers on the software GPU; the way to the node is a
BreakingNetwork, and the guest's programs are this host's (tests/harness/vsock_relay.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running
from holder import Holder
from open_files import count_descriptors
from static_pool import build_programs
from vsock_relay import OWNER, VsockGuest, vsock_relay_host

from sluice.server.sessions.records import AT_ONCE, Session, StreamWay
from sluice.server.workers.session_start import ResumeTerms
from tests.compatibility.recording.stand_ins import has_compiler

from .hostile_vsock import HostileGuest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))

import programs as cuda

#: A network that comes back has time to, also on a machine that stands still for a while.
GRACE_SECONDS, CLOSED_SECONDS = 300, 3
QUIET_SECONDS = 60
NAMES = ("vector_add", "streams_events", "host_callback", "bulk_copies", "managed", "oom")

pytestmark = pytest.mark.skipif(
    not has_compiler(), reason="there is no C compiler for what stands in for the guest's device"
)


@pytest.fixture(scope="module")
def plane(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The host with the GPU, whose data port is behind the network that breaks."""
    server = {
        "advertise_addr": "127.0.0.2",
        "network_grace_seconds": GRACE_SECONDS,
        "closed_grace_seconds": CLOSED_SECONDS,
    }
    with running(tmp_path_factory.mktemp("node"), server=server) as control_plane:
        yield control_plane


@pytest.fixture
def network(plane: ControlPlane) -> Iterator[BreakingNetwork]:
    with BreakingNetwork(plane.data_port) as way:
        yield way


@pytest.fixture
async def guest(
    plane: ControlPlane, network: BreakingNetwork, short_path: Path
) -> AsyncIterator[VsockGuest]:
    terms = ResumeTerms(GRACE_SECONDS, CLOSED_SECONDS)
    async with vsock_relay_host(plane, short_path, terms) as made:
        yield made


async def held(guest: VsockGuest) -> tuple[Holder, Session]:
    """A program that has worked, and its session here."""
    holder = await asyncio.to_thread(Holder, guest.environment())
    assert await asyncio.to_thread(holder.work) == 0
    [session] = guest.lifecycle.served
    return holder, session


@pytest.mark.parametrize("name", NAMES)
async def test_programs_print_what_they_print_near_their_gpu(guest: VsockGuest, name: str) -> None:
    [program] = [p for p in cuda.load_programs(milestone_only=False) if p.name == name]
    await asyncio.to_thread(build_programs, name)
    run = await asyncio.to_thread(cuda.run_on_host, program, guest.environment())
    assert run.problem() == "", run.err
    # one that closed its session is not waited for as one that may come back
    await guest.quiet(CLOSED_SECONDS)


async def test_the_session_is_the_vms_in_the_pools_books(
    plane: ControlPlane, guest: VsockGuest
) -> None:
    holder, mine = await held(guest)
    async with asyncio.timeout(QUIET_SECONDS):  # what was before may still be shown
        while len(shown := [s for s in plane.sessions() if s["state"] == "running"]) != 1:
            await asyncio.sleep(0.05)
    [session] = shown
    assert (session["channel"], session["node"], session["relay"]) == ("relay", "node-a", "node-b")
    assert (session["domain_uuid"], session["domain_name"]) == (OWNER.uuid, OWNER.name)
    assert (mine.requester.channel, mine.relayed_to) == ("vsock", "node-a")
    holder.kill()
    await guest.quiet(QUIET_SECONDS)


async def test_work_goes_on_whichever_part_of_the_way_is_lost(
    guest: VsockGuest, network: BreakingNetwork
) -> None:
    holder, session = await held(guest)
    for _ in range(3):
        network.cut()
        assert await asyncio.to_thread(holder.work) == 0
        os.kill(session.worker.record.pid, signal.SIGKILL)
        assert await asyncio.to_thread(holder.work) == 0
    assert guest.lifecycle.served == [session]
    assert session.disconnected_since == 0
    holder.kill()
    await guest.quiet(QUIET_SECONDS)


async def test_work_goes_on_however_often_the_way_is_lost(
    guest: VsockGuest, network: BreakingNetwork
) -> None:
    holder, session = await held(guest)
    for _ in range(AT_ONCE + 3):  # relays that follow more slowly among them
        network.cut()
        assert await asyncio.to_thread(holder.work) == 0
    assert guest.lifecycle.served == [session]
    holder.kill()
    await guest.quiet(QUIET_SECONDS)


@pytest.mark.parametrize("most", [3_000, 200_000])
async def test_programs_compute_the_same_whatever_is_cut(
    guest: VsockGuest, network: BreakingNetwork, most: int
) -> None:
    name = "module_launch" if most < 10_000 else "bulk_copies"
    program = await asyncio.to_thread(build_programs, name) / name
    whole = await guest.run(program)
    assert whole.returncode == 0, whole.stderr
    most = most if most < 10_000 else 30_000_000
    for more in range(4):
        network.cut_within(most, seed=more)
        done = await guest.run(program)
        assert (done.returncode, done.stdout) == (0, whole.stdout), done.stderr
        if network.cuts >= 4:
            break
    assert network.cuts >= 4
    network.cut_within(None)
    await guest.quiet(QUIET_SECONDS)


async def test_a_killed_program_gives_everything_back(guest: VsockGuest) -> None:
    holder, session = await held(guest)
    holder.kill()
    await asyncio.wait_for(session.gone.wait(), CLOSED_SECONDS + 10)
    await guest.quiet(QUIET_SECONDS)


async def test_a_killed_worker_is_a_cuda_error_and_nothing_stays(
    plane: ControlPlane, guest: VsockGuest
) -> None:
    holder, session = await held(guest)
    [worker] = plane.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    await asyncio.wait_for(session.gone.wait(), QUIET_SECONDS)
    assert await asyncio.to_thread(holder.work) != 0
    assert "the session" in await asyncio.to_thread(holder.kill)
    await guest.quiet(QUIET_SECONDS)


async def test_the_vms_end_ends_what_waits_for_its_connection(
    guest: VsockGuest, network: BreakingNetwork
) -> None:
    holder, session = await held(guest)
    os.kill(holder.process.pid, signal.SIGSTOP)
    os.kill(session.worker.record.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while not session.disconnected_since:
            await asyncio.sleep(0.01)
    await guest.guests.stopped(OWNER.uuid, "the VM was destroyed")
    await asyncio.wait_for(session.gone.wait(), 5)
    holder.kill()
    await guest.quiet(QUIET_SECONDS)


async def test_what_a_guest_says_on_its_connection_costs_its_own_session(
    guest: VsockGuest,
) -> None:
    holder, spared = await held(guest)
    hostile = HostileGuest(guest.device)
    writer = await hostile.open()
    [hit] = [each for each in guest.lifecycle.served if each is not spared]
    writer.write(b"\xff" * 4096)  # no StreamRecord
    await asyncio.wait_for(hit.gone.wait(), QUIET_SECONDS)
    assert await asyncio.to_thread(holder.work) == 0
    writer.close()
    holder.kill()
    await guest.quiet(QUIET_SECONDS)


async def test_connections_without_end_are_one_after_another_and_leave_nothing(
    guest: VsockGuest,
) -> None:
    """A guest that proves its session again and again gets one relay at a time, and keeps none."""
    hostile = HostileGuest(guest.device)
    writers = [await hostile.open()]
    [session] = guest.lifecycle.served
    before = count_descriptors()
    for epoch in (*range(1, 100), 2**32 - 1, 2**32 - 2):
        writers.append(await hostile.prove(epoch))
    assert isinstance(session.way, StreamWay)
    # theirs is one descriptor each, of this test's; ours are the newest's and a relay's or two
    assert count_descriptors() - before - len(writers) < 30
    assert session.way.relays < 100, "who is overtaken gets none, nor does a number too large"
    for writer in writers:
        writer.close()
    await asyncio.wait_for(session.gone.wait(), QUIET_SECONDS)
    await guest.quiet(QUIET_SECONDS)
