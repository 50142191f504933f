# SPDX-License-Identifier: Apache-2.0
"""A pool of two nodes, each with one software GPU, and programs that have a vGPU of both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control_plane import ControlPlane, running


@contextlib.contextmanager
def two_nodes(
    folder: Path, server: dict[str, Any], environment: dict[str, str] | None = None, **first: Any
) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A controller and two servers; `server` is both's section, `first` the controller's."""
    (folder / "b").mkdir()
    with running(folder, server=server, environment=environment, **first) as one:
        there = {**server, "node_name": "node-b"}
        other = ControlPlane(folder / "b", server=there, environment=environment, pool_of=one)
        try:
            other.start_server()
            yield one, other
        finally:
            other.close()


def of_both(plane: ControlPlane, **more: str) -> dict[str, str]:
    """What a program of two vGPUs is told beside the channel."""
    return {
        "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
        "SLUICE_VGPU": "2",
        "SLUICE_CROSS_NODE": "1",
        **more,
    }


def clean(first: ControlPlane, second: ControlPlane) -> bool:
    """Whether nothing of any session is left on either node, or in the pool's books."""
    if first.grants() or first.sessions():
        return False
    gpus = first.rest.get("/gpus").json()["gpus"]
    pids = first.session_worker_pids() + second.session_worker_pids()
    return not pids and not any(gpu["granted_mib"] for gpu in gpus)
