# SPDX-License-Identifier: Apache-2.0
"""Several controllers over etcd, all real processes: a leader that is killed or paused amid grants
costs seconds and not one grant; who does not lead says who does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import etcd_members
import grpc
import httpx
import pytest
from control_plane import PYTHON_PATH, ControlPlane, wait_for
from controllers import Controllers, SimulatedServer, controllers
from forks import run_command

from sluice.nova_driver.pool_events import PoolEvent, follow
from sluice.pool_client.access import Access, Credentials
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

pytestmark = pytest.mark.skipif(not etcd_members.is_there(), reason="etcd is not installed")

CALLERS = 16


@pytest.fixture
def members_of_one(tmp_path: Path) -> Iterator[etcd_members.EtcdMembers]:
    with etcd_members.etcd_members(tmp_path / "etcd") as one:
        yield one


@pytest.fixture
def two(tmp_path: Path, members_of_one: etcd_members.EtcdMembers) -> Iterator[Controllers]:
    store = {"kind": "etcd", "endpoints": members_of_one.endpoints[0]}
    with controllers(tmp_path, 2, store) as several:
        yield several


@pytest.fixture
def members(tmp_path: Path) -> Iterator[etcd_members.EtcdMembers]:
    with etcd_members.etcd_members(tmp_path / "etcd", 3) as three:
        yield three


@pytest.fixture
def three(tmp_path: Path, members: etcd_members.EtcdMembers) -> Iterator[Controllers]:
    with controllers(
        tmp_path, 3, {"kind": "etcd", "endpoints": ",".join(members.endpoints)}
    ) as several:
        yield several


def test_a_follower_refers_to_the_leader(two: Controllers) -> None:
    leader, follower = two.both()
    answer = httpx.delete(f"http://{two.rest[follower]}/v1/grants/a%2Fb?reason=x+y")
    assert answer.status_code == 307
    assert answer.headers["location"] == (f"http://{two.rest[leader]}/v1/grants/a%2Fb?reason=x+y")
    with grpc.insecure_channel(two.grpc[follower]) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            pool_pb2_grpc.PoolStub(channel).ReleaseGrant(rpc.GrantRelease(grant_id="x"))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(refused.value.trailing_metadata())["sluice-leader"] == two.grpc[leader]

    def cli(controller: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(PYTHON_PATH)}
        return run_command("node", "list", "--controller", controller, environment=environment)

    assert cli(two.rest[follower]).returncode == 0
    assert cli(f"127.0.0.1:1,{two.rest[follower]}").returncode == 0
    two.signal(leader, signal.SIGTERM)
    done = cli(two.addresses)  # waits for the election
    assert done.returncode == 0, done.stderr


async def test_a_stream_is_the_leaders_whoever_is_asked_for_it(
    tmp_path: Path, members_of_one: etcd_members.EtcdMembers
) -> None:
    """With the caller's token, which HTTP clients leave behind on the way to another host."""
    store = {"kind": "etcd", "endpoints": members_of_one.endpoints[0]}
    with controllers(tmp_path, 2, store, auth={"required": "yes"}) as pair:
        token_file = tmp_path / "token"
        token_file.write_text(pair.first_token())
        token_file.chmod(0o600)
        credentials = Credentials(token_file=token_file)
        follower = pair.rest[pair.both()[1]]
        asked = ["127.0.0.1:1", follower]  # the first is away
        followed = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sluice.cli", "events", "--follow", "--since", "0"),
            *("-o", "json", "--controller", ",".join(asked)),
            env={
                **os.environ,
                "PYTHONPATH": str(PYTHON_PATH),
                "SLUICE_TOKEN": credentials.token(),
            },
            stdout=subprocess.PIPE,
        )
        assert followed.stdout
        try:
            assert await asyncio.wait_for(followed.stdout.readline(), 60)
        finally:
            followed.kill()
            await followed.wait()
        access = Access.of(",".join(asked), credentials)
        async with asyncio.timeout(60), contextlib.aclosing(follow(access)) as told:
            assert await anext(told) == PoolEvent()  # it has connected


def test_a_leader_that_is_stopped_hands_over_at_once(two: Controllers) -> None:
    leader, follower = two.both()
    two.signal(leader, signal.SIGTERM)
    assert two.leader() == follower
    assert "leading: " in two.log(follower)
    two.start_one(leader)
    assert two.both() == (follower, leader)


async def under_load(
    several: Controllers,
    server: SimulatedServer,
    disturb: Callable[[], Awaitable[None]],
    seconds_after: float = 3.0,
) -> float:
    """Callers take and return grants while something happens; returns the longest gap."""
    await server.joined()
    callers = [asyncio.create_task(server.call()) for _ in range(CALLERS)]
    async with asyncio.timeout(60):
        while len(server.acknowledged) <= 50:
            await asyncio.sleep(0.05)
    began = time.monotonic()
    await disturb()
    while not server.acknowledged[-1] > began + 1 or not server.link.is_connected:
        assert time.monotonic() < began + 60, "no grant after what happened"
        await asyncio.sleep(0.05)
    await asyncio.sleep(seconds_after)
    gap = server.longest_gap(began)
    # what is under way is finished, so that the books can be compared
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return gap


async def settled(several: Controllers, server: SimulatedServer) -> None:
    """The books become what the server runs, and stay so."""
    deadline = time.monotonic() + 60
    while True:
        grants = await asyncio.to_thread(several.grants)
        held = {grant["id"] for grant in grants}
        if held == set(server.running):
            break
        assert time.monotonic() < deadline, (
            f"lost: {set(server.running) - held}, orphaned: {held - set(server.running)}"
        )
        await asyncio.sleep(0.2)
    assert server.ended_by_controller == []  # nothing that was acknowledged was taken away
    used: dict[str, int] = {}
    for grant in grants:
        for vgpu in grant["vgpus"]:
            used[vgpu["gpu"]] = used.get(vgpu["gpu"], 0) + vgpu["compute_percent"]
    assert all(percent <= 100 for percent in used.values())


@pytest.mark.cluster
async def test_a_killed_leader_costs_seconds_and_no_grant(three: Controllers) -> None:
    server = SimulatedServer("node-a", three.grpc)

    async def kill() -> None:
        three.signal(await asyncio.to_thread(three.leader), signal.SIGKILL)

    try:
        gaps = [await under_load(three, server, kill)]
        await settled(three, server)
        survivor = await asyncio.to_thread(three.leader)
        dead = three.processes.index(None)
        three.start_one(dead)
        gaps.append(await under_load(three, server, kill))
        assert await asyncio.to_thread(three.leader) != survivor
        await settled(three, server)
        print(f"without a grant for {gaps} s, {len(server.acknowledged)} grants")
    finally:
        await server.close()


@pytest.mark.cluster
async def test_a_leader_that_was_paused_does_not_come_back_as_one(three: Controllers) -> None:
    server = SimulatedServer("node-a", three.grpc)
    paused = three.leader()

    async def pause() -> None:
        three.signal(paused, signal.SIGSTOP)
        others = [number for number in range(3) if number != paused]
        while not any([(await asyncio.to_thread(three.part, n)).get("leads") for n in others]):
            await asyncio.sleep(0.1)
        three.signal(paused, signal.SIGCONT)

    try:
        gap = await under_load(three, server, pause)
        await settled(three, server)
        assert await asyncio.to_thread(three.leader) != paused
        wait_for(lambda: three.part(paused).get("leads") is False)
        print(f"without a grant for {gap:.1f} s")
    finally:
        await server.close()


@pytest.mark.cluster
async def test_etcd_members_may_be_killed_and_paused(
    three: Controllers, members: etcd_members.EtcdMembers
) -> None:
    server = SimulatedServer("node-a", three.grpc)

    async def disturb() -> None:
        for number in range(3):
            members.signal(number, signal.SIGKILL)
            await asyncio.sleep(2)
            members.start_member(number)
            await asyncio.to_thread(members.wait_healthy)
            await asyncio.sleep(2)
        members.signal(0, signal.SIGSTOP)
        await asyncio.sleep(4)
        members.signal(0, signal.SIGCONT)

    try:
        gap = await under_load(three, server, disturb)
        await settled(three, server)
        print(f"without a grant for {gap:.1f} s")
    finally:
        await server.close()


@pytest.mark.cluster
async def test_without_a_majority_of_etcd_nothing_is_granted_and_nothing_is_lost(
    three: Controllers, members: etcd_members.EtcdMembers
) -> None:
    server = SimulatedServer("node-a", three.grpc)
    seen: list[str] = []

    async def disturb() -> None:
        members.signal(0, signal.SIGKILL)
        members.signal(1, signal.SIGKILL)
        await asyncio.sleep(6)
        before = len(server.acknowledged)
        address = f"http://{three.rest[0]}/v1/grants"
        seen.append((await asyncio.to_thread(httpx.get, address, timeout=5)).text)
        await asyncio.sleep(1)
        assert len(server.acknowledged) == before
        members.start_member(0)
        members.start_member(1)

    try:
        await under_load(three, server, disturb)
        await settled(three, server)
        assert "there is no leader" in seen[0]
    finally:
        await server.close()


@pytest.mark.cluster
def test_a_real_server_and_its_sessions_survive_the_leader(
    three: Controllers, tmp_path: Path
) -> None:
    (tmp_path / "plane").mkdir()
    # of another name than the simulated one of other tests, which is up for a while yet
    plane = ControlPlane(tmp_path / "plane", patience=20, server={"node_name": "node-real"})
    config = plane.folder / "server.conf"
    lines = [line for line in config.read_text().splitlines() if "_addr = 127.0.0.1:" not in line]
    place = next(n for n, line in enumerate(lines) if line.strip() == "[controller]") + 1
    lines[place:place] = [
        f"addresses = {three.addresses}", f"grpc_addresses = {','.join(three.grpc)}"
    ]  # fmt: skip
    config.write_text("\n".join(lines) + "\n")

    def nodes() -> dict[str, str]:
        return {node["name"]: node["state"] for node in three.get("/nodes")["nodes"]}

    try:
        plane.start_server(joined=False)
        wait_for(lambda: nodes().get(plane.node) == "up", message="the node to join")
        held = plane.client(gmem_mib=64, program="survivor")
        assert held.first["status"] == 0, held.first
        [before] = three.grants()
        three.signal(three.leader(), signal.SIGKILL)
        second = plane.client(gmem_mib=64)  # asked while nobody leads
        assert second.first["status"] == 0, second.first
        grants = three.grants()
        assert before["id"] in {grant["id"] for grant in grants}
        assert len(grants) == 2
        assert held.process.poll() is None
        held.kill()
        second.kill()
        wait_for(lambda: not three.grants(), message="the grants to return")
    finally:
        plane.close()
