# SPDX-License-Identifier: Apache-2.0
"""A container on a host without a GPU: relayed, and known to the GPU's node as what it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for
from network_program import built
from relay_host import RelayHost, relay_host

VECTOR_ADD = Path(__file__).resolve().parents[2] / "build" / "programs" / "vector_add"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts and namespaces"),
    pytest.mark.skipif(
        not (built() and VECTOR_ADD.exists()), reason="the native part or the programs are missing"
    ),
]


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, RelayHost]]:
    tmp_path = tmp_path_factory.mktemp("r")  # sockets' paths are short
    with (
        running(tmp_path, pool={"job_linger_seconds": 1}) as plane,
        relay_host(plane, tmp_path / "b") as without_gpu,
    ):
        yield plane, without_gpu


@pytest.mark.parametrize("device", ["all", "default"])
def test_a_relayed_container_is_itself(
    host: tuple[ControlPlane, RelayHost], device: str, tmp_path: Path
) -> None:
    plane, beside = host
    source = beside.folder / "run/containers" / device / "socket"
    inside = tmp_path / "inside"
    inside.mkdir()
    environment = beside.environment()
    environment["SLUICE_SERVER_SOCKET"] = str(inside / "server.sock")
    if device == "default":
        environment["SLUICE_JOB"] = "0" * 32
    done = subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"),
            f'mount --bind "{source}" "{inside}" && exec "$@"',
            *("sh", str(VECTOR_ADD)),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr + beside.log()
    wait_for(lambda: not plane.grants(), message="the grant to come back")
    [session] = plane.sessions("ended")
    assert (session["node"], session["relay"]) == (plane.node, beside.node)
    assert session["owner_kind"] == "container"
    assert session["container"]["device"] == device
    assert session["container"]["engine"] == "namespace"
    # the GPU's own node logs it under its name, too
    assert f" in namespace {session['container']['id']}" in beside.log()
