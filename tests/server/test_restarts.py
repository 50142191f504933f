# SPDX-License-Identifier: Apache-2.0
"""Components start in any order, may be killed and return; running sessions do not notice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path)
    yield plane
    plane.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_server_adopts_its_sessions(plane: ControlPlane, how: signal.Signals) -> None:
    client = plane.client(gmem_mib=256, program="survivor")
    [worker] = plane.session_worker_pids()
    plane.stop("server", how)
    assert worker in plane.worker_pids()
    plane.start_server()
    wait_for(lambda: plane.node_state() == "up")
    assert worker in plane.worker_pids()
    [session] = plane.sessions()
    assert (session["id"], session["program"]) == (client.session_id, "survivor")
    assert len(plane.grants()) == 1
    assert "adopted: survivor" in plane.rest.get(f"/sessions/{client.session_id}/log").text
    client.kill()
    wait_for(lambda: not plane.grants(), message="the grant to return")
    wait_for(lambda: worker not in plane.worker_pids())


def test_a_client_that_ends_while_no_server_runs_leaves_nothing(plane: ControlPlane) -> None:
    client = plane.client()
    [worker] = plane.session_worker_pids()
    plane.stop("server", signal.SIGKILL)
    client.kill()
    wait_for(lambda: worker not in plane.worker_pids(), message="the worker to end by itself")
    plane.start_server()
    wait_for(lambda: not plane.grants(), message="the grant to return")
    assert all(not record["session"] for record in plane.worker_records())


def test_killed_servers_do_not_pile_up_warm_workers(plane: ControlPlane) -> None:
    for _ in range(3):
        plane.stop("server", signal.SIGKILL)
        plane.start_server()
    wait_for(lambda: len(plane.worker_pids()) == 1, message="one warm worker")


def test_a_restarted_controller_loses_no_grant(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=256)
    before = plane.grants()
    plane.stop("controller", signal.SIGKILL)
    plane.start_controller()
    wait_for(lambda: plane.node_state() == "up", message="the server to return by itself")
    assert [g["id"] for g in plane.grants()] == [g["id"] for g in before]
    assert client.process.poll() is None
    assert plane.client(gmem_mib=256).first["status"] == 0
    client.kill()
    wait_for(lambda: len(plane.grants()) == 1)


def test_a_client_that_ends_while_the_controller_is_away_is_noticed_later(
    plane: ControlPlane,
) -> None:
    client = plane.client()
    plane.stop("controller", signal.SIGKILL)
    client.kill()
    wait_for(lambda: not plane.session_worker_pids())
    plane.start_controller()
    wait_for(lambda: not plane.grants(), message="the grant to return")


def test_a_controller_that_lost_its_store_adopts_what_runs(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=300, ratio_percent=30)
    [before] = plane.grants()
    plane.stop("controller")
    for path in plane.folder.glob("controller.db*"):
        path.unlink()
    plane.start_controller()
    [grant] = wait_for(plane.grants, message="the grant to be adopted")
    assert grant["id"] == before["id"]
    assert grant["vgpus"] == before["vgpus"]
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    assert (gpu["granted_mib"] >= 300, gpu["granted_percent"]) == (True, 30)
    client.kill()
    wait_for(lambda: not plane.grants())


def test_the_server_may_start_first(unstarted: ControlPlane) -> None:
    unstarted.start_server(joined=False)
    client = unstarted.client()
    assert client.first["status"] == 802
    assert "cannot reach the controller" in client.first["message"]
    unstarted.start_controller()
    wait_for(lambda: unstarted.node_state() == "up")
    assert unstarted.client().first["status"] == 0


def test_a_silent_node_is_lost_and_its_session_adopted_when_it_returns(tmp_path: Path) -> None:
    with running(tmp_path, pool={"node_timeout_seconds": 3}) as plane:
        plane.client()
        assert plane.server
        plane.server.send_signal(signal.SIGSTOP)
        wait_for(lambda: plane.node_state() == "lost")
        assert plane.grants() == []
        plane.server.send_signal(signal.SIGCONT)
        wait_for(lambda: len(plane.grants()) == 1, message="the session to be adopted")
        assert plane.node_state() == "up"


def test_a_grant_ended_while_its_server_was_away_ends_when_it_returns(
    plane: ControlPlane,
) -> None:
    plane.client()
    [worker] = plane.session_worker_pids()
    [grant] = plane.grants()
    plane.stop("server", signal.SIGKILL)
    wait_for(lambda: plane.node_state() == "away")
    assert plane.rest.delete(f"/grants/{grant['id']}").status_code == 202
    plane.start_server()
    wait_for(lambda: worker not in plane.worker_pids(), message="the worker to end")
    wait_for(lambda: not plane.grants(), message="the grant to end")


def test_a_stopped_server_leaves_no_warm_worker_and_no_files(plane: ControlPlane) -> None:
    # the one that waits; the one that looked at the GPUs has gone
    wait_for(lambda: [bool(r["devices"]) for r in plane.worker_records()] == [True])
    [record] = plane.worker_records()
    warm = record["pid"]
    plane.stop("server")
    assert not Path(f"/proc/{warm}").exists()
    assert list((plane.folder / "run" / "workers").iterdir()) == []
    assert not (Path("/sys/fs/cgroup/pids/sluice") / record["id"]).exists()


def test_two_servers_cannot_share_a_run_dir(plane: ControlPlane) -> None:
    second = plane._run("server")
    assert second.wait(60) == 1
    assert "another sluice-server runs" in plane.log("server")


def test_a_waiting_request_survives_the_controllers_restart(tmp_path: Path) -> None:
    # a loaded machine takes more than a second to start a controller
    with running(tmp_path, patience=60) as plane:
        first = plane.client(ratio_percent=100)
        waiting = plane.client(ratio_percent=100, wait_seconds=60)
        assert waiting.first["status"] == 600
        plane.stop("controller", signal.SIGKILL)
        plane.start_controller()
        wait_for(lambda: plane.rest.get("/pool").json()["waiting"] == 1)
        first.kill()
        while (answer := waiting.read())["status"] == 600:
            pass
        assert answer["status"] == 0
