# SPDX-License-Identifier: Apache-2.0
"""Jobs whose vGPUs are of two nodes: ranks that see both devices, on real servers and workers.

NCCL is a stand-in (meeting_nccl.c) that adds what the ranks have, wherever their workers are.
Skipped where the native part or a C compiler is missing.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import rank_process
from control_plane import ControlPlane, running, wait_for
from free_ports import free_port
from network_program import built
from node_pair import clean, of_both, two_nodes
from rank_process import Rank

from sluice.config.native_files import find_native

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MEETING_BYTES = 8 << 20
LINGER_SECONDS = 5
NOT_PERMITTED, ENDED = "800", "802"

pytestmark = pytest.mark.skipif(
    not built() or not shutil.which("cc"), reason="the native part or a C compiler is missing"
)


def meeting_nccl(folder: Path) -> dict[str, str]:
    """Makes the stand-in and its network, of which the servers' workers are told."""
    folder.chmod(0o755)  # workers have accounts of their own
    library, network = folder / "libnccl.so.2", folder / "network"
    options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libnccl.so.2", "-ldl"]
    source = str(HERE / "meeting_nccl.c")
    subprocess.run(["cc", source, *options, "-o", str(library)], check=True)
    network.write_bytes(bytes(MEETING_BYTES))
    network.chmod(0o666)
    return {"NCCL_MEETING": str(network)}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A controller and two servers, each with one software GPU."""
    with tempfile.TemporaryDirectory() as libraries:
        environment = meeting_nccl(Path(libraries))
        folder = tmp_path_factory.mktemp("nodes")
        # on the software GPU a sandbox lets nothing be written, as the network is
        server = {"cuda_libraries": libraries, "worker_sandbox": "false"}
        server |= {"context_overhead_mib": "10", "network_grace_seconds": "6"}
        pool = {"job_linger_seconds": LINGER_SECONDS}
        with two_nodes(folder, server, environment, pool=pool, as_admin=True) as both:
            yield both


@pytest.fixture
def pair(nodes: tuple[ControlPlane, ControlPlane]) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """The same, with nothing on them before and after, though a job's grant lingers."""
    first, second = nodes
    wait_for(lambda: clean(first, second))
    yield first, second
    wait_for(lambda: not first.sessions())
    wait_for(lambda: not first.session_worker_pids() + second.session_worker_pids())
    for grant in first.grants():
        first.rest.delete(f"/grants/{grant['id']}")
    wait_for(lambda: clean(first, second))


def job_of(plane: ControlPlane, **more: str) -> dict[str, str]:
    """The environment of a job's ranks."""
    told = of_both(plane, SLUICE_JOB=secrets.token_hex(16), SLUICE_CHANNEL="tcp")
    return plane.program_environment(**told, SLUICE_GMEM="64", **more)


def ranks_of(job: dict[str, str]) -> tuple[Rank, Rank]:
    """Both, as torchrun has them; each sees both devices and has its own current."""
    ranks = Rank(0, job), Rank(1, job)
    assert [rank.first for rank in ranks] == ["2 0", "2 1"]
    return ranks


def together(ranks: tuple[Rank, Rank], *lines: str) -> list[str]:
    """A command to each, which wait for one another, and the answers."""
    for rank, line in zip(ranks, lines, strict=True):
        rank.ask(line)
    return [rank.read() for rank in ranks]


def join(ranks: tuple[Rank, Rank]) -> None:
    """One communicator of both."""
    name = ranks[0].do("id")
    assert together(ranks, f"join {name}", f"join {name}") == ["0", "0"]


def test_ranks_of_one_job_reduce_and_copy_over_both_nodes(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    ranks = ranks_of(job_of(first))
    [grant] = first.grants()
    assert [vgpu["gpu"].split(":")[0] for vgpu in grant["vgpus"]] == ["node-a", "node-b"]
    wait_for(lambda: {s["state"] for s in first.sessions()} == {"running"})
    assert sorted(s["node"] for s in first.sessions()) == ["node-a"] * 2 + ["node-b"] * 2
    gpus = first.rest.get("/gpus").json()["gpus"]
    assert [gpu["granted_mib"] for gpu in gpus] == [64 + 2 * 10] * 2, "booked once, two contexts"
    join(ranks)
    for step in range(1, 4):
        assert together(ranks, f"reduce {step}", f"reduce {10 * step}") == [str(11 * step)] * 2
    assert together(ranks, "peer", "peer") == ["17", "18"]
    assert [len(p.session_worker_pids()) for p in (first, second)] == [2, 2]
    said = [rank.close() for rank in ranks]
    assert not any("not connected to each other" in text for text in said), said
    wait_for(lambda: clean(first, second), message="the grant to go by itself")


def test_a_rank_that_chooses_one_device_is_on_its_node_only(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, _ = pair
    job = job_of(first)
    ranks = Rank(0, {**job, "CUDA_VISIBLE_DEVICES": "1"}), Rank(1, job)
    assert [rank.first for rank in ranks] == ["1 0", "2 1"]
    assert sorted(s["node"] for s in first.sessions()) == ["node-a", "node-b", "node-b"]
    assert [s["chosen"] for s in first.sessions() if s["node"] == "node-b"] == [[1], [1]]
    join(ranks)
    assert together(ranks, "reduce 1", "reduce 2") == ["3", "3"]
    turned = Rank(0, {**job, "CUDA_VISIBLE_DEVICES": "1,0"})
    assert turned.first == "2 0"
    assert turned.do("peer") == "17"
    for rank in (*ranks, turned):
        assert "not connected to each other" not in rank.close()


def test_a_node_that_dies_in_a_collective_costs_its_device_and_leaves_nothing(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    ranks = ranks_of(job_of(first))
    join(ranks)
    ranks[0].ask("reduce 1")
    workers = second.session_worker_pids()
    assert len(workers) == 2
    second.stop("server", signal.SIGKILL)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    try:
        wait_for(lambda: ranks[1].do("works 1") != "0")
        assert ranks[1].do("works 0") == "0", "the other node's device goes on"
        # its rank is gone: rank 0 waits, as natively, until whoever started it ends it
        assert "node node-b is lost" in ranks[1].close()
        ranks[0].kill()
        wait_for(lambda: not first.session_worker_pids(), seconds=20)
    finally:
        second.start_server()
    wait_for(lambda: clean(first, second))


def test_a_killed_rank_leaves_the_others_their_devices(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    ranks = ranks_of(job_of(first))
    ranks[0].kill()
    wait_for(lambda: sorted(s["node"] for s in first.sessions()) == ["node-a", "node-b"])
    assert [len(p.session_worker_pids()) for p in (first, second)] == [1, 1]
    assert [ranks[1].do(f"works {device}") for device in (0, 1)] == ["0", "0"]
    ranks[1].close()


def test_the_operator_ends_it_on_both_nodes(pair: tuple[ControlPlane, ControlPlane]) -> None:
    first, second = pair
    ranks = ranks_of(job_of(first))
    assert together(ranks, "peer", "peer") == ["17", "18"]
    [grant] = first.grants()
    suspended = first.rest.post(f"/grants/{grant['id']}/suspend")
    assert suspended.status_code == 409
    assert "vGPUs of 2 nodes, which cannot be suspended together" in suspended.text
    assert first.rest.delete(f"/grants/{grant['id']}").status_code == 202
    wait_for(lambda: clean(first, second))
    for rank in ranks:
        assert [rank.do(f"works {device}") for device in (0, 1)] == [ENDED] * 2
        said = rank.close()
        assert "ended by the operator" in said
        assert "its worker is gone" not in said


def test_it_outlives_controller_and_servers(pair: tuple[ControlPlane, ControlPlane]) -> None:
    first, second = pair
    job = job_of(first)
    ranks = ranks_of(job)
    join(ranks)
    [before] = first.grants()
    first.stop("controller", signal.SIGKILL)
    assert together(ranks, "reduce 1", "reduce 2") == ["3", "3"]
    second.stop("server", signal.SIGKILL)
    first.start_controller()
    second.start_server()
    for plane in pair:
        wait_for(lambda plane=plane: plane.node_state() == "up")
    third = Rank(1, job)
    assert third.first == "2 1"
    [grant] = first.grants()
    assert grant["id"] == before["id"]
    assert len(first.sessions()) == 6
    assert together(ranks, "reduce 3", "reduce 4") == ["7", "7"]
    assert third.do("peer") == "18"
    for rank in (*ranks, third):
        rank.close()


def test_nobody_else_who_knows_its_token_is_let_in_on_the_other_node(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    job = job_of(first)
    rank = Rank(0, job)
    # beside the second node's GPU, by its server's own socket
    beside = second.client(job=job["SLUICE_JOB"], vgpu_count=1)
    assert str(beside.first["status"]) == NOT_PERMITTED
    assert "belongs to another user, container, VM or address" in beside.first["message"]
    # of another project
    token = {"name": "t", "role": "tenant", "project": "other"}
    secret = first.rest.post("/tokens", json=token).json()["secret"]
    thief = Rank(1, {**job, "SLUICE_TOKEN": secret})
    assert thief.first == f"failed {NOT_PERMITTED}"
    assert "belongs to another user" in thief.close()
    # at another address
    body = {"job": job["SLUICE_JOB"], "vgpu_count": 2, "cross_node": True, "takes_parts": True}
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(transport=elsewhere, base_url=first.rest.base_url, timeout=15) as client:
        answer = client.post("sessions", json=body)
    assert answer.status_code == 409, answer.text
    assert answer.json()["cuda_error"] == int(NOT_PERMITTED)
    # and a client that can have one session is told what to do
    narrow = {**body, "takes_parts": False}
    with httpx.Client(base_url=first.rest.base_url, timeout=15) as client:
        answer = client.post("sessions", json=narrow)
    assert answer.status_code == 409, answer.text
    assert "set SLUICE_CROSS_NODE=1 and SLUICE_CHANNEL=tcp" in answer.json()["detail"]
    assert len(first.sessions()) == 2, "the job's own process has them"
    assert rank.do("works 1") == "0"
    rank.close()


def test_its_ranks_take_nothing_near_where_no_controller_answers(tmp_path: Path) -> None:
    """The next rank may find the controller back, to which a near one's grant is another's."""
    with running(tmp_path, environment={"SLUICE_SOFTGPU_COUNT": "2"}) as plane:
        job = plane.program_environment(
            **of_both(plane, SLUICE_JOB=secrets.token_hex(16), SLUICE_CHANNEL="auto"),
            SLUICE_SERVER_SOCKET=str(plane.socket_path),
            SLUICE_GMEM="64",
        )
        rank = Rank(0, {**job, "SLUICE_CONTROLLER": f"127.0.0.1:{free_port()}"})
        assert rank.first == "failed 100"
        said = rank.close()
        for setting in ("SLUICE_CROSS_NODE", "SLUICE_CHANNEL=auto", "SLUICE_CONTROLLER"):
            assert setting in said
        assert not plane.grants(), "though its two GPUs would have done"
        ranks = ranks_of(job)
        assert {s["channel"] for s in plane.sessions()} == {"tcp"}
        for rank in ranks:
            rank.close()


class Launcher:
    """`sluice run --share` of a shell that starts what it is told to."""

    def __init__(self, plane: ControlPlane) -> None:
        near = of_both(plane, SLUICE_CHANNEL="auto")
        environment = plane.program_environment(
            **near,
            PYTHONPATH=str(ROOT / "python"),
            SLUICE_LIBRARIES=str(find_native("libcuda.so.1").parent),
        )
        environment.pop("LD_LIBRARY_PATH")
        run = [sys.executable, "-m", "sluice.guest_runtime", "run", "--share", "--gmem", "64"]
        self.process = subprocess.Popen(
            [*run, "sh", "-c", 'while read -r line; do eval "$line"; done'],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run_rank(self, rank: int) -> str:
        """A rank from its beginning to its end."""
        assert self.process.stdin
        assert self.process.stdout
        program = rank_process.__file__
        line = f"echo works 1 | LOCAL_RANK={rank} {sys.executable} {program} | tail -1\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> int:
        """The job's end."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(60)


def test_its_launcher_holds_it_where_its_sessions_are(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    """Though a server is near, the controller is asked, also by a launcher that lost it."""
    first, second = pair
    launcher = Launcher(first)
    assert launcher.run_rank(0) == "0"
    [grant] = first.grants()
    assert {vgpu["gpu"].split(":")[0] for vgpu in grant["vgpus"]} == {"node-a", "node-b"}
    first.stop("controller", signal.SIGKILL)
    time.sleep(2)  # it asks again meanwhile, and nobody answers
    first.start_controller()
    for plane in pair:
        wait_for(lambda plane=plane: plane.node_state() == "up")
    until = time.monotonic() + LINGER_SECONDS + 1
    while time.monotonic() < until:
        assert first.grants()
        time.sleep(0.1)
    assert launcher.run_rank(1) == "0"
    assert [g["id"] for g in first.grants()] == [grant["id"]]
    assert launcher.close() == 0
    wait_for(lambda: clean(first, second))
