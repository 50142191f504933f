# SPDX-License-Identifier: Apache-2.0
"""Sessions over TCP whose connections break: programs see time pass, and compute the same.

Real controller, server and workers on the software GPU; the way to the data port is a
BreakingNetwork, which cuts connections at any byte of a frame or of a copy.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for
from pool_certificates import PoolCa
from static_pool import build_programs

from sluice.cli.pool_commands import session_rows
from sluice.protocol.frames import ResumeFlags
from sluice.server.listeners.resumption import proof

from .at_work import Start, goes_on, worked, working
from .prompted import Prompted
from .resuming import answered, asked_of, prove, session_key
from .traces import LIMIT

#: At most how many bytes a connection passes in each direction, and programs that send more.
CUTS = {
    3_000: ["module_launch", "graphs"],
    40_000: ["streams_events", "reduction", "threads8"],
    1_500_000: ["bulk_copies"],
}
#: Random work, checked by itself. How many connections are cut in all: SLUICE_TEST_BREAKS.
RANDOM_PROGRAM = Path(__file__).resolve().parent / "programs" / "random_program.py"
RUNS, ENOUGH = 12, 60  # of each program, and of its connections that are cut
TLS = "TLS"
#: No test waits for its end: of a machine that stands still for a while no session may die.
GRACE_SECONDS = 300
CLOSED_SECONDS = 6


@pytest.fixture
def plane(built: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A server that tells its clients to come through the network that breaks; TLS: under it."""
    server = {
        "advertise_addr": "127.0.0.2",
        "network_grace_seconds": GRACE_SECONDS,
        "closed_grace_seconds": CLOSED_SECONDS,
    }
    tls: dict[str, object] = {}
    if getattr(request, "param", "") == TLS:
        pair = PoolCa(tmp_path / "ca").issue("node-a")
        tls = {"data_plane": "true", "data_cert_file": pair.cert, "data_key_file": pair.key}
    with running(tmp_path, server=server, server_tls=tls) as control_plane:
        yield control_plane


@pytest.fixture
def network(plane: ControlPlane) -> Iterator[BreakingNetwork]:
    """The way to it."""
    with BreakingNetwork(plane.data_port) as way:
        yield way


def run(plane: ControlPlane, program: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    """A program over TCP."""
    said = {name: str(value) for name, value in settings.items()}
    return subprocess.run(
        [program],
        env=plane.program_environment(SLUICE_CHANNEL="tcp", SLUICE_GMEM="512", **said),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("most", CUTS)
def test_programs_compute_the_same_whatever_is_cut(
    plane: ControlPlane, network: BreakingNetwork, most: int
) -> None:
    built = build_programs(*CUTS[most])
    for name in CUTS[most]:
        whole = run(plane, built / name, SLUICE_BULK_CONNECTIONS=3)
        assert whole.returncode == 0, whole.stderr
        seen = network.cuts
        for more in range(RUNS):
            network.cut_within(most, seed=more)
            done = run(plane, built / name, SLUICE_BULK_CONNECTIONS=3)
            assert done.returncode == 0, done.stderr
            assert done.stdout == whole.stdout
            if network.cuts - seen >= ENOUGH:
                break
        network.cut_within(None)
        print(f"{name}: {network.cuts - seen} cuts of at most {most} bytes")
    assert network.cuts >= ENOUGH


@pytest.mark.parametrize(
    ("plane", "most", "largest", "threads"),
    [
        ("TCP", 3_000, 20_000, 1),
        ("TCP", 200_000, 3 << 20, 1),
        ("TCP", 1_500_000, 3 << 20, 1),
        ("TCP", 500_000, 3 << 20, 4),
        (TLS, 8_000, 20_000, 1),  # with the handshake; of a record no part is taken
        (TLS, 60_000, 300_000, 1),
        (TLS, 300_000, 3 << 20, 1),
        (TLS, 500_000, 3 << 20, 4),
    ],
    indirect=["plane"],
)
def test_random_programs_compute_the_same_whatever_is_cut(
    plane: ControlPlane, network: BreakingNetwork, most: int, largest: int, threads: int
) -> None:
    """The largest copy takes a good many of the smallest connections, and not thousands."""
    breaks = int(os.environ.get("SLUICE_TEST_BREAKS", "120")) // 3
    ca = plane.folder / "ca" / "ca.crt"
    tls = {"SLUICE_CA": str(ca), "SLUICE_CONTROLLER": plane.url} if ca.exists() else {}
    network.cut_within(most, seed=most)
    seed = operations = 0
    while network.cuts < breaks:
        settings = {"SLUICE_CHANNEL": "tcp", "SLUICE_GMEM": "512", "SLUICE_BULK_CONNECTIONS": "2"}
        if tls:
            network.spare_next()
        done = subprocess.run(
            [sys.executable, RANDOM_PROGRAM, str(seed), "5", str(largest), str(threads)],
            env=plane.program_environment(**settings, **tls),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        seeds, did, wrong = map(int, done.stdout.split())
        assert wrong == 0, f"seeds {seed} to {seed + seeds - 1}"
        seed, operations = seed + seeds, operations + did
    print(f"{network.cuts} cuts of at most {most} bytes in {operations} operations")


def test_work_goes_on_after_each_break(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    for _ in range(5):
        network.cut()
        goes_on(program, 20)
    program.quit()
    wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")


@pytest.mark.parametrize("whose", ["both ends", "the server's end"])
def test_a_break_is_found_while_the_program_says_nothing(
    plane: ControlPlane, network: BreakingNetwork, start: Start, whose: str
) -> None:
    program = working(start, 20, "tcp")
    before = {session["id"] for session in plane.sessions()}
    for _ in range(5):
        seen = len(network.connections)
        if whose == "both ends":
            network.cut()
        else:
            network.connections[-1].near.shutdown(socket.SHUT_WR)
        wait_for(lambda seen=seen: len(network.connections) > seen, message="another connection")
    goes_on(program, 20)
    assert {session["id"] for session in plane.sessions()} == before
    program.quit()


def test_both_directions_may_be_silent(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    network.silence()
    at = worked(program)
    network.cut()
    network.refuse()
    assert worked(program) - at < 1000, "its work stands still after what was under way"
    network.silence(False)
    network.refuse(False)
    goes_on(program, 300)
    goes_on(program, 20)


def stands_still(program: Prompted) -> bool:
    """Whether it has nothing done for a moment."""
    before = worked(program)
    time.sleep(0.2)
    return worked(program) == before


def test_each_direction_is_lost_in_turn(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    for direction in (0, 1) * 4:
        network.silence(only=direction)
        wait_for(lambda: stands_still(program), LIMIT, "it to stand still")
        network.cut()  # what the silence held back is lost
        network.silence(False)
        goes_on(program, 20)


def broken(plane: ControlPlane) -> list[bool]:
    """Of each session, whether it has no connection."""
    return [session["disconnected_since"] is not None for session in plane.sessions()]


def test_a_session_without_a_connection_is_shown_as_that(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    [session] = plane.sessions()
    assert session["disconnected_since"] is None
    network.refuse()
    network.cut()
    wait_for(lambda: broken(plane) == [True], LIMIT, "the break to be shown")
    [row] = session_rows(plane.sessions())
    assert str(row["state"]).startswith("no connection for ")
    plane.stop("server", signal.SIGKILL)
    plane.start_server()
    wait_for(lambda: plane.node_state() == "up", LIMIT, "the node")
    # between the node's word and its sessions' there is none
    wait_for(lambda: broken(plane) == [True], LIMIT, "the break again")
    network.refuse(False)
    goes_on(program, 20)
    wait_for(lambda: broken(plane) == [False], LIMIT, "it is connected")
    assert plane.sessions()[0]["state"] == "running"


def test_a_server_may_be_restarted_meanwhile(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    plane.stop("server", signal.SIGKILL)
    network.cut()
    plane.start_server()
    goes_on(program, 200)
    assert [s["state"] for s in plane.sessions()] == ["running"]


def test_a_client_that_does_not_come_back_leaves_nothing(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    program.kill()
    wait_for(lambda: not plane.grants(), CLOSED_SECONDS + LIMIT, "the grant's end")


def test_many_lose_their_network_at_once(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    programs = [start("tcp", SLUICE_RATIO="1", SLUICE_GMEM="16") for _ in range(40)]
    for _ in range(3):
        network.cut()
        for program in programs:
            program.say("compute 1000")
        assert {p.answer() for p in programs} == {"compute: wrong 0 of 1000"}


def test_nobody_else_goes_on_with_a_session(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    (session,) = plane.sessions()
    network.cut()  # the next connection has epoch 1
    goes_on(program, 20)
    key = session_key(plane)
    for what in ("another key", "another's proof", "an old epoch", "nothing", "half a frame"):
        with plane.connect_data() as connected:
            asked = asked_of(session["id"], 1)
            if what == "half a frame":
                connected.sendall(asked.pack()[:50])
                continue
            reply = answered(connected, asked)
            assert reply.status == 0
            assert reply.proof == proof(b"server", key, asked, reply.nonce)
            if what == "another key":
                prove(connected, proof(b"client", bytes(32), asked, reply.nonce))
            elif what == "another's proof":  # the server's own, sent back
                prove(connected, reply.proof)
            elif what == "an old epoch":
                prove(connected, proof(b"client", key, asked, reply.nonce))
            connected.settimeout(5)
            if what != "nothing":
                while connected.recv(4096):
                    pass
        goes_on(program, 20)
    for flags in (ResumeFlags.ENDS | ResumeFlags.NODE_LINK, 16, 0xFFFFFFFF):
        with plane.connect_data() as connected:
            reply = answered(connected, asked_of(session["id"], 2, flags=flags))
            assert reply.status != 0
            assert b"is not one of them" in reply.message
    with plane.connect_data() as connected:
        reply = answered(connected, asked_of("0123456789abcdef", 1))
        assert reply.status != 0
        assert b"is over" in reply.message
    assert [s["id"] for s in plane.sessions()] == [session["id"]]


def test_resumptions_that_come_twice_late_and_out_of_order_change_nothing(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    (session,) = plane.sessions()
    for _ in range(4):
        network.cut()  # its client is at epoch 4 then
        goes_on(program, 4)
    key = session_key(plane)
    with ExitStack() as all_of_them:
        waiting = []
        for epoch in (4, 4, 2, 3, 1):
            connected = all_of_them.enter_context(plane.connect_data())
            asked = asked_of(session["id"], epoch)
            waiting.append((connected, asked, answered(connected, asked)))
        network.cut()  # the client's next has epoch 5; those that are proved only now are older
        goes_on(program, 4)
        for connected, asked, reply in waiting:
            prove(connected, proof(b"client", key, asked, reply.nonce))
        goes_on(program, 20)
        for connected, _, _ in waiting:
            connected.settimeout(20)
            with suppress(ConnectionError):
                while connected.recv(4096):
                    pass
        goes_on(program, 20)
    assert [s["id"] for s in plane.sessions()] == [session["id"]]


def test_only_who_knows_the_key_says_that_a_client_has_ended(
    plane: ControlPlane, network: BreakingNetwork, start: Start
) -> None:
    program = working(start, 20, "tcp")
    (session,) = plane.sessions()
    key = session_key(plane)
    for what in ("another key", "the proof of a resumption", "the key"):
        with plane.connect_data() as connected:
            asked = asked_of(session["id"], 9, ResumeFlags.ENDS)
            reply = answered(connected, asked)
            said = asked_of(session["id"], 9) if what == "the proof of a resumption" else asked
            said = replace(said, nonce=asked.nonce)
            known = bytes(32) if what == "another key" else key
            if what != "the key":
                goes_on(program, 4)
            prove(connected, proof(b"client", known, said, reply.nonce))
            connected.settimeout(20)
            while connected.recv(4096):
                pass
        if what != "the key":
            goes_on(program, 4)
    wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")


def test_one_that_cannot_ends_with_its_connection(built: None, tmp_path: Path) -> None:
    server = {"advertise_addr": "127.0.0.2", "network_grace_seconds": 0}
    with running(tmp_path, server=server) as plane, BreakingNetwork(plane.data_port) as network:
        program = Prompted(plane, "tcp")
        assert program.ask("open") == "open: ok"
        network.cut()
        wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")
        assert "error" in program.ask("wait")
        program.kill()
