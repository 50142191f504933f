# SPDX-License-Identifier: Apache-2.0
"""Sessions over TCP that go on although the client's address is another now, or the node's.

Real controller, server, worker and client on the software GPU; each way to the data port is a
BreakingNetwork. Where the node is told by a name, the client has a file of hosts for itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for

from .at_work import KERNEL_NS, Start, goes_on, worked, working
from .prompted import PROMPTED, Prompted
from .traces import LIMIT

NAME = "gpu-node.sluice.test"
FIRST, SECOND = "127.0.0.2", "127.0.0.3"
#: No test waits for its end: of a machine that stands still for a while no session may die.
GRACE_SECONDS = 300
CLOSED_SECONDS = 300

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a file of hosts of its own needs root")


@contextmanager
def node(folder: Path, advertised: str) -> Iterator[ControlPlane]:
    """A server whose clients come to that name or address."""
    server = {
        "advertise_addr": advertised,
        "network_grace_seconds": GRACE_SECONDS,
        "closed_grace_seconds": CLOSED_SECONDS,
    }
    with running(folder, server=server) as plane:
        yield plane


class Hosts:
    """What a program takes for /etc/hosts, and the script that runs it so."""

    def __init__(self, folder: Path, *addresses: str) -> None:
        self._file = folder / "hosts"
        self.name(*addresses)
        self.script = folder / "with_hosts"
        self.script.write_text(
            "#!/bin/sh\nexec unshare --mount sh -c "
            f"""'mount --bind "{self._file}" /etc/hosts && exec "{PROMPTED}"'\n"""
        )
        self.script.chmod(0o755)

    def name(self, *addresses: str) -> None:
        """The addresses that the node's name has from now on."""
        lines = ["127.0.0.1 localhost", *(f"{address} {NAME}" for address in addresses)]
        self._file.write_text("\n".join(lines) + "\n")  # in place: it is mounted

    @contextmanager
    def working(self, plane: ControlPlane) -> Iterator[Prompted]:
        """A program that has begun to work."""

        class Named(Prompted):
            program = self.script

        program = Named(plane, "tcp", SLUICE_RATIO="20")
        try:
            assert program.ask("open") == "open: ok"
            assert program.ask(f"work {KERNEL_NS}") == "work: ok"
            wait_for(lambda: worked(program) > 0, LIMIT, "the first kernel")
            yield program
            program.quit()
        finally:
            program.kill()


@pytest.fixture
def plane(built: None, tmp_path: Path) -> Iterator[ControlPlane]:
    with node(tmp_path, FIRST) as control_plane:
        yield control_plane


def test_a_session_goes_on_from_another_address(plane: ControlPlane, start: Start) -> None:
    """A laptop in another network, or behind another gateway: only the session's key counts."""
    with BreakingNetwork(plane.data_port) as network:
        program = working(start, 20, "tcp")
        before = plane.sessions()
        for source in ("127.0.0.7", "127.0.0.8", "127.0.0.1", "127.0.0.8"):
            network.source = source
            network.cut()
            goes_on(program, 20)
            assert network.connections[-1].far.getsockname()[0] == source
        after = plane.sessions()
        assert [s["id"] for s in after] == [s["id"] for s in before]
        assert [s["state"] for s in after] == ["running"]
        program.quit()
    wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")


def test_connections_for_bulk_come_from_the_other_address_too(
    plane: ControlPlane, start: Start
) -> None:
    """While one of before still tells of the old address."""
    with BreakingNetwork(plane.data_port) as network:
        program = start("tcp", SLUICE_BULK_CONNECTIONS="2")
        many = 1 << 20
        for source in ("127.0.0.1", "127.0.0.7", "127.0.0.8"):
            network.source = source
            seen = len(network.connections)
            network.cut()
            assert program.ask(f"compute {many}") == f"compute: wrong 0 of {many}"
            wait_for(lambda seen=seen: len(network.connections) >= seen + 3, LIMIT, "all of them")
            assert program.ask(f"compute {many}") == f"compute: wrong 0 of {many}"


@needs_root
def test_a_node_is_looked_for_where_its_name_leads_now(built: None, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, FIRST)
    with node(tmp_path, NAME) as plane, ExitStack() as ways:
        first, second = (
            ways.enter_context(BreakingNetwork(plane.data_port, address))
            for address in (FIRST, SECOND)
        )
        with hosts.working(plane) as program:
            [session] = plane.sessions()
            for old, new in (first, second), (second, first):
                refused, seen = old.refused, len(new.connections)
                old.refuse()
                old.cut()
                wait_for(lambda old=old, n=refused: old.refused >= n + 3, LIMIT, "it to look")
                hosts.name(new.address)
                goes_on(program, 20)
                assert len(new.connections) > seen
                old.refuse(False)
            assert [s["id"] for s in plane.sessions()] == [session["id"]]
        wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")


@needs_root
def test_of_several_addresses_one_that_answers_is_enough(built: None, tmp_path: Path) -> None:
    """A node with two networks of which one goes away for good."""
    hosts = Hosts(tmp_path, FIRST, SECOND)
    with node(tmp_path, NAME) as plane, ExitStack() as ways:
        two = [
            ways.enter_context(BreakingNetwork(plane.data_port, address))
            for address in (FIRST, SECOND)
        ]
        with hosts.working(plane) as program:
            used = next(way for way in two if way.connections)
            [other] = [way for way in two if way is not used]
            assert not other.connections
            used.close()  # nobody listens there
            goes_on(program, 20)
            assert other.connections
        wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")
