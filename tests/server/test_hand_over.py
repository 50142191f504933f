# SPDX-License-Identifier: Apache-2.0
"""A GPU that leaves the pool is let go: no process of ours is left on it, until it comes back."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest
from control_plane import ControlPlane, wait_for

from sluice.config.native_files import SOFTGPU

HOLDERS = (SOFTGPU.partition(".so")[0], "/dev/nvidia")


def holders(plane: ControlPlane) -> list[int]:
    """Processes of this plane, known by their log, that have the GPU's driver mapped."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            opened = (fd.readlink() for fd in (folder / "fd").iterdir())
            if not any(path.is_relative_to(plane.folder) for path in opened):
                continue
            if any(name in (folder / "maps").read_text() for name in HOLDERS):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def is_held_by_workers(plane: ControlPlane, count: int) -> bool:
    """Whether so many workers, and nobody else, hold it; the one that looked at it has gone."""
    workers = {record["pid"] for record in plane.worker_records() if record["devices"]}
    return len(workers) == count and set(holders(plane)) == workers


def switch(plane: ControlPlane, to: str, **options: object) -> httpx.Response:
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    return plane.rest.put(f"/gpus/{gpu['id']}/switch", json={"to": to, **options})


def mode(plane: ControlPlane) -> str:
    return str(plane.rest.get("/gpus").json()["gpus"][0]["mode"])


@pytest.mark.parametrize("to", ["native", "drained"])
def test_nothing_of_ours_holds_a_gpu_that_left_the_pool(plane: ControlPlane, to: str) -> None:
    if plane.fake:
        pytest.skip("needs the built worker")
    client = plane.client(gmem_mib=256)
    wait_for(lambda: is_held_by_workers(plane, 2), message="the session's worker and a warm one")
    assert switch(plane, to).json()["mode"] == "draining"
    assert len(holders(plane)) == 2, "what runs goes on"
    client.kill()
    wait_for(lambda: mode(plane) == to, message="the GPU to leave the pool")
    assert holders(plane) == []
    refused = plane.client(gmem_mib=256)
    assert refused.first["status"] != 0
    plane.stop("server", signal.SIGKILL)
    plane.start_server()
    wait_for(lambda: holders(plane) == [], message="a server that restarted to let it go")
    assert mode(plane) == to
    switch(plane, "pooled")
    wait_for(lambda: mode(plane) == "pooled")
    wait_for(lambda: is_held_by_workers(plane, 1), message="a warm worker")
    assert plane.client(gmem_mib=256).first["status"] == 0


def test_preempting_ends_what_runs_there_first(plane: ControlPlane) -> None:
    if plane.fake:
        pytest.skip("needs the built worker")
    plane.client(gmem_mib=256)
    switch(plane, "native", preempt=True)
    wait_for(lambda: mode(plane) == "native", message="the GPU to leave the pool")
    assert holders(plane) == []
    [session] = plane.sessions("ended")
    assert "out of the pool" in session["reason"]
    assert session["cause"] == "gpu-withdrawn"


def test_a_cancelled_switch_has_its_warm_workers_back(plane: ControlPlane) -> None:
    if plane.fake:
        pytest.skip("needs the built worker")
    client = plane.client(gmem_mib=256)
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    switch(plane, "native")
    plane.rest.delete(f"/gpus/{gpu['id']}/switch")
    assert mode(plane) == "pooled"
    client.kill()
    wait_for(lambda: is_held_by_workers(plane, 1), message="a warm worker")
