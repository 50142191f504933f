# SPDX-License-Identifier: Apache-2.0
"""Three controllers over etcd and ten servers of a release become today's, one by one, under load.

The order is that of docs/deployment.md. Every program keeps its session and its worker, whatever
of the pool is replaced beneath it, and programs that come meanwhile are served.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import etcd_members
import pytest
from control_plane import native_worker, wait_for
from controllers import Controllers

from sluice.config.native_files import find_native

from .pool_nodes import Load, PoolNode
from .releases import NAMES, RELEASES
from .unpacked import unpacked

pytestmark = [
    pytest.mark.releases,
    pytest.mark.skipif(native_worker() is None, reason="the native part is not built"),
    pytest.mark.skipif(not etcd_members.is_there(), reason="etcd is not installed"),
]
CONTROLLERS, SERVERS = 3, 10


@dataclass(frozen=True)
class Release:
    """The environments of a release's controller and server, and its client libraries."""

    controller: dict[str, str]
    server: dict[str, str]
    libraries: Path


@pytest.fixture(params=RELEASES, ids=NAMES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Release:
    folder: Path = request.param
    for name in ("node", "bundle", "controller"):
        (tmp_path / name).mkdir()
    node = unpacked(folder / "node.tar.xz", tmp_path / "node")
    bundle = unpacked(folder / "guest-bundle.tar.xz", tmp_path / "bundle")
    own = folder / "controller.tar.xz"  # where the node's archive has none
    controller = unpacked(own, tmp_path / "controller") if own.exists() else node
    for parent in (node, *list(node.parents)[:4]):  # workers have accounts of their own
        parent.chmod(0o755)
    server = {"PYTHONPATH": str(node / "python"), "SLUICE_NATIVE_DIR": str(node / "native")}
    return Release({"PYTHONPATH": str(controller / "python")}, server, bundle / "lib")


@dataclass
class Pool:
    """What is upgraded."""

    controllers: Controllers
    nodes: list[PoolNode]

    def live_sessions(self) -> set[str]:
        """As the leader counts them."""
        sessions = self.controllers.get("/sessions", state="live", limit=200)["sessions"]
        return {session["id"] for session in sessions if session["state"] == "running"}

    def nodes_up(self) -> set[str]:
        """The nodes that the leader hears of."""
        nodes = self.controllers.get("/nodes")["nodes"]
        return {node["name"] for node in nodes if node["state"] == "up"}


@pytest.fixture
def pool(short_path: Path, release: Release) -> Iterator[Pool]:
    """All of it of the release."""
    short_path.chmod(0o755)
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_members.etcd_members(short_path / "etcd"))
        store = {"kind": "etcd", "endpoints": ",".join(etcd.endpoints)}
        several = Controllers(
            short_path,
            CONTROLLERS,
            store,
            anew=True,
            pool={"node_timeout_seconds": 120},
            auth={"local": "operator"},
        )
        stack.callback(several.close)
        for number in range(CONTROLLERS):
            several.start_one(number, release.controller)
        several.leader()
        nodes = [PoolNode(short_path, f"node-{number}", several) for number in range(SERVERS)]
        made = Pool(several, nodes)
        for node in nodes:
            stack.callback(node.close)
            node.start(release.server)
        wait_for(lambda: len(made.nodes_up()) == SERVERS, 300, message="ten nodes to join")
        yield made


def test_a_rolling_upgrade_under_load_ends_no_session(pool: Pool, release: Release) -> None:
    programs = [node.program(release.libraries) for node in pool.nodes for _ in range(2)]
    load = Load(programs)
    try:
        load.goes_on("before the upgrade")
        wait_for(lambda: len(pool.live_sessions()) == 2 * SERVERS, message="the pool's count")
        sessions = pool.live_sessions()
        workers = {node.name: node.workers() for node in pool.nodes}
        assert sum(map(len, workers.values())) == 2 * SERVERS

        for number in upgrade_order(pool.controllers):
            pool.controllers.signal(number, signal.SIGTERM)
            load.goes_on(f"while controller {number} is away")
            pool.controllers.start_one(number)
            wait_for(lambda n=number: pool.controllers.part(n), 120, message="it answers")
            wait_for(lambda: len(pool.nodes_up()) == SERVERS, 300, message="all nodes are back")
            load.goes_on(f"after controller {number} was upgraded")
            assert opens(pool.nodes[number], release.libraries)
        assert pool.live_sessions() == sessions, "after all controllers were upgraded"

        for node in pool.nodes:
            node.stop()
            joined = node.log().count("joined the pool")
            load.goes_on(f"while the server of {node.name} is away")
            node.start()
            wait_for(lambda n=node: "adopted 2 session" in n.log(), message=node.log)
            wait_for(lambda n=node, j=joined: n.log().count("joined the pool") > j, 120, node.log)
        wait_for(lambda: len(pool.nodes_up()) == SERVERS, 120, message="all nodes are back")
        load.goes_on("after all servers were upgraded")
        wait_for(lambda: pool.live_sessions() == sessions, message="every session is there")
        for node in pool.nodes:
            assert workers[node.name] <= node.workers(), f"{node.name} has other workers"
        ended = pool.controllers.get("/sessions", state="ended", limit=200)["sessions"]
        assert not sessions & {session["id"] for session in ended}
        # and what is new is served by what is new, with today's and with the release's libraries
        for libraries in (release.libraries, find_native("libcuda.so.1").parent):
            assert opens(pool.nodes[-1], libraries)
    finally:
        load.close()
    wait_for(lambda: not pool.controllers.grants(), message="every grant returns")


def upgrade_order(controllers: Controllers) -> list[int]:
    """Followers first, the leader last."""
    leader = controllers.leader()
    return [*(n for n in range(CONTROLLERS) if n != leader), leader]


def opens(node: PoolNode, libraries: Path) -> bool:
    """Whether a program that comes now gets its vGPU and works."""
    program = node.program(libraries)
    done = program.work() == 0
    program.kill()
    return done
