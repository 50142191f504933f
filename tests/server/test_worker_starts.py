# SPDX-License-Identifier: Apache-2.0
"""What keeps a worker from being started is said with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_plane import native_worker

from sluice.config.server import NcclSection, ServerConfig
from sluice.server.workers.process import WorkerFiles, WorkerStarter

pytestmark = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")


def test_a_run_dir_whose_sockets_have_no_room_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / ("r" * 90)
    files = WorkerFiles(run_dir)
    starter = WorkerStarter(ServerConfig(), files)
    with pytest.raises(OSError, match=r"room for 107: set a shorter \[server\] run_dir"):
        starter.start("0123456789ab", "none", [], tmp_path / "log")


def test_the_network_of_collectives_is_the_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("AWS_SECRET", "of somebody else")
    files = WorkerFiles(tmp_path)
    silent = WorkerStarter(ServerConfig(), files).environment()
    assert (silent["NCCL_SOCKET_IFNAME"], silent["NCCL_DEBUG"]) == ("eth0", "WARN")
    assert "AWS_SECRET" not in silent
    section = NcclSection(socket_ifname="=ens5f0", ib_hca="^=mlx5_3,mlx5_0:1")
    told = WorkerStarter(ServerConfig(server_nccl=section), files).environment()
    assert told["NCCL_SOCKET_IFNAME"] == "=ens5f0"
    assert told["NCCL_IB_HCA"] == "^=mlx5_3,mlx5_0:1"
    assert told["NCCL_DEBUG"] == "WARN"


@pytest.mark.parametrize("names", ["eth0 eth1", "eth0\nLD_PRELOAD=x", "=", "^"])
def test_a_network_that_is_none_is_refused(names: str) -> None:
    with pytest.raises(ValueError, match="socket_ifname"):
        NcclSection(socket_ifname=names)
