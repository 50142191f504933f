# SPDX-License-Identifier: Apache-2.0
"""Sessions whose GPU is another host's: two servers, one of them without a GPU, and real relays.

Skipped where the native part or the programs are not built.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for
from holder import Holder
from network_program import built
from pool_certificates import Pair, PoolCa
from relay_host import RelayHost, relay_host

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "programs"
VECTOR_ADD = PROGRAMS / "vector_add"

pytestmark = pytest.mark.skipif(
    not (built() and VECTOR_ADD.exists()), reason="the native part or the programs are not built"
)


@pytest.fixture
def host(plane: ControlPlane, tmp_path: Path) -> Iterator[RelayHost]:
    with relay_host(plane, tmp_path / "b") as without_gpu:
        yield without_gpu


def test_a_program_without_a_gpu_near_it_computes_and_gives_everything_back(
    plane: ControlPlane, host: RelayHost
) -> None:
    done = subprocess.run(
        [str(VECTOR_ADD)],
        check=False,
        env=host.environment(SLUICE_GMEM="512"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr + host.log()
    assert "wrong 0" in done.stdout
    wait_for(lambda: not plane.grants())
    [session] = plane.sessions("ended")
    assert (session["channel"], session["program"]) == ("relay", "vector_add")
    assert session["node"] == plane.node
    wait_for(lambda: not list((host.folder / "run" / "relays").iterdir()))
    assert host.relays() == []


def test_it_is_killed_and_its_vgpu_comes_back(plane: ControlPlane, host: RelayHost) -> None:
    holder = Holder(host.environment())
    assert holder.work() == 0
    [relay], [worker] = host.relays(), plane.session_worker_pids()
    holder.kill()
    wait_for(lambda: not plane.grants(), message="the grant to return")
    wait_for(lambda: worker not in plane.worker_pids(), message="the worker to end")
    wait_for(lambda: not Path(f"/proc/{relay['pid']}").exists(), message="the relay to end")


def test_a_killed_worker_is_a_cuda_error_and_nothing_stays(
    plane: ControlPlane, host: RelayHost
) -> None:
    holder = Holder(host.environment())
    assert holder.work() == 0
    [worker] = plane.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not plane.grants(), message="the grant to return")
    assert holder.work() != 0
    assert holder.work() != 0, "the error stays"
    wait_for(lambda: not host.relays() and not plane.session_worker_pids())
    said = holder.kill()
    assert "the session was ended by the pool" in said
    assert f"the connection to node {plane.node}" in said


def test_an_ended_grant_tells_the_program_why(plane: ControlPlane, host: RelayHost) -> None:
    holder = Holder(host.environment())
    assert holder.work() == 0
    [grant] = plane.grants()
    plane.rest.delete(f"/grants/{grant['id']}")
    wait_for(lambda: not plane.grants())
    assert holder.work() != 0
    assert "operator" in holder.kill()
    wait_for(lambda: not host.relays())


def test_it_goes_on_while_each_of_the_three_services_is_killed_and_returns(
    plane: ControlPlane, host: RelayHost
) -> None:
    holder = Holder(host.environment())
    assert holder.work() == 0
    # its worker has answered it before it tells its server
    [before] = wait_for(lambda: [s for s in plane.sessions() if s["state"] == "running"])

    host.stop(signal.SIGKILL)
    assert holder.work() == 0, "while its own server is away"
    host.start()
    assert holder.work() == 0, "after its own server came back"
    assert "adopted 1 session" in host.log()
    for service in ("server", "controller"):
        plane.stop(service, signal.SIGKILL)
        assert holder.work() == 0, f"while the {service} is away"
        plane.start_server() if service == "server" else plane.start_controller()
        wait_for(lambda: plane.node_state() == "up")
        wait_for(host.is_up)
        assert holder.work() == 0, f"after the {service} came back"
    [after] = plane.sessions()
    same = ("id", "grant_id", "node", "channel", "host", "program", "state")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert len(plane.grants()) == 1
    holder.kill()
    wait_for(lambda: not plane.grants() and not host.relays())


def test_a_program_whose_server_was_away_when_it_died_leaves_nothing(
    plane: ControlPlane, host: RelayHost
) -> None:
    holder = Holder(host.environment())
    host.stop(signal.SIGKILL)
    holder.kill()
    wait_for(lambda: not plane.grants(), message="the relay to see its client's end by itself")
    host.start()
    assert host.relays() == []


def test_a_host_with_a_gpu_of_its_own_relays_what_that_can_never_hold(
    plane: ControlPlane, tmp_path: Path
) -> None:
    # a warm worker's context and the session's own leave half of it
    small = {"driver": "softgpu", "context_overhead_mib": 1024}
    with relay_host(plane, tmp_path / "b", **small) as host:
        gpus = plane.rest.get("/gpus").json()["gpus"]
        assert {gpu["memory_mib"] for gpu in gpus} == {4096}
        for memory_mib, node in ((2048, host.node), (2049, plane.node)):
            done = subprocess.run(
                [str(VECTOR_ADD)],
                check=False,
                env=host.environment(SLUICE_GMEM=str(memory_mib)),
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            wait_for(lambda: not plane.grants())
            newest = max(plane.sessions("ended"), key=lambda each: str(each["started"]))
            assert newest["node"] == node


def test_a_host_that_does_not_relay_says_what_to_do(plane: ControlPlane, tmp_path: Path) -> None:
    with relay_host(plane, tmp_path / "b", enable_relay="false") as host:
        done = subprocess.run(
            [str(VECTOR_ADD)],
            check=False,
            env=host.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
        assert "node node-b has no GPU" in done.stdout + done.stderr
        assert "SLUICE_CONTROLLER" in done.stdout + done.stderr


def test_what_cannot_be_reached_is_refused_with_the_address_and_nothing_stays(
    tmp_path: Path,
) -> None:
    # nothing of this machine answers there (RFC 5737)
    with (
        running(tmp_path, server={"advertise_addr": "127.99.0.1"}) as plane,
        relay_host(plane, tmp_path / "b") as host,
    ):
        done = subprocess.run(
            [str(VECTOR_ADD)],
            check=False,
            env=host.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
        said = done.stdout + done.stderr
        assert f"node {plane.node} (127.99.0.1:{plane.data_port}) cannot be reached" in said
        wait_for(lambda: not plane.grants() and host.relays() == [])


@pytest.fixture(scope="module")
def pair(ca: PoolCa) -> Pair:
    return ca.issue("node-a")


@pytest.mark.parametrize("trusted", [True, False])
def test_under_tls_the_nodes_certificate_is_checked(
    ca: PoolCa, pair: Pair, tmp_path: Path, trusted: bool
) -> None:
    tls = {"data_plane": "true", "data_cert_file": pair.cert, "data_key_file": pair.key}
    mine = {"data_ca_file": ca.file if trusted else PoolCa(tmp_path / "other").file}
    with (
        running(tmp_path, server_tls=tls) as plane,
        relay_host(plane, tmp_path / "b", server_tls=mine) as host,
    ):
        done = subprocess.run(
            [str(VECTOR_ADD)],
            check=False,
            env=host.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        if trusted:
            assert done.returncode == 0, done.stderr
            assert "wrong 0" in done.stdout
            wait_for(lambda: not plane.grants())
            [session] = plane.sessions("ended")
            [log] = (host.folder / "log" / "session").glob(f"{session['id']}.log")
            assert "under TLS" in log.read_text()
        else:
            assert done.returncode != 0
            assert "its certificate is not accepted as node-a's" in done.stdout + done.stderr
        wait_for(lambda: not plane.grants())


@pytest.mark.parametrize("relayed", ["the one that gives way", "the one that is urgent"])
def test_a_relayed_session_gives_way_and_is_given_way(
    plane: ControlPlane, host: RelayHost, relayed: str
) -> None:
    plane.rest.put("/quotas/default", json={"may_preempt": True, "max_priority": 5})
    whole = {"SLUICE_RATIO": "100"}
    urgent = {**whole, "SLUICE_PREEMPT": "1", "SLUICE_PRIORITY": "5"}
    victim_is_relayed = relayed == "the one that gives way"
    far, near = host.environment, plane.program_environment
    places = (far, near) if victim_is_relayed else (near, far)
    victim = Holder(places[0](**whole))
    assert victim.work() == 0
    [lost] = plane.grants()
    winner = Holder(places[1](**urgent))
    assert winner.work() == 0
    assert victim.work() != 0
    ended = plane.rest.get(f"/grants/{lost['id']}").json()
    assert ended["reason"].startswith("preempted: request ")
    assert ended["cause"] == "preempted"
    assert "takes the room of priority 0" in victim.kill()
    [kept] = plane.grants()
    assert kept["id"] != lost["id"]
    left = 0 if victim_is_relayed else 1
    wait_for(lambda: len(host.relays()) == left, message="the relay of who gave way to end")
    winner.kill()
    wait_for(lambda: not plane.grants() and not host.relays())
