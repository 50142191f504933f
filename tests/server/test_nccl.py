# SPDX-License-Identifier: Apache-2.0
"""NCCL through Sluice, with a stand-in for NVIDIA's library on the node.

Groups, communicators and what threads wait for are what the tables of the libraries do not say;
nccl_program.py asks for all of it. Skipped where the native part or a C compiler is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from control_plane import native_worker, running

from sluice.config.native_files import NativeFileMissing, find_native

HERE = Path(__file__).resolve().parent


def usable() -> bool:
    try:
        find_native("libnccl.so.2")
    except NativeFileMissing:
        return False
    return native_worker() is not None and shutil.which("cc") is not None


@pytest.mark.skipif(not usable(), reason="the native part is not built, or there is no C compiler")
@pytest.mark.parametrize(
    ("channel", "whose", "operator"),
    [
        ("shm", "job", {}),
        ("tcp", "job", {}),
        ("shm", "project", {}),
        ("shm", "job", {"NCCL_SHM_DISABLE": "0"}),
    ],
    ids=["shm", "tcp", "of one project", "as the operator says"],
)
def test_groups_and_communicators(
    tmp_path: Path, channel: str, whose: str, operator: dict[str, str]
) -> None:
    apart = whose == "job" and not operator and os.geteuid() == 0
    with (
        tempfile.TemporaryDirectory() as libraries,
        running(
            tmp_path,
            server={"cuda_libraries": libraries, "worker_uid_for": whose},
            environment=operator,
        ) as plane,
    ):
        Path(libraries).chmod(0o755)  # the worker has an account of its own
        made = f"{libraries}/libnccl.so.2"
        options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libnccl.so.2"]
        subprocess.run(["cc", *options, "-o", made, str(HERE / "fake_nccl.c")], check=True)
        done = subprocess.run(
            [sys.executable, str(HERE / "nccl_program.py")],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(Path(find_native("libnccl.so.2")).parent),
                "SLUICE_SERVER_SOCKET": str(plane.socket_path),
                "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
                "SLUICE_CHANNEL": channel,
                "RANKS": "are apart" if apart else "share a user",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all of it\n")
