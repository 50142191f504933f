# SPDX-License-Identifier: Apache-2.0
"""Who asks for the driver's calls is a process of its own: what hangs or crashes there is bounded.

The helper is real, and its driver a library of this test's, which does what a driver could.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from child_processes import children_running

from sluice.server.checkpoints import caller as caller_module
from sluice.server.checkpoints.caller import Caller, Lost, Unavailable
from sluice.server.checkpoints.driver_process import GONE, start_time_of
from sluice.server.workers.process import WorkerRecord

#: A driver whose calls about process N do: hang (lock), crash (checkpoint), say that they cannot.
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned flags) { puts("a driver's own words"), fflush(stdout); return (int)flags; }
int cuGetErrorName(int status, const char** name) {
  *name = status == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OTHER";
  return status == 801 ? 0 : 1;
}
int cuCheckpointProcessGetState(int pid, int* state) { return *state = 1, pid ? 0 : 1; }
int cuCheckpointProcessLock(int pid, unsigned* args) {
  if (args[0] == 77) for (;;) pause();
  return pid ? 0 : 1;
}
int cuCheckpointProcessCheckpoint(int pid, void* args) { (void)pid, (void)args; abort(); }
int cuCheckpointProcessRestore(int pid, void* args) { (void)pid, (void)args; return 801; }
int cuCheckpointProcessUnlock(int pid, void* args) { (void)pid, (void)args; return 9999; }
"""
NVML = r"""
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  return *handle = 0, strcmp(uuid, "GPU-1") != 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* memory) {
  return (void)handle, memory[1] = 300ull << 20, 0;
}
"""

Built = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A library of a C text."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("driver")

    def build(name: str, text: str) -> Path:
        library = folder / name
        if not library.exists():
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-o", str(library), "-xc", "-"],
                input=text.encode(),
                check=True,
            )
        return library

    return build


@pytest.fixture
async def caller(built: Built) -> AsyncIterator[Caller]:
    one = Caller(str(built("libcuda.so.1", DRIVER)), built("libnvidia-ml.so.1", NVML), {})
    yield one
    await one.close()
    assert helpers() == []


def this_process() -> WorkerRecord:
    return WorkerRecord("w", os.getpid(), start_time_of(os.getpid()), "", [], "")


def helpers() -> list[int]:
    """The processes of it that live, of this one's."""
    return children_running(os.getpid(), "checkpoints/driver_process.py")


async def test_what_a_driver_answers_has_its_name(caller: Caller) -> None:
    process = this_process()
    assert (await caller.state(process)).state == "locked"
    assert (await caller.call("lock", process, 10, 5000)).status == ""
    assert (await caller.call("restore", process, 10)).status == "not_supported"
    assert (await caller.call("unlock", process, 10)).status == "error_9999"
    assert len(helpers()) == 1, "one after another goes by one process"


async def test_a_process_that_is_another_by_now_is_left_alone(caller: Caller) -> None:
    process = this_process()
    process.start_time += 1
    answer = await caller.call("checkpoint", process, 10)
    assert (answer.status, answer.is_gone) == (GONE, True)


async def test_what_is_free_of_a_gpu_is_nvmls_word(caller: Caller) -> None:
    assert await caller.free_mib("GPU-1") == 300
    assert await caller.free_mib("GPU-2") is None


async def ended() -> None:
    end = time.monotonic() + 30
    while helpers() and time.monotonic() < end:
        await asyncio.sleep(0.02)
    assert helpers() == []


async def test_one_that_hangs_is_killed_and_keeps_nobody(caller: Caller) -> None:
    process = this_process()
    hanging = asyncio.create_task(caller.call("lock", process, 1.0, 77))
    assert (await caller.state(process)).state == "locked", "another one answers meanwhile"
    with pytest.raises(Lost, match="`lock` has not returned within 1 s"):
        await hanging
    assert (await caller.state(process)).state == "locked"


async def test_one_that_crashes_is_told_of_and_the_next_call_goes_by_another(
    caller: Caller,
) -> None:
    with pytest.raises(Lost, match="the process that asked for `checkpoint` ended"):
        await caller.call("checkpoint", this_process(), 10)
    assert (await caller.state(this_process())).state == "locked"


async def test_one_that_was_killed_while_it_waited(caller: Caller) -> None:
    await caller.state(this_process())
    [pid] = helpers()
    os.kill(pid, 9)
    while any(one.is_alive for one in caller._idle):
        await asyncio.sleep(0.01)
    assert (await caller.state(this_process())).state == "locked"


async def test_those_that_wait_end_where_the_gpus_are_let_go_and_after_a_while(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await caller.state(this_process())
    caller.let_go()
    await ended()
    monkeypatch.setattr(caller_module, "IDLE_SECONDS", 0.1)
    await caller.state(this_process())
    await ended()


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (lambda _: Path("/nowhere/libcuda.so.1"), "the driver cannot be loaded"),
        (lambda build: build("old.so", "int cuInit(unsigned f) { return (int)f; }"), "than 570"),
        (
            lambda build: build("none.so", DRIVER.replace("return (int)flags", "return 801")),
            "cuInit: not_supported",
        ),
        (lambda build: build("bad.so", DRIVER.replace("return (int)flags", "abort()")), "ended"),
    ],
)
async def test_a_driver_without_it_is_named(
    built: Built, driver: Callable[[Built], Path], why: str
) -> None:
    one = Caller(str(driver(built)), None, {})
    with pytest.raises(Unavailable, match=why):
        await one.state(this_process())
    await one.close()
    assert helpers() == []


async def test_who_cannot_be_started_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Caller("libcuda.so.1", None, {})
    monkeypatch.setattr(one, "_command", ["/nowhere/python"])
    asked: Awaitable[object] = one.state(this_process())
    with pytest.raises(Unavailable, match="cannot be started"):
        await asked
