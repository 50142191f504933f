# SPDX-License-Identifier: Apache-2.0
"""Processes of one job on the software GPU: one grant, one memory limit, the same vGPUs.

The server is real, and its controller grants at once; tests/server/test_jobs.py has a real one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_process import JobProcess
from static_pool import StaticPool

from sluice.config.native_files import NativeFileMissing, find_native

MIB = 256
OUT_OF_MEMORY = "2"


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=[False, True], ids=["shm", "tcp"])
def pool(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StaticPool]:
    with StaticPool(
        tmp_path, vgpus=2, gpus=2, memory_mib=MIB, tcp=request.param, sandbox="on"
    ) as made:
        yield made


def members(pool: StaticPool, count: int = 2, **more: str) -> list[JobProcess]:
    environment = pool.environment(SLUICE_JOB=secrets.token_hex(16), **more)
    return [JobProcess(environment) for _ in range(count)]


def wait_free(process: JobProcess, mib: int) -> None:
    deadline = time.monotonic() + 30  # one that was killed over TCP may come back for a while
    while process.free_mib() != mib:
        assert time.monotonic() < deadline, f"{process.free_mib()} of {mib} MiB free"
        time.sleep(0.02)


def test_the_limit_is_the_jobs_and_exact(pool: StaticPool) -> None:
    one, other = members(pool)
    assert (one.first, other.first) == ("ready", "ready")
    assert one.do("info") == other.do("info") == f"{MIB} {MIB}"
    assert one.do("alloc 200") == "0"
    assert other.free_mib() == MIB - 200
    assert other.do("alloc 58") == OUT_OF_MEMORY
    assert other.do("alloc 56") == "0"
    assert one.free_mib() == other.free_mib() == 0
    assert one.do("alloc 1") == OUT_OF_MEMORY
    assert one.do("free") == "0"
    assert other.do("alloc 200") == "0"
    assert one.free_mib() == 0
    assert other.do("free") == "0"
    assert one.do("alloc 200") == "0"
    assert [p.quit() for p in (one, other)] == [0, 0]
    assert "ERROR" not in pool.log.read_text()


def test_sessions_that_are_no_job_have_their_own(pool: StaticPool) -> None:
    one, other = (JobProcess(pool.environment()) for _ in range(2))
    assert one.do(f"alloc {MIB}") == other.do(f"alloc {MIB}") == "0"
    for process in (one, other):
        process.quit()


def test_a_killed_processs_memory_is_the_jobs_again(pool: StaticPool) -> None:
    one, other = members(pool)
    assert one.do(f"alloc {MIB}") == "0"
    assert other.do("alloc 2") == OUT_OF_MEMORY
    one.kill()
    wait_free(other, MIB)
    assert other.do(f"alloc {MIB}") == "0"
    other.quit()


def test_all_see_the_same_vgpus_and_a_choice_is_of_the_jobs(pool: StaticPool) -> None:
    one, other = members(pool)
    both = one.do("devices").split()
    assert len(set(both)) == 2
    assert other.do("devices").split() == both
    token = secrets.token_hex(16)
    first, second, swapped = (
        JobProcess(pool.environment(SLUICE_JOB=token, CUDA_VISIBLE_DEVICES=visible))
        for visible in ("0", "1", "1,0")
    )
    names = swapped.do("devices").split()
    assert first.do("devices").split() == names[1:]
    assert second.do("devices").split() == names[:1]
    assert second.do(f"alloc {MIB}") == "0"
    assert (first.free_mib(), swapped.free_mib()) == (MIB, 0)
    for process in (one, other, first, second, swapped):
        process.quit()


def test_children_belong_to_the_job(pool: StaticPool) -> None:
    [one] = members(pool, 1)
    assert one.do("alloc 200") == "0"
    assert one.do("child 56") == "ready;0;0 256;"
    wait_free(one, 56)
    assert one.do("child 57").startswith("ready;2;")
    one.quit()


def test_memory_is_shared_by_ipc_between_the_jobs_processes(pool: StaticPool) -> None:
    one, other = members(pool)
    assert one.do("alloc 2") == "0"
    handle = one.do("export")
    assert other.do(f"open {handle}") == "0"
    assert one.do("write 7") == "0"
    assert other.do("read") == "07070707"
    assert other.free_mib() == MIB - 2, "it is charged once"
    for process in (one, other):
        process.quit()


def test_many_processes_at_once_never_exceed_it(pool: StaticPool) -> None:
    processes = members(pool, 4)
    for _ in range(20):
        for process in processes:  # all at once: nobody waits for another's answer
            assert process.process.stdin
            process.process.stdin.write("alloc 64\nalloc 32\n")
            process.process.stdin.flush()
        answers = []
        for process in processes:
            assert process.process.stdout
            answers.append([process.process.stdout.readline().strip() for _ in range(2)])
        got = sum(
            size for a in answers for size, said in zip((64, 32), a, strict=True) if said == "0"
        )
        assert got <= MIB
        assert MIB - got < 32, f"{got} of {MIB} MiB were given, and the next was refused: {answers}"
        assert {p.free_mib() for p in processes} == {MIB - got}
        for process, said in zip(processes, answers, strict=True):
            for one in said:
                if one == "0":
                    assert process.do("free") == "0"
    assert [p.quit() for p in processes] == [0] * 4


def test_a_token_that_is_none_is_refused_with_the_way_out(pool: StaticPool) -> None:
    process = JobProcess(pool.environment(SLUICE_JOB="mine"))
    assert process.first == "failed 100"
    assert "sluice run --share" in process.errors()
