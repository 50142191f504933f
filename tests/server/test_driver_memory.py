# SPDX-License-Identifier: Apache-2.0
"""Host memory that the GPUs' driver makes, by a process of its own: what it gives, how it fails.

The software GPU's driver makes it; drivers that hang, crash or refuse are made of C text.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from child_processes import children_running
from open_files import count_descriptors

from sluice.config.native_files import SOFTGPU, find_native
from sluice.server.host_memory import driver_memory
from sluice.server.host_memory.driver_memory import DriverMemory, Failed, Unavailable
from sluice.server.host_memory.pieces import MIB, HostPiece, NoSwapMemory

PIECE_MIB = 4
#: cuMemCreate is what a test gives.
DRIVER = r"""
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuGetErrorName(int status, const char** name) {
  *name = status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_NOT_SUPPORTED";
  return 0;
}
int cuMemRelease(unsigned long long handle) { return (void)handle, 0; }
int cuMemExportToShareableHandle(int* fd, unsigned long long handle, int type,
                                 unsigned long long flags) {
  return (void)fd, (void)handle, (void)type, (void)flags, 801;
}
"""

Made = Callable[[str], DriverMemory]


@pytest.fixture
def memory() -> Iterator[DriverMemory]:
    one = DriverMemory(str(find_native(SOFTGPU)), os.environ)
    yield one
    one.let_go()
    assert helpers() == []


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """One of a driver whose cuMemCreate does that."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    found = []

    def make(body: str) -> DriverMemory:
        library = tmp_path / "libcuda.so.1"
        text = f"{DRIVER}int cuMemCreate(unsigned long long* handle) {{ {body} }}"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", str(library), "-xc", "-"],
            input=text.encode(),
            check=True,
        )
        found.append(DriverMemory(str(library), {}))
        return found[-1]

    yield make
    for one in found:
        one.let_go()
    assert helpers() == []


def helpers() -> list[int]:
    """The processes of it that live, of this one's."""
    return children_running(os.getpid(), "host_memory/driver_process.py")


def close(pieces: list[HostPiece]) -> None:
    for piece in pieces:
        piece.close()


def test_what_it_makes_is_there_empty_and_the_makers_end_takes_nothing(
    memory: DriverMemory,
) -> None:
    pieces = memory.make(3, PIECE_MIB)
    assert len(helpers()) == 1
    memory.let_go()
    assert helpers() == []
    for piece in pieces:
        assert (piece.of_driver, piece.mib) == (True, PIECE_MIB)
        assert fcntl.fcntl(piece.memory, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        status = os.fstat(piece.memory)
        assert (status.st_size, status.st_blocks * 512) == (PIECE_MIB * MIB, PIECE_MIB * MIB)
        assert os.pread(piece.memory, MIB, 3 * MIB) == bytes(MIB)
    assert len({os.fstat(piece.memory).st_ino for piece in pieces}) == 3
    close(pieces)
    close(memory.make(1, PIECE_MIB))  # by another process


def test_more_than_one_answer_takes(memory: DriverMemory) -> None:
    pieces = memory.make(driver_memory.MOST_PIECES + 1, 2)
    assert len(pieces) == driver_memory.MOST_PIECES + 1
    close(pieces)


def test_more_than_the_host_has_is_not_asked_for(memory: DriverMemory) -> None:
    before = count_descriptors()
    with pytest.raises(NoSwapMemory, match="lower \\[suspend\\] ready_mib"):
        memory.make(1, 1 << 30)
    close(memory.make(1, PIECE_MIB))
    memory.let_go()
    assert count_descriptors() == before


def test_a_driver_that_has_no_memory_left(made: Made) -> None:
    with pytest.raises(NoSwapMemory):
        made("return 2;").make(1, PIECE_MIB)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param("return 801;", "cuMemCreate: not_supported", id="refuses"),
        pytest.param("return *handle = 1, 0;", "cuMemCreate: not_supported", id="exports nothing"),
        pytest.param("abort();", "failed", id="crashes"),
        pytest.param("for (;;) pause();", "failed", id="hangs"),
    ],
)
def test_a_driver_that_makes_none(
    made: Made, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    memory = made(body)
    if "pause" in body:  # it gets as long as it may take, and its start is done by then
        monkeypatch.setattr(driver_memory, "SECONDS_PER_GIB", 0.0)
        memory._start()
        monkeypatch.setattr(driver_memory, "START_SECONDS", 1.0)
    with pytest.raises(Failed if reason == "failed" else Unavailable, match=reason):
        memory.make(1, PIECE_MIB)
    assert helpers() == []


def test_no_driver_at_all() -> None:
    with pytest.raises(Unavailable, match="the driver cannot be loaded"):
        DriverMemory("/nowhere/libcuda.so.1", {}).make(1, PIECE_MIB)
    with pytest.raises(Unavailable, match="the driver has no cuMemCreate"):
        DriverMemory("libc.so.6", {}).make(1, PIECE_MIB)
    assert helpers() == []
