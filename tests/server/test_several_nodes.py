# SPDX-License-Identifier: Apache-2.0
"""One process with vGPUs of several nodes (SLUICE_CROSS_NODE): real programs on two real servers.

Skipped where the native part is not built.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for
from network_program import built, start
from static_pool import build_programs

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"

pytestmark = pytest.mark.skipif(not built(), reason="the native part is not built")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A controller and two servers, each with one software GPU."""
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "b").mkdir()
    with running(folder) as first:
        second = ControlPlane(folder / "b", server={"node_name": "node-b"}, pool_of=first)
        try:
            second.start_server()
            yield first, second
        finally:
            second.close()


def environment(plane: ControlPlane, **more: str) -> dict[str, str]:
    return {
        "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
        "SLUICE_VGPU": "2",
        "SLUICE_CROSS_NODE": "1",
        **more,
    }


def run_program(plane: ControlPlane, home: Path, name: str) -> tuple[int, str, str]:
    program = build_programs(name) / name
    with start(home, program, **environment(plane)) as process:
        out, error = process.communicate(timeout=120)
    return process.returncode, out, error


def test_a_program_sees_two_devices_and_computes_on_both(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, _ = nodes
    code, out, error = run_program(first, tmp_path, "two_nodes")
    assert code == 0, out + error
    said = [line for line in out.splitlines() if not line.startswith("# ")]
    assert said == (PROGRAMS / "expected" / "two_nodes.out").read_text().splitlines()
    told = [line for line in out.splitlines() if line.startswith("# ")]
    assert told == [
        "# peers: 0 0",
        "# peer access: cudaErrorPeerAccessUnsupported",
        "# IPC: cudaErrorNotSupported",
        "# a capture that waits: cudaErrorStreamCaptureUnsupported",
    ]
    assert "CUDA IPC" in error
    wait_for(lambda: not first.grants())
