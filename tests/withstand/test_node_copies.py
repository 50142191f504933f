# SPDX-License-Identifier: Apache-2.0
"""What the link between two nodes of one client moves: each byte, and no other.

Real controller, servers and workers on the software GPU, which runs the link's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for

from .told_program import Told, all_given_back

PROGRAM = "rectangles.py"
CUT_AFTER = 8 << 20
#: A copy to here did not come: an error of something outside CUDA.
EXTERNAL_DEVICE = "911"


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory, built: None
) -> Iterator[tuple[ControlPlane, ControlPlane, BreakingNetwork]]:
    """The first one is reached by the network."""
    folder = tmp_path_factory.mktemp("copies")
    (folder / "b").mkdir()
    server = {"closed_grace_seconds": 5}
    with running(folder, server={**server, "advertise_addr": "127.0.0.2"}) as first:
        second = ControlPlane(folder / "b", server={**server, "node_name": "node-b"}, pool_of=first)
        with BreakingNetwork(first.data_port) as network:
            try:
                second.start_server()
                yield first, second, network
            finally:
                second.close()


@pytest.fixture
def program(nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork]) -> Iterator[Told]:
    """A program with a vGPU of each; all is given back at its end."""
    first, second, _ = nodes
    told = Told(first, PROGRAM, SLUICE_STATS="1")
    yield told
    told.close()
    wait_for(lambda: all_given_back(first, second))


def test_rectangles_of_any_width_and_place_come_whole_both_ways_at_once(program: Told) -> None:
    for _ in range(2):
        assert program.do("rectangles 0 1") == "0"
    assert "asynchronous commands of NodeSend" in program.close()


@pytest.mark.parametrize("source", [0, 1])
def test_a_copy_whose_link_is_lost_in_the_middle_is_an_error_of_its_target_alone(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork], program: Told, source: int
) -> None:
    """Both nodes are there: their streams go on, and no kernel is left on either GPU."""
    *_, network = nodes
    assert program.do("rectangles 0 1") == "0"
    link = network.connections[-1]  # which was made last
    network.refuse()
    try:
        link.left[:] = [CUT_AFTER, CUT_AFTER]
        assert program.do(f"large {source} {1 - source} {source}") == EXTERNAL_DEVICE
        assert link.passed > CUT_AFTER
        assert program.do(f"use {source}") == "0"
        assert program.do(f"use {1 - source}") == EXTERNAL_DEVICE
    finally:
        network.refuse(False)


def test_a_stream_of_another_device_of_the_node_copies_both_ways(
    built: None, tmp_path: Path
) -> None:
    """The memory's device does it, in order with that stream."""
    (tmp_path / "b").mkdir()
    with running(tmp_path, environment={"SLUICE_SOFTGPU_COUNT": "2"}) as first:
        second = ControlPlane(tmp_path / "b", server={"node_name": "node-b"}, pool_of=first)
        try:
            second.start_server()
            told = Told(first, PROGRAM, devices=3, SLUICE_STATS="1")
            for what in ("large 1 2 0", "large 2 1 0", "large 0 2 1", "rectangles 1 2"):
                assert told.do(what) == "0", what
            assert "asynchronous commands of NodeSend" in told.close()
        finally:
            second.close()
