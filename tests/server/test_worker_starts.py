# SPDX-License-Identifier: Apache-2.0
"""What keeps a worker from being started is said with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_plane import native_worker

from sluice.config.server import ServerConfig
from sluice.server.workers.process import WorkerFiles, WorkerStarter

pytestmark = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")


def test_a_run_dir_whose_sockets_have_no_room_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / ("r" * 90)
    files = WorkerFiles(run_dir)
    starter = WorkerStarter(ServerConfig(), files)
    with pytest.raises(OSError, match=r"room for 107: set a shorter \[server\] run_dir"):
        starter.start("0123456789ab", "none", [], tmp_path / "log")
