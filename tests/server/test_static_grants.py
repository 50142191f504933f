# SPDX-License-Identifier: Apache-2.0
"""The server alone, with grants at once: what benches and tests on a GPU have sessions from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

from sluice.config.native_files import NativeFileMissing, find_native


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    return build_programs("vector_add") / "vector_add"


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ({}, "over shm, worker"),
        ({"tcp": True}, "at 127.0.0.1 over tcp, worker"),
        ({"relay": True}, "relayed by node beside over tcp, worker"),
    ],
    ids=["shm", "tcp", "relay"],
)
def test_a_session_comes_the_way_that_was_chosen(
    tmp_path: Path, program: Path, way: dict[str, bool], said: str
) -> None:
    with StaticPool(tmp_path, memory_mib=512, **way) as pool:
        for number in (1, 2):
            done = subprocess.run(
                [program, "1000"],
                env=pool.environment(),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert pool.sessions() == number
    log = pool.log.read_text()  # whole: the server, which writes it, has ended
    assert log.count(said) == 2, log
    assert log.count(" 512 MiB 100 %") >= 2, log
    assert not pool.process.is_alive()
    assert not pool.socket.is_symlink(), "a socket of nobody stays behind"
