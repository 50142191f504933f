# SPDX-License-Identifier: Apache-2.0
"""A node that is lost in the middle of a collective of one process's devices.

Real controller, servers and workers on the software GPU, and a stand-in for NCCL whose collectives
wait for their peers (ranks.py): a rank whose peer is gone spins until its communicator is aborted,
as NCCL's kernels do.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for

from sluice.config.native_files import NativeFileMissing, find_native

from .ranks import build_fake_nccl
from .told_program import Told, all_given_back

PROGRAM = "collectives.py"


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory, built: None
) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """Two nodes with something for NCCL."""
    try:
        find_native("libnccl.so.2")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("collectives")
    (folder / "b").mkdir()
    with tempfile.TemporaryDirectory() as libraries:
        build_fake_nccl(Path(libraries))
        # on the software GPU a sandbox lets nothing be written, as the ranks' file is
        server = {
            "cuda_libraries": libraries,
            "worker_sandbox": "false",
            "closed_grace_seconds": 2,
        }
        with running(folder, server=server) as first:
            there = {**server, "node_name": "node-b"}
            second = ControlPlane(folder / "b", server=there, pool_of=first)
            try:
                second.start_server()
                yield first, second
            finally:
                second.close()


def test_a_node_lost_in_a_collective_costs_its_own_device_only(
    nodes: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = nodes
    program = Told(first, PROGRAM)
    assert program.do("reduce 20") == "0"
    assert program.do("hang") == "0"
    [worker] = second.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: program.do("use 1") != "0")
    # The rank that is left waits for its peer in one stream, and has others.
    assert program.do("work 0") == "0"
    assert program.do("work 1") != "0"
    wait_for(lambda: [s["node"] for s in first.sessions()] == ["node-a"])
    assert program.do("abort 0") == "0"
    assert program.do("use 0") == "0"
    assert program.do("work 0") == "0"
    error = program.close()
    assert "node node-b is lost to this process" in error
    assert "node-a is lost" not in error
    wait_for(lambda: all_given_back(first, second))


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_process_that_leaves_in_such_a_collective_leaves_nothing(
    nodes: tuple[ControlPlane, ControlPlane], how: str
) -> None:
    first, second = nodes
    program = Told(first, PROGRAM)
    assert program.do("hang") == "0"
    [worker] = second.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: program.do("use 1") != "0")
    program.kill() if how == "is killed" else program.close()
    wait_for(lambda: all_given_back(first, second))
    again = Told(first, PROGRAM)
    assert again.do("reduce 3") == "0"
    again.close()
    wait_for(lambda: all_given_back(first, second))


def test_an_operator_who_ends_the_grant_in_a_collective_ends_it_on_every_node(
    nodes: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = nodes
    program = Told(first, PROGRAM)
    assert program.do("hang") == "0"
    [grant] = first.grants()
    assert first.rest.delete(f"/grants/{grant['id']}").status_code == 202
    wait_for(lambda: all_given_back(first, second))
    assert program.do("use 0") != "0"
    assert program.do("use 1") != "0"
    program.close()
