# SPDX-License-Identifier: Apache-2.0
"""A node of a release is upgraded while its programs go on: today's server adopts what it runs.

The controller is today's already, as the order of an upgrade wants it (docs/deployment.md): so a
release's server also has to be understood by it. Skipped where the native part is not built.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from control_plane import ControlPlane, native_worker, wait_for
from holder import Holder
from relay_host import RelayHost

from .releases import NAMES, RELEASES, ROOT
from .unpacked import unpacked

pytestmark = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")


PROGRAMS = ROOT / "build" / "programs"


@dataclass(frozen=True)
class Release:
    """What a node and a guest of a release have."""

    node: Path
    bundle: Path

    @property
    def server(self) -> dict[str, str]:
        """The variables of its server."""
        return {
            "PYTHONPATH": str(self.node / "python"),
            "SLUICE_NATIVE_DIR": str(self.node / "native"),
        }


@pytest.fixture(scope="module", params=RELEASES, ids=NAMES)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    node = unpacked(request.param / "node.tar.xz", tmp_path_factory.mktemp("node"))
    bundle = unpacked(request.param / "guest-bundle.tar.xz", tmp_path_factory.mktemp("bundle"))
    for parent in (node, *list(node.parents)[:3]):  # workers have an account of their own
        parent.chmod(0o755)
    return Release(node, bundle)


@pytest.fixture
def plane(short_path: Path, release: Release) -> Iterator[ControlPlane]:
    """Today's controller and the release's server."""
    short_path.chmod(0o755)
    # what it does not know is left out
    plane = ControlPlane(short_path, throttle={}, server={"closed_grace_seconds": None})
    try:
        plane.start_controller()
        plane.start_server(environment=release.server)
        yield plane
    finally:
        plane.close()


def holder(environment: dict[str, str], libraries: Path | None = None) -> Holder:
    """A program with a release's client libraries or today's."""
    own = {"LD_LIBRARY_PATH": str(libraries)} if libraries else {}
    return Holder({**environment, "SLUICE_GMEM": "64", **own})


def upgrade(plane: ControlPlane) -> None:
    """The release's server goes, and today's comes."""
    plane.stop("server", signal.SIGTERM)
    plane.start_server()


def test_programs_go_on_while_their_node_is_upgraded(plane: ControlPlane, release: Release) -> None:
    places = {name: plane.program_environment(SLUICE_CHANNEL=name) for name in ("shm", "tcp")}
    olds = {name: holder(place, release.bundle / "lib") for name, place in places.items()}
    assert [old.work() for old in olds.values()] == [0, 0]
    workers = plane.session_worker_pids()
    for worker in workers:
        assert Path(f"/proc/{worker}/exe").readlink().is_relative_to(release.node)
    before = {grant["id"]: grant for grant in plane.grants()}
    upgrade(plane)
    assert "adopted 2 session" in plane.log("server")
    assert [old.work() for old in olds.values()] == [0, 0], "after the upgrade"
    assert sorted(plane.session_worker_pids()) == sorted(workers)
    for after in plane.grants():
        for key in ("node", "vgpus", "created", "state"):
            assert after[key] == before[after["id"]][key]

    # beside them, what is new
    fresh = holder(places["shm"])
    assert fresh.work() == 0
    fresh.kill()
    wait_for(lambda: len(plane.grants()) == 2, message="the new program's grant to return")

    # one is ended by the operator, one ends by itself
    channels = {each["grant_id"]: each["channel"] for each in plane.sessions()}
    [of_shm] = [grant for grant in before if channels[grant] == "shm"]
    assert plane.rest.delete(f"/grants/{of_shm}").status_code == 202
    wait_for(lambda: len(plane.grants()) == 1, message="the grant to end")
    assert olds["shm"].work() != 0
    assert olds["tcp"].work() == 0
    for old in olds.values():
        old.kill()
    wait_for(lambda: not plane.grants(), message="the old program's grant to return")
    wait_for(lambda: not set(workers) & set(plane.worker_pids()), message="old workers to end")


def test_a_relay_of_a_release_is_adopted_too(plane: ControlPlane, release: Release) -> None:
    far = RelayHost(plane, plane.folder / "b")
    try:
        far.start(release.server)
        program = holder(far.environment(), release.bundle / "lib")
        assert program.work() == 0
        [relay] = far.relays()
        upgrade(plane)
        assert program.work() == 0, "after the node with the GPU was upgraded"
        far.stop()
        far.start()
        assert "adopted 1 session" in far.log()
        assert program.work() == 0, "after the host without a GPU was upgraded"
        assert [each["pid"] for each in far.relays()] == [relay["pid"]]
        program.kill()
        wait_for(lambda: not plane.grants(), message="the grant to return")
        wait_for(lambda: not far.relays(), message="the relay to end")
    finally:
        far.close()


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_todays_clients_work_with_a_node_of_the_release(plane: ControlPlane, channel: str) -> None:
    """A guest may be upgraded before its host: what a release's node knows, it does."""
    program = holder(plane.program_environment(SLUICE_CHANNEL=channel))
    assert [program.work() for _ in range(3)] == [0, 0, 0]
    program.kill()
    wait_for(lambda: not plane.grants(), message="the grant to return")
    vector_add = PROGRAMS / "vector_add"
    if not vector_add.exists():
        pytest.skip("the test programs are not built (make programs)")
    done = subprocess.run(
        [vector_add],
        env=plane.program_environment(SLUICE_CHANNEL=channel, SLUICE_GMEM="64"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
