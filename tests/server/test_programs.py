# SPDX-License-Identifier: Apache-2.0
"""An unmodified CUDA program through client library, server, controller, worker and software GPU.

Skipped where the native part or the programs are not built.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for
from holder import Holder
from network_program import built

VECTOR_ADD = str(Path(__file__).resolve().parents[2] / "build" / "programs" / "vector_add")


pytestmark = pytest.mark.skipif(
    not (built() and Path(VECTOR_ADD).exists()),
    reason="the native part or the programs are not built",
)


def start(plane: ControlPlane, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [VECTOR_ADD],
        env=plane.program_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_program_computes_and_gives_everything_back(plane: ControlPlane, channel: str) -> None:
    program = start(plane, SLUICE_CHANNEL=channel, SLUICE_GMEM="512")
    out, error = program.communicate(timeout=60)
    assert program.returncode == 0, error
    assert "wrong 0" in out
    wait_for(lambda: not plane.grants())
    [session] = plane.sessions("ended")
    assert (session["channel"], session["program"]) == (channel, "vector_add")


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_killed_program_gives_everything_back(plane: ControlPlane, channel: str) -> None:
    holder = Holder(plane.program_environment(SLUICE_CHANNEL=channel))
    assert holder.work() == 0
    [worker] = plane.session_worker_pids()
    holder.kill()
    wait_for(lambda: not plane.grants(), message="the grant to return")
    wait_for(lambda: worker not in plane.worker_pids(), message="the worker to end")


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_program_goes_on_through_the_restart_of_server_and_controller(
    plane: ControlPlane, channel: str
) -> None:
    holder = Holder(plane.program_environment(SLUICE_CHANNEL=channel))
    for service in ("server", "controller"):
        plane.stop(service, signal.SIGKILL)
        assert holder.work() == 0, f"while the {service} is away"
        plane.start_server() if service == "server" else plane.start_controller()
        wait_for(lambda: plane.node_state() == "up")
        assert holder.work() == 0, f"after the {service} came back"
        assert len(plane.grants()) == 1
    holder.kill()
    wait_for(lambda: not plane.grants())


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_killed_worker_is_a_cuda_error_for_its_program(plane: ControlPlane, channel: str) -> None:
    holder = Holder(plane.program_environment(SLUICE_CHANNEL=channel))
    assert holder.work() == 0
    [worker] = plane.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not plane.grants())
    assert holder.work() != 0
    assert holder.work() != 0, "the error stays"
    holder.kill()


def test_a_program_that_asks_for_too_much_gets_a_cuda_error_at_once(plane: ControlPlane) -> None:
    program = start(plane, SLUICE_GMEM="16000000", SLUICE_WAIT="-1")
    out, error = program.communicate(timeout=60)
    assert program.returncode != 0
    assert "position" not in error, "it would wait for ever"
    assert "wanted 16000000 MiB in one vGPU" in out + error
    assert "refused: vector_add" in plane.log("server")


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_an_ended_grant_is_a_cuda_error_for_its_program(plane: ControlPlane, channel: str) -> None:
    holder = Holder(plane.program_environment(SLUICE_CHANNEL=channel))
    [grant] = plane.grants()
    plane.rest.delete(f"/grants/{grant['id']}")
    wait_for(lambda: not plane.grants())
    assert holder.work() != 0
    holder.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers under another account")
def test_workers_run_under_their_own_account(tmp_path: Path) -> None:
    with running(tmp_path, server={"worker_user": "nobody", "worker_uids": ""}) as plane:
        client = plane.client()
        assert client.first["status"] == 0, client.first
        [worker] = plane.session_worker_pids()
        status = Path(f"/proc/{worker}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(fields["Uid"].split()) == {"65534"}
        assert set(fields["Gid"].split()) == {"65534"}
        assert int(fields["CapEff"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        client.kill()
        wait_for(lambda: not plane.grants())
