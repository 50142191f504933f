# SPDX-License-Identifier: Apache-2.0
"""Who asks to go on over RDMA with a session whose node has none: refused, and nothing else.

With RDMA it is tests/rdma.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running

from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import ResumeFlags

from .at_work import Start, goes_on, working
from .resuming import answered, asked_of


@pytest.fixture
def plane(built: None, tmp_path: Path) -> Iterator[ControlPlane]:
    """A server without RDMA."""
    with running(tmp_path) as control_plane:
        yield control_plane


def test_without_rdma_nobody_comes_back_to_it(plane: ControlPlane, start: Start) -> None:
    program = working(start, 20, "tcp")
    (session,) = plane.sessions()
    with plane.connect_data() as connected:
        reply = answered(connected, asked_of(session["id"], 1, ResumeFlags.OVER_RDMA))
        assert reply.status == CudaStatus.NOT_SUPPORTED
        assert b"has no RDMA here" in reply.message
    goes_on(program, 20)
    assert [(s["id"], s["channel"]) for s in plane.sessions()] == [(session["id"], "tcp")]
