# SPDX-License-Identifier: Apache-2.0
"""Jobs of two nodes against servers that lie, keys that nobody takes and a store that is lost.

Skipped where the native part is missing.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, wait_for
from network_program import built
from node_pair import clean, of_both, two_nodes
from rank_process import Rank

from sluice.config.job_token import job_of
from sluice.protocol.cuda_status import CudaStatus
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

KEY_SECONDS = 60

pytestmark = pytest.mark.skipif(not built(), reason="the native part is missing")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A controller and two servers, each with one software GPU."""
    server = {"context_overhead_mib": "10", "network_grace_seconds": "6"}
    pool = {"job_linger_seconds": 2, "key_seconds": KEY_SECONDS}
    with two_nodes(tmp_path_factory.mktemp("nodes"), server, pool=pool) as both:
        yield both


@pytest.fixture
def pair(nodes: tuple[ControlPlane, ControlPlane]) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """The same, with nothing on them before and after."""
    first, second = nodes
    yield first, second
    for grant in first.grants():
        first.rest.delete(f"/grants/{grant['id']}")
    wait_for(lambda: clean(first, second))


def job_of_rank(plane: ControlPlane) -> dict[str, str]:
    """The environment of a job's ranks."""
    told = of_both(plane, SLUICE_JOB=secrets.token_hex(16), SLUICE_CHANNEL="tcp")
    return plane.program_environment(**told, SLUICE_GMEM="64")


def lose_store(plane: ControlPlane) -> None:
    """A controller that remembers nothing takes the place of the one that was."""
    plane.stop("controller", signal.SIGKILL)
    for file in plane.folder.glob("controller.db*"):
        file.unlink()
    plane.start_controller()


def booked(plane: ControlPlane) -> list[int]:
    """MiB of each GPU."""
    return [gpu["granted_mib"] for gpu in plane.rest.get("/gpus").json()["gpus"]]


def held_vgpus(plane: ControlPlane) -> int:
    """By the only project."""
    [quota] = plane.rest.get("/quotas").json()["quotas"]
    return int(quota["held_vgpus"])


def ask(plane: ControlPlane, job: dict[str, str], **more: Any) -> dict[str, Any]:
    """A process of the job that asks and does not come: where it could go."""
    body = {"job": job["SLUICE_JOB"], "vgpu_count": 2, "cross_node": True, "takes_parts": True}
    answer = plane.rest.post("/sessions", json={**body, **more})
    assert answer.status_code == 201, answer.text
    ticket: dict[str, Any] = answer.json()
    return ticket


def test_a_server_gets_no_session_of_a_job_of_the_network(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    """One that was taken over has been told the job's name and domain with its own part."""
    first, _ = pair
    job = job_of_rank(first)
    rank = Rank(0, job)
    assert rank.first == "2 0"
    with grpc.insecure_channel(f"127.0.0.1:{first.grpc_port}") as channel:
        for domain in ("net 127.0.0.1", "project vision"):
            stolen = rpc.GrantRequest(
                request_id="thief",
                node="node-b",
                job=job_of(job["SLUICE_JOB"]),
                job_domain=domain,
                chosen=[0],
                relay=True,
                channel="shm",
                vgpu_count=1,
            )
            call: Any = pool_pb2_grpc.PoolStub(channel).RequestGrant(stolen, timeout=20)
            answer = next(call)
            call.cancel()
            assert answer.WhichOneof("answer") == "refused", answer
            assert answer.refused.status == int(CudaStatus.NOT_PERMITTED)
            assert "job_domain" in answer.refused.message
    assert len(first.sessions()) == 2, "the job's own process has them"
    rank.close()


def test_the_end_of_a_job_takes_keys_that_nobody_has_used(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    job = job_of_rank(first)
    rank = Rank(0, job)
    assert rank.first == "2 0"
    ticket = ask(first, job)
    assert len(ticket["parts"]) == 2
    began = time.monotonic()
    assert first.rest.delete(f"/grants/{ticket['grant_id']}").status_code == 202
    wait_for(lambda: clean(first, second), seconds=30)
    assert time.monotonic() - began < KEY_SECONDS
    rank.close()


def test_the_keys_of_a_refused_join_go_at_once(pair: tuple[ControlPlane, ControlPlane]) -> None:
    """A node took its part of a process, the other did not: nobody can come with the first's."""
    first, second = pair
    job = job_of_rank(first)
    rank = Rank(0, job)
    assert rank.first == "2 0"
    assert second.server
    began = time.monotonic()
    second.server.send_signal(signal.SIGSTOP)
    try:
        body = {"job": job["SLUICE_JOB"], "vgpu_count": 2, "cross_node": True, "takes_parts": True}
        answer = first.rest.post("/sessions", json=body, timeout=60)
        assert answer.status_code == 503, answer.text
        assert "node node-b did not take session" in answer.json()["detail"]
    finally:
        second.server.send_signal(signal.SIGCONT)
    # A node hears everything in order: once it serves another process, it has heard that, too.
    other = Rank(1, job)
    assert other.first == "2 1"
    other.close()
    wait_for(lambda: len(first.sessions()) == 2)
    lose_store(first)  # so that it hears from the nodes whom they expect
    for plane in pair:
        wait_for(lambda plane=plane: plane.node_state() == "up")
    assert time.monotonic() - began < KEY_SECONDS
    assert len(first.sessions()) == 2, "the job's own process has them"
    assert rank.do("works 1") == "0"
    rank.close()


def test_a_part_that_nobody_used_when_the_store_was_lost_is_anybodys(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    """No node tells of it: it is booked for nobody, and the job opens no session there."""
    first, second = pair
    job = job_of_rank(first)
    stays, leaves = (Rank(0, {**job, "CUDA_VISIBLE_DEVICES": str(each)}) for each in (0, 1))
    assert [stays.first, leaves.first] == ["1 0", "1 0"]
    [before] = first.grants()
    first.stop("controller", signal.SIGKILL)
    leaves.close()
    wait_for(lambda: not second.session_worker_pids())
    lose_store(first)
    for plane in pair:
        wait_for(lambda plane=plane: plane.node_state() == "up")
    [grant] = first.grants()
    assert grant["id"] == before["id"]
    assert [vgpu["gpu"] for vgpu in grant["vgpus"]] == [before["vgpus"][0]["gpu"], "?:unknown"]
    assert booked(first) == [64 + 10, 0]
    assert held_vgpus(first) == 1
    alone = {**job, "SLUICE_VGPU": "1", "SLUICE_JOB": "", "SLUICE_RATIO": "100"}
    another = Rank(0, alone)
    assert another.first == "1 0"
    assert booked(first) == [64 + 10, 64 + 10]
    assert held_vgpus(first) == 2
    for chosen in ("0", "1"):
        late = Rank(0, {**job, "CUDA_VISIBLE_DEVICES": chosen, "SLUICE_WAIT": "0"})
        assert late.first.startswith("failed ")
        assert "no node has told of vGPU 1 of its job since the store was lost" in late.close()
    assert [stays.do("works 0"), another.do("works 0")] == ["0", "0"]
    stays.close()
    wait_for(lambda: [g["id"] for g in first.grants()] != [before["id"]])
    another.close()
    wait_for(lambda: clean(first, second))
    anew = Rank(1, job)
    assert anew.first == "2 1"
    assert before["id"] not in [g["id"] for g in first.grants()]
    anew.close()


def test_a_part_that_was_told_of_is_the_jobs_though_nobody_uses_it_any_more(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    """Its next process opens its session there; with the last one it is given back."""
    first, second = pair
    job = job_of_rank(first)
    stays, leaves = (Rank(0, {**job, "CUDA_VISIBLE_DEVICES": str(each)}) for each in (0, 1))
    lose_store(first)
    for plane in pair:
        wait_for(lambda plane=plane: plane.node_state() == "up")
    leaves.close()
    wait_for(lambda: len(first.sessions()) == 1)
    second.stop("server")
    second.start_server()
    wait_for(lambda: second.node_state() == "up")
    assert booked(first) == [64 + 10, 64 + 10]
    assert held_vgpus(first) == 2
    alone = {**job, "SLUICE_VGPU": "1", "SLUICE_JOB": "", "SLUICE_WAIT": "0"}
    another = Rank(0, alone)
    assert another.first.startswith("failed ")
    another.close()
    again = Rank(0, {**job, "CUDA_VISIBLE_DEVICES": "1"})
    assert again.first == "1 0"
    assert {s["node"] for s in first.sessions()} == {"node-a", "node-b"}
    for each in (stays, again):
        each.close()
    wait_for(lambda: clean(first, second))


def test_a_controller_that_lost_its_store_believes_both_nodes(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    job = job_of_rank(first)
    rank = Rank(0, job)
    assert rank.first == "2 0"
    [before] = first.grants()
    lose_store(first)
    for plane in pair:
        wait_for(lambda plane=plane: plane.node_state() == "up")
    [grant] = first.grants()
    assert grant["id"] == before["id"]
    assert {v["gpu"] for v in grant["vgpus"]} == {v["gpu"] for v in before["vgpus"]}
    assert {s["node"] for s in first.sessions()} == {"node-a", "node-b"}
    gpus = first.rest.get("/gpus").json()["gpus"]
    assert [gpu["granted_mib"] for gpu in gpus] == [64 + 10] * 2
    again = Rank(1, job)
    assert again.first == "2 1"
    assert len(first.sessions()) == 4
    for each in (rank, again):
        each.close()
    wait_for(lambda: clean(first, second))


def test_devices_are_in_the_same_order_though_the_second_node_came_back_first(
    pair: tuple[ControlPlane, ControlPlane],
) -> None:
    first, second = pair
    job = job_of_rank(first)
    rank = Rank(0, job)
    assert rank.first == "2 0"
    [before] = first.grants()
    first.stop("server", signal.SIGKILL)
    lose_store(first)
    wait_for(lambda: second.node_state() == "up")
    late = Rank(1, {**job, "SLUICE_WAIT": "0"})
    assert late.first.startswith("failed ")
    assert "no node has told of vGPU 0 of its job since the store was lost" in late.close()
    [grant] = first.grants()
    assert [vgpu["gpu"] for vgpu in grant["vgpus"]] == ["?:unknown", before["vgpus"][1]["gpu"]]
    first.start_server()
    wait_for(lambda: first.node_state() == "up")
    again = Rank(1, job)
    assert again.first == "2 1"
    [grant] = first.grants()
    assert grant["id"] == before["id"]
    assert grant["vgpus"] == before["vgpus"]
    chosen = {(s["node"], tuple(s["chosen"])) for s in first.sessions()}
    assert chosen == {("node-a", (0,)), ("node-b", (1,))}
    assert again.do("peer") == "18"
    for each in (rank, again):
        each.close()
    wait_for(lambda: clean(first, second))
