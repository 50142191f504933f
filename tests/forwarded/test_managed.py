# SPDX-License-Identifier: Apache-2.0
"""Managed memory through a worker: the programs about it, over shared memory, a relay and TCP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from static_pool import StaticPool, build_programs

from sluice.config.native_files import find_native

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "demo"))
from programs import Program, facts, load_programs  # noqa: E402

PROGRAMS = [
    one
    for one in load_programs(milestone_only=False)
    if one.name.startswith("managed") or one.name in ("host_virtual_memory", "universal_vectors")
]


@pytest.fixture(scope="session")
def built() -> Path:
    return build_programs(*(program.name for program in PROGRAMS), "vector_add")


@pytest.mark.parametrize("way", ["shm", "relay", "tcp"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_is_as_the_program_expects(tmp_path: Path, built: Path, program: Program, way: str) -> None:
    with StaticPool(tmp_path, tcp=way == "tcp", relay=way == "relay") as pool:
        done = subprocess.run(
            program.command(built),
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        log = pool.log.read_text()
    assert program.expected is not None
    assert facts(done.stdout) == facts(program.expected), done.stderr
    assert done.returncode == 0, done.stderr
    assert "poisoned" not in log, log


#: Whether SIGSEGV has a handler, before there is managed memory and after; what os.readv() gets.
FROM_PYTHON = """
import ctypes, os, re, sys, tempfile

def caught():
    mask = re.search(r"SigCgt:\\s*(\\w+)", open("/proc/self/status").read()).group(1)
    return int(mask, 16) >> 10 & 1

cuda = ctypes.CDLL("libcudart.so.13")
memory = ctypes.c_void_p()
size = 1 << 20
assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
assert cuda.cudaMemset(memory, 1, ctypes.c_size_t(size)) == 0
assert cuda.cudaDeviceSynchronize() == 0
before = caught()
assert cuda.cudaMallocManaged(ctypes.byref(memory), ctypes.c_size_t(size), 1) == 0
assert cuda.cudaMemset(memory, 7, ctypes.c_size_t(size)) == 0
assert cuda.cudaDeviceSynchronize() == 0
view = memoryview((ctypes.c_ubyte * size).from_address(memory.value)).cast("B")
with tempfile.TemporaryFile(buffering=0) as file:
    sent = os.write(file.fileno(), view)
    assert cuda.cudaMemset(memory, 0, ctypes.c_size_t(size)) == 0
    got = os.preadv(file.fileno(), [view], 0)
print(before, caught(), sent, got, set(view))
"""


def test_costs_no_signal_handler_before_there_is_some(tmp_path: Path) -> None:
    with StaticPool(tmp_path) as pool:
        done = pool.run(sys.executable, "-c", FROM_PYTHON)
    assert done.stdout.split(maxsplit=4) == ["0", "1", "1048576", "1048576", "{7}\n"], done.stderr


def test_advice_prefetching_and_attachment_are_remembered_or_refused(tmp_path: Path) -> None:
    """Attributes: read mostly, preferred and last place (-1: the host, -2: none), their types."""
    with StaticPool(tmp_path) as pool:
        done = pool.run(sys.executable, HERE / "managed_hints.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "managed": 1,
        "concurrent": 0,
        "pageable": 0,
        "direct": 0,
        "new": [0, -2, -2, 0, 0],
        "first half": [1, 0, -2, 1, 0],
        "whole": [0, -2, -2, 0, 0],
        "halves": [[0, 0, 0, 1, 1], [0, -2, -1, 0, 2]],
        "accessed": [[-2, -2, -1, 0], [-2, -2, -2, 0]],
        "accessed no more": [-2] * 4,
        "refused": {
            **{key: [1, 1] for key in ("beyond its end", "other memory", "nothing", "flags")},
            "no such device": [101],
            "a part": [1],
            "the default stream": [1, 1],
        },
        "attached": 0,
        "charged": {"taken": 100, "too large": 2, "left": 0},
    }


@pytest.mark.parametrize("tcp", [False, True], ids=["shm", "tcp"])
def test_a_variable_of_a_library_is_the_programs_too(tmp_path: Path, tcp: bool) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = pool.run(sys.executable, HERE / "managed_of_library.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "seen": [5, 45, 140],
        "bytes": 4,
        "one address": True,
        "refused": [500, 500],
    }


@pytest.mark.parametrize("flags", [("-O2", "-D_FORTIFY_SOURCE=2"), ("-fno-plt", "-Wl,-z,now")])
def test_each_system_call_on_it_moves_what_it_should(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """However the program was built; and `read` is led elsewhere from the first such memory on."""
    program = compile_c("system_calls", tmp_path / "program", "-U_FORTIFY_SOURCE", *flags)
    with StaticPool(tmp_path) as pool:
        done = pool.run(program)
    assert done.stdout == "before 1, after 0\n", done.stderr


def test_a_handler_of_a_library_that_comes_later_is_kept_too(tmp_path: Path) -> None:
    library = compile_c("late_handler", tmp_path / "late.so", "-DLIBRARY", "-shared", "-fPIC")
    program = compile_c("late_handler", tmp_path / "program")
    with StaticPool(tmp_path) as pool:
        done = pool.run(program, library)
    assert done.stdout == "7 times right, 3 and 3 faults\n", done.stderr


def test_touches_outlive_connections_that_are_cut(tmp_path: Path) -> None:
    with (
        StaticPool(tmp_path, tcp=True, way="127.0.0.2") as pool,
        BreakingNetwork(pool.data_port) as network,
    ):
        network.cut_within(500_000, seed=7)
        run = pool.run(sys.executable, HERE / "managed_turns.py", "3")
    assert run.stdout == "right\n", run.stderr
    assert network.cuts > 10


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    return compile_c("managed_threads", folder / "program", "-O1", "-std=c++20", "-pthread")


@pytest.mark.parametrize("way", ["shm", "relay", "tcp"])
def test_threads_see_what_their_own_streams_did(tmp_path: Path, threads: Path, way: str) -> None:
    with StaticPool(tmp_path, tcp=way == "tcp", relay=way == "relay") as pool:
        for _ in range(2):
            done = pool.run(threads)
            assert done.stdout == "right\n", done.stderr


def test_what_is_attached_is_touched_while_other_streams_work(tmp_path: Path) -> None:
    """Over shared memory; elsewhere a host function runs before its caller goes on."""
    with StaticPool(tmp_path) as pool:
        done = pool.run(sys.executable, HERE / "managed_attached.py")
    assert done.returncode == 0, done.stderr
    seen = {"of another stream": [3, 3], "the host's": [4, 4], "nobody's": [5, 5], "waits": True}
    assert json.loads(done.stdout) == seen


@pytest.mark.parametrize("tcp", [False, True], ids=["shm", "tcp"])
def test_behind_an_error_the_program_reads_what_it_saw_last(tmp_path: Path, tcp: bool) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = pool.run(sys.executable, HERE / "managed_after_error.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"error": 700, "seen": [5, 5, 8, 7], "written": 3}
    assert done.stderr.count("the program reads what it saw last") == 1


def compile_c(name: str, out: Path, *flags: str) -> Path:
    """Makes one of programs/*.c and *.cc."""
    link = [find_native("libcudart.so.13"), "-Wl,--allow-shlib-undefined", "-ldl"]
    (source,) = (HERE / "programs").glob(f"{name}.c*")
    compiler = "gcc" if source.suffix == ".c" else "g++"
    subprocess.run([compiler, *flags, "-o", out, source, *link], check=True)
    return out


@pytest.mark.parametrize("way", ["shm", "relay", "tcp"])
def test_is_a_plain_array_in_random_turns(tmp_path: Path, way: str) -> None:
    turns = HERE / "managed_turns.py"
    with StaticPool(tmp_path, tcp=way == "tcp", relay=way == "relay") as pool:
        for seed in range(1, 13):
            run = pool.run(sys.executable, str(turns), str(seed))
            assert run.stdout == "right\n", f"seed {seed}: {run.stdout}{run.stderr}"
