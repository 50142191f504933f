# SPDX-License-Identifier: Apache-2.0
"""A process with vGPUs of two nodes, to one of which the network breaks.

Real controller, servers and workers on the software GPU; the way to the second node's data port is
a BreakingNetwork.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import devices_holder
import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for
from static_pool import build_programs

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = ROOT / "tests" / "programs" / "expected" / "two_nodes.out"
GRACE_SECONDS = 12  # one test waits for its end; the other is not to see it on a slow machine


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory, built: None
) -> Iterator[tuple[ControlPlane, ControlPlane, BreakingNetwork]]:
    """The second one is reached by the network."""
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "b").mkdir()
    server = {"network_grace_seconds": GRACE_SECONDS, "closed_grace_seconds": GRACE_SECONDS}
    with running(folder, server=server) as first:
        there = {**server, "node_name": "node-b", "advertise_addr": "127.0.0.2"}
        second = ControlPlane(folder / "b", server=there, pool_of=first)
        with BreakingNetwork(second.data_port) as network:
            try:
                second.start_server()
                yield first, second, network
            finally:
                second.close()


def start(plane: ControlPlane, *command: str | Path) -> subprocess.Popen[str]:
    """A program with a vGPU of each node."""
    wide = {"SLUICE_CHANNEL": "tcp", "SLUICE_VGPU": "2", "SLUICE_CROSS_NODE": "1"}
    return subprocess.Popen(
        command,
        env=plane.program_environment(**wide, SLUICE_GMEM="256"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_computes_the_same_while_one_nodes_network_breaks(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
) -> None:
    first, second, network = nodes
    program = build_programs("two_nodes") / "two_nodes"
    before = network.cuts
    for seed, most in enumerate((9_000, 7_000, 6_000) * 2):
        network.cut_within(most, seed)
        with start(first, program) as process:
            out, error = process.communicate(timeout=300)
        said = [line for line in out.splitlines() if not line.startswith("# ")]
        assert said == EXPECTED.read_text().splitlines(), out + error
    network.cut_within(None)
    assert network.cuts - before > 20
    wait_for(lambda: not first.grants() and not second.session_worker_pids())


def test_a_node_that_stays_away_costs_its_own_device_only(
    nodes: tuple[ControlPlane, ControlPlane, BreakingNetwork],
) -> None:
    first, second, network = nodes
    holder = start(first, sys.executable, Path(devices_holder.__file__))
    assert holder.stdin
    assert holder.stdout

    def works(device: int) -> bool:
        assert holder.stdin
        assert holder.stdout
        holder.stdin.write(f"{device}\n")
        holder.stdin.flush()
        return holder.stdout.readline() == "0\n"

    assert holder.stdout.readline() == "2\n"
    assert works(0)
    assert works(1)
    network.refuse()
    network.cut()
    try:
        assert works(0), "whatever becomes of the other node"
        assert not works(1), "once its grace is over"
        assert works(0)
        wait_for(lambda: not second.session_worker_pids())
        wait_for(lambda: [s["node"] for s in first.sessions()] == ["node-a"])
        assert works(0)
    finally:
        network.refuse(False)
    _, error = holder.communicate(timeout=60)
    assert "node node-b is lost to this process" in error
    wait_for(lambda: not first.grants() and not first.session_worker_pids())
