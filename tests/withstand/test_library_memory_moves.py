# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's libraries allocate in calls of a session's goes to the host and comes back with it.

All parts are real but the library, which fake_cublas.c stands in for: a handle has 32 MiB.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running

from sluice.config.native_files import NativeFileMissing, find_native

from .suspended import CHECKOUT, Subject, resume, start_subject, suspend, suspension

PROGRAM = Path(__file__).parent / "programs" / "library_subject.py"
FAKE = CHECKOUT / "tests" / "server" / "fake_cublas.c"
WORKSPACE_MIB, HANDLES = 32, 2


@pytest.fixture(scope="module")
def plane(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Host memory for what is suspended, and something for cuBLAS on the node."""
    try:
        find_native("libcublas.so.13")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    with tempfile.TemporaryDirectory() as libraries:
        Path(libraries).chmod(0o755)  # the worker has an account of its own
        made = f"{libraries}/libcublas.so.13"
        options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libcublas.so.13"]
        subprocess.run(["cc", *options, "-o", made, str(FAKE)], check=True)
        shutil.copy(made, f"{libraries}/libcublasLt.so.13")
        with running(
            tmp_path_factory.mktemp("libraries"),
            server={"cuda_libraries": libraries},
            suspend={"swap_mib": 512, "drain_seconds": 60},
        ) as started:
            yield started


@pytest.fixture(params=["shm", "tcp"])
def subject(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Subject]:
    """With two handles."""
    told = start_subject(plane, request.param, filled=False, program=PROGRAM, SLUICE_GMEM="256")
    try:
        told.ask("make", count=HANDLES)
        yield told
    finally:
        told.kill()


def staying_mib(plane: ControlPlane, grant: str) -> int:
    """What is booked of its memory while it is suspended."""
    shown = plane.rest.get(f"/grants/{grant}").json()
    assert shown["suspension"]["state"] == "suspended"
    [vgpu] = shown["vgpus"]
    return int(vgpu["memory_mib"])


def test_it_moves_and_is_as_it_was(plane: ControlPlane, subject: Subject) -> None:
    assert subject.ask("workspaces") == {"wrong": 0}
    for _ in range(2):
        grant = suspend(plane, subject)
        assert staying_mib(plane, grant) < WORKSPACE_MIB
        resume(plane, grant)
        assert suspension(plane, grant) is None
        assert subject.ask("workspaces") == {"wrong": 0}
    subject.ask("end")
    subject.ask("make", count=2)
    grant = suspend(plane, subject)
    assert staying_mib(plane, grant) < WORKSPACE_MIB
    resume(plane, grant)
    assert subject.ask("workspaces") == {"wrong": 0}
