# SPDX-License-Identifier: Apache-2.0
"""The bound on a session's host memory: one by default, above what work needs, below the host's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for
from job_process import JobProcess

from sluice.config.server import ServerConfig, ServerSection
from sluice.server.workers.memory_limit import session_memory_mib
from sluice.server.workers.process import WorkerFiles, WorkerStarter


def writable_memory_cgroup() -> bool:
    """Whether servers here can bound sessions without systemd."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    return (
        os.access(root if unified else root / "memory", os.W_OK)
        and not Path("/run/systemd/system").exists()
    )


#: What PyTorch 2.11 took on an H200 with every library in use and every kernel loaded at once.
MEASURED_MIB = 8035
NODE_MIB = 2_000_000


def test_there_is_a_bound_by_default() -> None:
    assert ServerSection().session_memory_mib == "auto"
    assert session_memory_mib(arena_mib=256, gpus=1, software=False) > 0


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_it_is_twice_what_pytorch_takes_and_the_arena_besides(gpus: int) -> None:
    given = session_memory_mib(arena_mib=4096, gpus=gpus, software=False, host_mib=NODE_MIB)
    assert given >= MEASURED_MIB * (gpus + 1) + 4096
    assert given < NODE_MIB // 4


def test_no_session_may_take_all_of_a_small_host() -> None:
    assert session_memory_mib(arena_mib=256, gpus=8, software=False, host_mib=16384) == 12288
    assert session_memory_mib(arena_mib=256, gpus=1, software=True, host_mib=16384) == 12288
    assert session_memory_mib(arena_mib=256, gpus=0, software=False, host_mib=16384) == 12288


@pytest.mark.parametrize(("given", "limit"), [(0, 0), (777, 777)])
def test_a_figure_of_the_operators_counts_and_0_is_none(
    tmp_path: Path, given: int, limit: int
) -> None:
    config = ServerConfig(server=ServerSection(session_memory_mib=given))
    starter = WorkerStarter(config, WorkerFiles(tmp_path))
    assert starter.memory_mib(1, software=True) == limit


@pytest.mark.skipif(not writable_memory_cgroup(), reason="no writable memory cgroup here")
def test_a_session_that_its_limit_ended_says_so(tmp_path: Path) -> None:
    with running(tmp_path, server={"session_memory_mib": 256}) as plane:
        job = JobProcess(plane.program_environment(SLUICE_GMEM="1024"))
        assert job.first == "ready"
        assert job.do("alloc 800") == "0"
        assert job.do("fill 800") != "0"  # a software GPU's memory is its host's
        wait_for(lambda: plane.sessions("ended"))
        [session] = plane.sessions("ended")
        assert "session_memory_mib" in session["reason"]
        assert session["cause"] == "host-memory"
        job.kill()


def test_a_sessions_log_is_not_for_everybody(plane: ControlPlane) -> None:
    client = plane.client()
    log = plane.folder / "log" / "session" / f"{client.session_id}.log"
    assert log.stat().st_mode & 0o777 == 0o640
    client.kill()
