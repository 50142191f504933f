# SPDX-License-Identifier: Apache-2.0
"""Relayed sessions whose way to the node breaks, or whose relay dies: programs see time pass.

Real controller, two servers, relays and workers on the software GPU; the way from the relay to the
data port is a BreakingNetwork.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for
from pool_certificates import PoolCa
from relay_host import RelayHost, relay_host
from static_pool import build_programs

from .at_work import Start, goes_on, relayed
from .traces import LIMIT

#: At most how many bytes a connection passes in each direction, and a program that sends more.
CUTS = {3_000: "module_launch", 40_000: "streams_events", 30_000_000: "bulk_copies"}
#: Random work, checked by itself.
RANDOM_PROGRAM = Path(__file__).resolve().parent / "programs" / "random_program.py"
RUNS, ENOUGH = 4, 8  # of each program, and of its connections that are cut
#: No test waits for its end: of a machine that stands still for a while no session may die.
GRACE_SECONDS = 300
CLOSED_SECONDS = 6


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


@pytest.fixture(scope="module")
def host(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayHost]:
    """The clients' host, without a GPU."""
    with relay_host(plane, tmp_path_factory.mktemp("near")) as joined:
        yield joined


@pytest.fixture
def network(plane: ControlPlane) -> Iterator[BreakingNetwork]:
    """The way to the node; what a test leaves is gone before the next."""
    with BreakingNetwork(plane.data_port) as way:
        yield way
    wait_for(lambda: not plane.grants(), CLOSED_SECONDS + LIMIT, "the grants to return")


def kill_relay(host: RelayHost) -> int:
    """Returns the process that was."""
    [relay] = host.relays()
    os.kill(relay["pid"], signal.SIGKILL)
    return int(relay["pid"])


@pytest.mark.parametrize("most", CUTS)
def test_programs_compute_the_same_whatever_is_cut(
    host: RelayHost, network: BreakingNetwork, most: int
) -> None:
    program = build_programs(CUTS[most]) / CUTS[most]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program],
            env=host.environment(SLUICE_GMEM="512"),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    whole = run()
    assert whole.returncode == 0, whole.stderr
    for more in range(RUNS):
        network.cut_within(most, seed=more)
        done = run()
        assert done.returncode == 0, done.stderr
        assert done.stdout == whole.stdout
        if network.cuts >= ENOUGH:
            break
    network.cut_within(None)
    assert network.cuts >= ENOUGH


def test_threads_compute_the_same_through_a_relay_under_tls(built: None, tmp_path: Path) -> None:
    """Random work of one process in several threads, both ways, while its connections are cut."""
    ca = PoolCa(tmp_path / "ca")
    pair = ca.issue("node-a")
    tls = {"data_plane": "true", "data_cert_file": pair.cert, "data_key_file": pair.key}
    server = {"advertise_addr": "127.0.0.2", "network_grace_seconds": GRACE_SECONDS}
    with (
        running(tmp_path, server=server, server_tls=tls) as plane,
        relay_host(plane, tmp_path / "b", server_tls={"data_ca_file": ca.file}) as host,
        BreakingNetwork(plane.data_port) as network,
    ):
        seed = 0
        while network.cuts < ENOUGH:
            network.spare_next()
            network.cut_within(3_000_000, seed=seed)
            done = subprocess.run(
                [sys.executable, RANDOM_PROGRAM, str(seed), "3", str(3 << 20), "3"],
                env=host.environment(SLUICE_GMEM="512"),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            seeds, _, wrong = map(int, done.stdout.split())
            assert wrong == 0, f"seeds {seed} to {seed + seeds - 1}"
            seed += seeds


def test_work_goes_on_whichever_part_of_the_way_is_lost(
    plane: ControlPlane, host: RelayHost, network: BreakingNetwork, start: Start
) -> None:
    program = relayed(host, start)
    [before] = plane.sessions()
    for _ in range(3):
        network.cut()
        goes_on(program, 20)
        was = kill_relay(host)
        goes_on(program, 20)
        wait_for(lambda was=was: was not in [r["pid"] for r in host.relays()], LIMIT, "its end")
    assert len(host.relays()) == 1
    [after] = plane.sessions()
    assert (after["id"], after["state"]) == (before["id"], "running")
    program.quit()
    wait_for(lambda: not plane.grants() and not host.relays(), LIMIT, "the grant's end")


@pytest.mark.parametrize("first", ["the server", "the network"])
def test_its_own_server_may_be_restarted_meanwhile(
    plane: ControlPlane, network: BreakingNetwork, host: RelayHost, start: Start, first: str
) -> None:
    program = relayed(host, start)
    if first == "the server":
        host.stop(signal.SIGKILL)
        network.cut()
    else:
        network.refuse()
        network.cut()
        wait_for(lambda: len(host.relays()) == 1, LIMIT, "the relay that follows")
        host.stop(signal.SIGKILL)
        network.refuse(False)
    host.start()
    goes_on(program, 100)
    kill_relay(host)
    goes_on(program, 20)
    program.quit()
    wait_for(lambda: not plane.grants() and not host.relays(), LIMIT, "the grant's end")


def test_a_session_that_is_ended_meanwhile_is_an_error_at_once(
    plane: ControlPlane, host: RelayHost, network: BreakingNetwork, start: Start
) -> None:
    program = relayed(host, start)
    network.refuse()
    network.cut()
    [grant] = plane.grants()
    plane.rest.delete(f"/grants/{grant['id']}")
    wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")
    network.refuse(False)
    wait_for(lambda: "error" in program.ask("worked"), LIMIT, "the error")
    wait_for(lambda: not host.relays(), LIMIT, "the relay's end")
    program.say("quit")
    assert "is over" in program.errors()


def test_a_program_that_dies_meanwhile_leaves_nothing(
    plane: ControlPlane, host: RelayHost, network: BreakingNetwork, start: Start
) -> None:
    program = relayed(host, start)
    network.refuse()
    network.cut()
    program.kill()
    wait_for(lambda: not host.relays(), LIMIT, "the relay's end")
    wait_for(lambda: not plane.grants(), CLOSED_SECONDS + LIMIT, "the grant's end")
    assert not list((host.folder / "run" / "relays").iterdir())
