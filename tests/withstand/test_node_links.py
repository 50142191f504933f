# SPDX-License-Identifier: Apache-2.0
"""The connection between two nodes of one client: broken, refused, and with a hostile other end.

Real controller, servers and workers on the software GPU. The way to the first node's data port,
where the second dials, is a BreakingNetwork.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for
from node_pair import of_both, two_nodes
from pool_certificates import PoolCa
from rank_process import Rank
from static_pool import build_programs

from sluice.protocol.frames import LinkMessageKind

from .link_peer import NONSENSE, LinkPeer, links_of
from .told_program import Told, all_given_back, start

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = ROOT / "tests" / "programs" / "expected" / "across_nodes.out"
COPIER = "copier.py"
GRACE_SECONDS, CLOSED_SECONDS = 60, 6
#: What the first node's worker sends for one copy of `copier.py` to the second, and one back.
MESSAGE_BYTES, COPY_BYTES = 16, 1 << 16
SENT_BYTES = (MESSAGE_BYTES + COPY_BYTES) + 2 * MESSAGE_BYTES


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory, built: None
) -> Iterator[tuple[ControlPlane, ControlPlane, BreakingNetwork]]:
    """The first one is reached by the network."""
    folder = tmp_path_factory.mktemp("links")
    (folder / "b").mkdir()
    server = {"network_grace_seconds": GRACE_SECONDS, "closed_grace_seconds": CLOSED_SECONDS}
    with running(folder, server={**server, "advertise_addr": "127.0.0.2"}) as first:
        second = ControlPlane(folder / "b", server={**server, "node_name": "node-b"}, pool_of=first)
        with BreakingNetwork(first.data_port) as network:
            try:
                second.start_server()
                yield first, second, network
            finally:
                second.close()


@pytest.fixture(scope="module")
def nodes_that_stand_still(
    tmp_path_factory: pytest.TempPathFactory, built: None
) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """Whose software GPUs load code, and free memory, as NVIDIA's driver does."""
    environment = {"SLUICE_SOFTGPU_LOADS_STAND_STILL": "1"}
    with two_nodes(tmp_path_factory.mktemp("still"), {}, environment) as both:
        yield both


@pytest.fixture
def copier(nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork]) -> Iterator[Told]:
    """A program whose nodes have their link; all is given back at its end."""
    first, second, _ = nodes
    program = Told(first, COPIER)
    assert program.do("copy 0 1") == "0"
    assert program.do("copy 1 0") == "0"
    yield program
    program.close()
    wait_for(lambda: all_given_back(first, second))


def log_of(plane: ControlPlane) -> str:
    """What the workers' sessions have logged."""
    return "".join(path.read_text() for path in (plane.folder / "log").rglob("*.log"))


def links_over(plane: ControlPlane) -> int:
    """How many of its sessions' links are over for what the other node's worker did."""
    return log_of(plane).count("on another node is over: the other node's worker")


def test_a_program_computes_the_same_while_links_break(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
) -> None:
    first, second, network = nodes
    program = build_programs("across_nodes") / "across_nodes"
    for seed, most in enumerate((30_000_000, 5_000_000)):
        before = network.cuts
        network.cut_within(most, seed)
        with start(first, program) as process:
            out, error = process.communicate(timeout=300)
        assert out == EXPECTED.read_text(), error
        assert network.cuts - before > 5
    network.cut_within(None)
    assert "a link" not in error
    wait_for(lambda: all_given_back(first, second))


def test_whoever_has_not_the_key_of_the_two_nodes_is_not_let_in(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
    copier: Told,
) -> None:
    first, second, _ = nodes
    stranger = LinkPeer(first, epoch=1000, received=0, key=os.urandom(32))
    assert stranger.is_over()
    assert copier.do("copy 1 0") == "0"
    assert copier.do("wait 0 1") == "0"
    [(_, there)], [(_, here)] = links_of(first), links_of(second)
    assert there.key == here.key


def test_what_a_server_was_asked_when_it_ended_the_next_one_does(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
) -> None:
    """It dials when it is killed: whoever waits for the link is served all the same."""
    first, second, network = nodes
    program = Told(first, COPIER, SLUICE_STATS="1")
    before = len(network.connections)
    network.silence()
    program.ask("copy 0 1")
    wait_for(lambda: len(network.connections) > before)
    second.stop("server", signal.SIGKILL)
    network.silence(False)
    second.start_server()
    assert program.read() == "0"
    assert "asynchronous commands of NodeSend" in program.close()
    wait_for(lambda: all_given_back(first, second))


@pytest.mark.parametrize("name", NONSENSE)
def test_a_node_that_was_taken_over_costs_the_link_and_nothing_else(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork], copier: Told, name: str
) -> None:
    first, _, _ = nodes
    before = links_over(first)
    hostile = LinkPeer(first, epoch=1000, received=SENT_BYTES)
    assert hostile.was_let_in()
    kind, transfer, data, claimed = NONSENSE[name]
    hostile.say(kind, transfer, data, claimed)
    assert hostile.is_over()
    wait_for(lambda: links_over(first) > before)
    # Copies go by way of the client from now on, and waits hold it: it has heard of that by then.
    for what in ("read 0", "copy 0 1", "copy 1 0", "wait 0 1", "wait 1 0", "use 0", "use 1"):
        assert copier.do(what) == "0", what


@pytest.mark.parametrize(
    "told", [["copy 0 1 911", "use 0 0"], ["expect 0 1 0", "read 0 0"]], ids=["a copy", "an event"]
)
def test_an_end_that_one_node_knows_of_is_heard_of_before_what_the_other_answers(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork], copier: Told, told: list[str]
) -> None:
    """The first node's worker has given the link up; the second's would wait for the silence."""
    first, _, network = nodes
    network.connections[-1].hides_ends = True  # the link's, which was made last
    before = links_over(first)
    hostile = LinkPeer(first, epoch=1000, received=SENT_BYTES)
    assert hostile.was_let_in()
    hostile.say(*NONSENSE["no kind"])
    assert hostile.is_over()
    wait_for(lambda: links_over(first) > before)
    # The program has asked that node nothing since, so it gives this to the link.
    for line in [*told, "use 1 911"]:
        what, _, status = line.rpartition(" ")
        assert copier.do(what) == status, what


def test_numbers_that_a_node_is_ready_for_are_bounded(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
    copier: Told,
) -> None:
    first, _, _ = nodes
    hostile = LinkPeer(first, epoch=1000, received=SENT_BYTES)
    assert hostile.was_let_in()
    for transfer in range(10_000, 10_000 + 1024):
        hostile.say(LinkMessageKind.READY, transfer)
    assert copier.do("use 0") == "0"
    hostile.say(LinkMessageKind.READY, 20_000)
    assert hostile.is_over()
    wait_for(lambda: "is ready for a transfer twice, or for too many" in log_of(first))
    assert copier.do("use 0") == "0"


def test_what_the_other_device_captures_forbids_a_copy_in_the_default_stream(
    copier: Told,
) -> None:
    """Its end there would wait for a stream that captures; the other one waited for it for ever."""
    assert copier.do("legacy 0 1") == "906"  # would implicitly wait for a stream that captures
    assert copier.do("legacy 1 0") == "906"
    for what in ("use 0", "use 1", "copy 0 1", "copy 1 0"):
        assert copier.do(what) == "0", what


def test_a_copy_that_never_comes_is_an_error_of_its_target(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
    copier: Told,
) -> None:
    """The other node's worker dies in the middle: what was to come has not, and nobody hangs."""
    first, second, _ = nodes
    assert copier.do("hold 1 0") == "0"  # a copy behind a gate of device 1, on its way to device 0
    [worker] = second.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    # 911: an error of something outside CUDA, which the data of this copy were to come from.
    assert copier.do("use 0") == "911"
    assert copier.do("use 1") != "0"
    wait_for(lambda: "from another node did not come to its end" in log_of(first))


def test_what_a_copy_did_not_bring_is_never_read(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
) -> None:
    """The call that reads the memory waits for the copy, and its own node is well."""
    first, second, network = nodes
    rank = Rank(0, first.program_environment(**of_both(first), SLUICE_CHANNEL="tcp"))
    assert rank.do("peer") == "17"
    network.refuse()
    network.connections[-1].cut()  # the link, which was made last
    try:
        assert rank.do("peer") == "failed 911"
        assert [rank.do(f"works {device}") for device in (0, 1)] == ["0", "911"]
    finally:
        network.refuse(False)
    rank.close()
    wait_for(lambda: all_given_back(first, second))


def test_a_node_that_dies_lets_streams_go_that_only_waited_for_it(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
    copier: Told,
) -> None:
    _, second, _ = nodes
    assert copier.do("expect 1 0") == "0"  # device 0 waits for an event behind device 1's gate
    [worker] = second.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    assert copier.do("use 0") == "0"
    assert copier.do("use 1") != "0"


@pytest.mark.parametrize("what", ["load 0 1", "load 1 0"])
def test_copies_move_while_a_call_stands_still_until_they_have(
    nodes_that_stand_still: tuple[ControlPlane, ControlPlane], what: str
) -> None:
    """NVIDIA's driver loads code when no stream waits, and copies nothing for others meanwhile."""
    program = Told(nodes_that_stand_still[0], COPIER)
    assert program.do(what) == "0"
    program.close()


@pytest.mark.parametrize("knows_ca", [True, False], ids=["linked", "by way of the client"])
def test_where_data_ports_have_tls_the_link_has(
    built: None, tmp_path: Path, knows_ca: bool
) -> None:
    """A server that cannot check another's certificate connects its workers to none.

    A session's next connection has TLS, too, and so has the link's.
    """
    ca = PoolCa(tmp_path / "ca")

    def tls(name: str) -> dict[str, object]:
        pair = ca.issue(name)
        own = {"data_plane": "true", "data_cert_file": pair.cert, "data_key_file": pair.key}
        return {**own, "data_ca_file": ca.file} if knows_ca else own

    (tmp_path / "b").mkdir()
    here = {"server": {"advertise_addr": "127.0.0.2"}, "server_tls": tls("node-a")}
    with running(tmp_path, **here) as first, BreakingNetwork(first.data_port) as network:
        there = {"server": {"node_name": "node-b"}, "server_tls": tls("node-b")}
        second = ControlPlane(tmp_path / "b", pool_of=first, **there)
        try:
            second.start_server()
            url = f"http://127.0.0.1:{first.rest_port}"
            copier = Told(first, COPIER, SLUICE_CA=str(ca.file), SLUICE_CONTROLLER=url)
            for _ in range(3):
                for what in ("copy 0 1", "copy 1 0", "wait 0 1", "wait 1 0"):
                    assert copier.do(what) == "0", what
                network.cut()
            # What has no end keeps no caller where the nodes' streams wait for each other.
            if knows_ca:
                assert copier.do("expect 0 1") == "0"
            error = copier.close()
            assert ("there is no link to the client's vGPU" in log_of(second)) == (not knows_ca)
            assert ("certificate verify failed" in log_of(second)) == (not knows_ca), error
            wait_for(lambda: all_given_back(first, second))
        finally:
            second.close()
