# SPDX-License-Identifier: Apache-2.0
"""A session over the Unix socket: how it begins, and that everything comes back when it ends."""

from __future__ import annotations

from control_plane import ControlPlane, wait_for


def test_a_client_gets_its_session_and_everything_returns_when_it_is_killed(
    plane: ControlPlane,
) -> None:
    client = plane.client(gmem_mib=1024, ratio_percent=10, program="vector_add")
    assert client.first["status"] == 0, client.first
    assert client.first["descriptors"] == 1
    [grant] = plane.grants()
    assert [v["memory_mib"] for v in grant["vgpus"]] == [1024]
    assert [v["compute_percent"] for v in grant["vgpus"]] == [10]
    session = wait_for(lambda: [s for s in plane.sessions() if s["state"] == "running"])[0]
    assert session["id"] == client.session_id
    assert session["program"] == "vector_add"
    assert session["client_pid"] == client.process.pid
    [worker] = plane.session_worker_pids()
    client.kill()
    wait_for(lambda: not plane.grants(), 5, "the grant to return")
    wait_for(lambda: worker not in plane.worker_pids(), 5, "the worker to end")
