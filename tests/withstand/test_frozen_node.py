# SPDX-License-Identifier: Apache-2.0
"""A node of a job that stands still: nobody closes a connection, and its kernel acknowledges on.

So is a host whose processes get no time, or that waits for its disk. Real controller, servers and
workers on the software GPU; server and workers of the second node are stopped.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, wait_for
from node_pair import clean, of_both, two_nodes
from rank_process import Rank

GRACE_SECONDS = 3
#: Silence is a break after 10 to 15 s; what is beyond that is for slow machines.
MOST_SECONDS = 15 + GRACE_SECONDS + 60
LOST = "999"


@pytest.fixture
def pair(built: None, tmp_path: Path) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """Two nodes, and a controller that soon takes a silent one for lost."""
    server = {
        "context_overhead_mib": "10",
        "network_grace_seconds": GRACE_SECONDS,
        "closed_grace_seconds": 2,
    }
    pool = {"node_timeout_seconds": 5, "job_linger_seconds": 2}
    with two_nodes(tmp_path, server, pool=pool) as both:
        yield both


def test_a_node_that_stands_still_costs_its_own_devices_only(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    told = of_both(first, SLUICE_JOB=secrets.token_hex(16), SLUICE_CHANNEL="tcp")
    job = first.program_environment(**told, SLUICE_GMEM="64")
    # the third computes beside them, and asks for nothing while the node is silent
    ranks = Rank(0, job), Rank(1, job), Rank(0, job)
    assert [rank.first for rank in ranks] == ["2 0", "2 1", "2 0"]
    assert ranks[0].do("peer") == "17"
    assert second.server
    assert second.server.pid
    frozen = [second.server.pid, *second.session_worker_pids()]
    assert len(frozen) == 4
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        ranks[0].ask("peer")  # to the silent node
        ranks[1].ask("peer")  # from there
        assert ranks[2].do("works 0") == "0", "the other node's device goes on meanwhile"
        assert ranks[0].read(MOST_SECONDS) == f"failed {LOST}"
        assert ranks[1].read(MOST_SECONDS) == f"failed {LOST}"
        assert ranks[2].do("works 1") == LOST
        for rank in (ranks[0], ranks[2]):
            assert [rank.do(f"works {device}") for device in (0, 1)] == ["0", LOST]
        wait_for(lambda: first.rest.get("/nodes/node-b").json()["state"] == "lost")
        assert [s["node"] for s in first.sessions()] == ["node-a"] * 3
        for rank in ranks:
            assert "node node-b is lost to this process" in rank.close()
        wait_for(lambda: not first.grants() and not first.session_worker_pids())
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    # what it ran is over, and the pool has its GPU again
    wait_for(lambda: clean(first, second))
    wait_for(lambda: second.node_state() == "up")
    again = Rank(1, job)
    assert again.first == "2 1"
    assert again.do("peer") == "18"
    again.close()
