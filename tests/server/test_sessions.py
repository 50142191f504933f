# SPDX-License-Identifier: Apache-2.0
"""A session over the Unix socket: how it begins, and that everything comes back when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import unix_client
from control_plane import ControlPlane, running, wait_for

pytestmark = pytest.mark.control_plane(reused=True)


def test_a_client_gets_its_session_and_everything_returns_when_it_is_killed(
    plane: ControlPlane,
) -> None:
    client = plane.client(gmem_mib=1024, ratio_percent=10, program="vector_add")
    assert client.first["status"] == 0, client.first
    assert client.first["descriptors"] == 2, "the memory and the worker's pidfd"
    [grant] = plane.grants()
    assert [v["memory_mib"] for v in grant["vgpus"]] == [1024]
    assert [v["compute_percent"] for v in grant["vgpus"]] == [10]
    session = wait_for(lambda: [s for s in plane.sessions() if s["state"] == "running"])[0]
    assert session["id"] == client.session_id
    assert session["program"] == "vector_add"
    assert session["client_pid"] == client.process.pid
    [worker] = plane.session_worker_pids()
    client.kill()
    wait_for(lambda: not plane.grants(), message="the grant to return")
    wait_for(lambda: worker not in plane.worker_pids(), message="the worker to end")


def test_kill_of_the_worker_returns_the_grant_and_leaves_no_files(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=512)
    [worker] = plane.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not plane.grants(), message="the grant to return")
    [session] = [s for s in plane.sessions("ended") if s["id"] == client.session_id]
    assert "killed or crashed" in session["reason"]
    assert session["cause"] == "worker-failed"

    def files_are_of_workers() -> bool:
        names = {path.stem for path in (plane.folder / "run" / "workers").iterdir()}
        return names == {record["id"] for record in plane.worker_records()}

    wait_for(files_are_of_workers)  # the next one is being started
    log = plane.rest.get(f"/sessions/{client.session_id}/log").text
    assert f"session={client.session_id}" in log
    assert "ended: the worker ended without a word" in log


def test_a_worker_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, fake=True, environment={"SLUICE_FAKE_WORKER_MODE": "stubborn"}) as plane:
        client = plane.client()
        [worker] = plane.session_worker_pids()
        plane.rest.delete(f"/grants/{plane.grants()[0]['id']}")
        wait_for(lambda: worker not in plane.worker_pids(), message="the worker to be killed")
        wait_for(lambda: not plane.grants())
        assert client.process.poll() is None


def test_a_worker_that_refuses_its_session_costs_the_client_an_error_and_no_grant(
    tmp_path: Path,
) -> None:
    with running(tmp_path, fake=True, environment={"SLUICE_FAKE_WORKER_MODE": "broken"}) as plane:
        client = plane.client()
        assert client.first["status"] == 304
        assert "FakeWorker was told to be broken" in client.first["message"]
        wait_for(lambda: not plane.grants())


def test_more_memory_than_any_gpu_has_is_refused_at_once_and_logged(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=1 << 24, wait_seconds=-1)  # it would wait for ever
    assert client.first["status"] == 2
    assert "wanted 16777216 MiB in one vGPU; the largest" in client.first["message"]
    assert "SLUICE_GMEM" in client.first["message"]
    assert "refused: " in plane.log("server")
    assert plane.grants() == []


def test_a_full_pool_refuses_at_once_or_lets_wait_with_a_line(plane: ControlPlane) -> None:
    first = plane.client(ratio_percent=100)
    refused = plane.client(ratio_percent=50)
    assert refused.first["status"] == 46
    assert "SLUICE_WAIT" in refused.first["message"]
    waiting = plane.client(ratio_percent=50, wait_seconds=20)
    assert waiting.first["status"] == 600
    assert "position 1 of 1" in waiting.first["message"]
    first.kill()
    assert waiting.read()["status"] == 0


def test_a_waiting_client_that_is_killed_leaves_the_queue(plane: ControlPlane) -> None:
    plane.client(ratio_percent=100)
    waiting = plane.client(ratio_percent=100, wait_seconds=-1)
    assert plane.rest.get("/pool").json()["waiting"] == 1
    waiting.kill()
    wait_for(lambda: plane.rest.get("/pool").json()["waiting"] == 0)
    assert len(plane.grants()) == 1


def test_waiting_ends_when_its_time_is_over(plane: ControlPlane) -> None:
    plane.client(ratio_percent=100)
    waiting = plane.client(ratio_percent=100, wait_seconds=1)
    assert waiting.first["status"] == 600
    answer = waiting.read()
    assert answer["status"] == 46
    assert "after 1 s" in answer["message"]


def test_four_default_slices_fit_and_the_fifth_does_not(plane: ControlPlane) -> None:
    clients = [plane.client() for _ in range(5)]
    assert [client.first["status"] for client in clients] == [0, 0, 0, 0, 46]
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    assert gpu["granted_percent"] == 100
    assert gpu["granted_mib"] <= gpu["memory_mib"]


def test_a_stopped_client_keeps_its_session(plane: ControlPlane) -> None:
    client = plane.client()
    client.process.send_signal(signal.SIGSTOP)
    time.sleep(4)  # longer than the worker's own time limits of this test
    assert len(plane.grants()) == 1
    client.process.send_signal(signal.SIGCONT)


def test_exec_of_another_program_ends_the_session_of_the_first(plane: ControlPlane) -> None:
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); sys.argv[1:] = sys.argv[2:];"
        "import unix_client, io; sys.stdin = io.StringIO('');"
        "unix_client.main();"
        "os.execv(sys.executable, [sys.executable, os.environ['CLIENT'], *sys.argv[1:]])"
    )
    harness = Path(unix_client.__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(harness), str(plane.socket_path), "{}"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        env={**os.environ, "CLIENT": str(harness / "unix_client.py")},
        text=True,
    )
    try:
        assert process.stdout
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (first["status"], second["status"]) == (0, 0)
        wait_for(lambda: len(plane.grants()) == 1, message="the first grant to return")
        assert plane.sessions()[0]["id"] == f"{second['session_id']:016x}"
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not plane.grants())


def test_a_session_has_a_cgroup_that_goes_with_it(plane: ControlPlane) -> None:
    groups = [Path("/sys/fs/cgroup/pids/sluice"), Path("/sys/fs/cgroup/sluice")]
    parent = next((g for g in groups if g.is_dir()), None)
    if parent is None or "run without memory and thread limits" in plane.log("server"):
        pytest.skip("no writable cgroup hierarchy on this machine")
    client = plane.client()
    [record] = [r for r in plane.worker_records() if r["session"]]
    assert (parent / record["id"] / "pids.max").read_text() == "1024\n"
    kind = "memory/sluice" if parent.parent.name == "pids" else "sluice"
    limit = "memory.limit_in_bytes" if parent.parent.name == "pids" else "memory.max"
    memory = Path("/sys/fs/cgroup") / kind / record["id"] / limit
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert int(memory.read_text()) <= host * 3 // 4, "a session has a bound by default"
    assert str(record["pid"]) in (parent / record["id"] / "cgroup.procs").read_text().split()
    client.kill()
    wait_for(lambda: not (parent / record["id"]).exists())
