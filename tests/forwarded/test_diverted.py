# SPDX-License-Identifier: Apache-2.0
"""Programs with NVIDIA's own static runtime inside, as nvcc links by default: with `static_runtime
= divert` they run on a vGPU and print what they print natively; without it nothing is touched.

The archive is that of the CUDA 13.0 wheel; test_runtimes_inside.py has more programs, CUDA 12 and
TCP. Sessions are on the software GPU.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtimes_inside import (
    ARCHIVE,
    NVCC,
    OLDER,
    PROGRAMS,
    ROOT,
    TOOLKIT,
    prints_as_natively,
    sluice_run,
)
from static_pool import StaticPool

from sluice.config.native_files import find_native
from sluice.guest_runtime.static_runtime import known_runtime

DRIVER = find_native("libcuda.so.1")
CUDA12 = OLDER / "lib" / ARCHIVE
NAMES = {
    "vector_add": "10000",
    "streams_events": "8192",
    "symbols": "",
}
LIBRARY = r"""
#include <cuda_runtime.h>
static __global__ void twice(int* p) { *p *= 2; }
// By a constructor: before main, and before other libraries that it does not need.
static int before = [] {
  int* p; int value = 21;
  if (cudaMalloc(&p, sizeof value) != cudaSuccess) return -1;
  cudaMemcpy(p, &value, sizeof value, cudaMemcpyHostToDevice);
  twice<<<1, 1>>>(p);
  if (cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost) != cudaSuccess) return -2;
  cudaFree(p);
  return value;
}();
extern "C" int answer() { return before; }
"""
LINKED = (
    '#include <cstdio>\nextern "C" int answer();\nint main() { std::printf("%d\\n", answer()); }\n'
)
LACKED = r"""
#include <cstdio>
#include <cuda_runtime.h>
extern "C" cudaError_t cudaEGLStreamConsumerDisconnect(void*);
int main() {
  int count;
  const int lacked = cudaEGLStreamConsumerDisconnect(nullptr), had = cudaGetDeviceCount(&count);
  std::printf("%d %d\n", lacked, had);
}
"""
# As compilers do that are linked in beside the runtime.
ASKS = r"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
int main() {
  const void* table; CUuuid id{};
  const int ready = cudaFree(nullptr), asked = cuGetExportTable(&table, &id);
  std::printf("%d %d\n", ready, asked);
}
"""
OPENS = r"""
#include <cstdio>
#include <dlfcn.h>
int main(int n, char** names) {
  for (int i = 1; i < n; ++i) {
    void* library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return std::puts(dlerror()), 1;
    std::printf("%d\n", reinterpret_cast<int (*)()>(dlsym(library, "answer"))());
  }
}
"""


def nvcc(source: Path, out: Path, *options: str) -> Path:
    """Compiles with NVIDIA's static runtime inside."""
    command = [*NVCC, "-cudart=static"]
    subprocess.run([*command, f"-L{TOOLKIT / 'lib'}", *options, "-o", out, source], check=True)
    return out


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StaticPool]:
    folder = tmp_path_factory.mktemp("pool")
    with StaticPool(folder) as started:
        yield started


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, every second one stripped; a library whose constructor computes."""
    folder = tmp_path_factory.mktemp("static")
    for count, name in enumerate(NAMES):
        program = nvcc(PROGRAMS / f"{name}.cu", folder / name)
        if count % 2:
            subprocess.run(["strip", program], check=True)
    (folder / "answer.cu").write_text(LIBRARY)
    (folder / "linked.cc").write_text(LINKED)
    (folder / "opens.cc").write_text(OPENS)
    library = nvcc(folder / "answer.cu", folder / "libanswer.so", "-shared", "-Xcompiler=-fPIC")
    shutil.copy(library, folder / "libagain.so")
    compiler = shutil.which("c++")
    assert compiler
    for name, *more in (("linked", library, f"-Wl,-rpath,{folder}"), ("opens", "-ldl")):
        command = [compiler, folder / f"{name}.cc", "-o", folder / name, *more]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_diverted_programs_print_what_they_print_natively(
    pool: StaticPool, built: Path, name: str
) -> None:
    sessions = pool.sessions()
    done = sluice_run(pool, "--static-runtime", "divert", built / name, *NAMES[name].split())
    prints_as_natively(name, done)
    assert pool.sessions() == sessions + 1


def test_libraries_are_diverted_before_their_constructors_run(
    pool: StaticPool, built: Path
) -> None:
    linked = sluice_run(pool, built / "linked", SLUICE_STATIC_RUNTIME="divert")
    assert (linked.stdout, linked.returncode) == ("42\n", 0), linked.stderr
    opened = sluice_run(
        pool,
        *(built / "opens", built / "libanswer.so", built / "libagain.so"),
        SLUICE_STATIC_RUNTIME="divert",
    )
    assert (opened.stdout, opened.returncode) == ("42\n42\n", 0), opened.stderr


def test_only_a_runtime_that_is_left_alone_is_said_to_fail(
    pool: StaticPool, tmp_path: Path
) -> None:
    (tmp_path / "asks.cu").write_text(ASKS)
    program = nvcc(
        tmp_path / "asks.cu", tmp_path / "asks", f"-L{DRIVER.parent}", f"-l:{DRIVER.name}"
    )
    done = sluice_run(pool, program, SLUICE_STATIC_RUNTIME="divert")
    assert (done.stdout, done.stderr) == ("0 500\n", "")
    assert "asked for a private driver table" in sluice_run(pool, program).stderr


@pytest.mark.skipif(not CUDA12.exists(), reason="CUDA 12.9's wheel is not unpacked in build/cuda12")
def test_a_runtime_of_cuda_12_leads_to_ours_of_cuda_12(pool: StaticPool, tmp_path: Path) -> None:
    source, program = PROGRAMS / "vector_add.cu", tmp_path / "vector_add"
    libraries = [str(CUDA12), "-ldl", "-lrt", "-lpthread"]
    command = [*NVCC, "-cudart=none"]
    subprocess.run([*command, "-o", program, source, *libraries], check=True)
    done = sluice_run(pool, program, "10000", SLUICE_STATIC_RUNTIME="divert")
    assert done.stdout == (PROGRAMS / "expected" / "vector_add.out").read_text(), done.stderr


@pytest.mark.skipif(not CUDA12.exists(), reason="CUDA 12.9's wheel is not unpacked in build/cuda12")
def test_runtimes_of_two_versions_in_one_program_are_named(
    pool: StaticPool, built: Path, tmp_path: Path
) -> None:
    older = tmp_path / "libolder.so"
    command = [*NVCC, "-cudart=none", f"-I{OLDER / 'include'}", "-shared", "-Xcompiler=-fPIC"]
    libraries = [CUDA12, "-ldl", "-lrt", "-lpthread"]
    subprocess.run([*command, "-o", older, built / "answer.cu", *libraries], check=True)
    both = (built / "libanswer.so", older)
    done = sluice_run(pool, built / "opens", *both, SLUICE_STATIC_RUNTIME="divert")
    assert done.stdout == "42\n42\n", done.stderr
    assert done.stderr.count("libraries of CUDA 13 and of CUDA 12") == 1
    program = tmp_path / "program"
    rpaths = [f"-Wl,-rpath,{library.parent}" for library in both]
    link = ["-Wl,--no-as-needed", *rpaths, *(f"-L{library.parent}" for library in both)]
    names = [f"-l:{library.name}" for library in both]
    subprocess.run(["c++", built / "linked.cc", "-o", program, *link, *names], check=True)
    said = check(pool, program, SLUICE_STATIC_RUNTIME="divert")
    assert f"mixes libraries of several CUDA versions: {older} needs CUDA 12's" in said, said


def test_what_ours_has_not_is_not_supported(pool: StaticPool, tmp_path: Path) -> None:
    (tmp_path / "egl.cu").write_text(LACKED)
    program = nvcc(tmp_path / "egl.cu", tmp_path / "egl")
    done = sluice_run(pool, program, SLUICE_STATIC_RUNTIME="divert", SLUICE_DEBUG="1")
    assert (done.stdout, done.returncode) == ("801 0\n", 0), done.stderr
    assert "cudaEGLStreamConsumerDisconnect is not supported" in done.stderr


def test_nothing_is_touched_unless_it_is_asked_for(pool: StaticPool, built: Path) -> None:
    done = sluice_run(pool, built / "vector_add", "100")
    assert done.returncode != 0
    assert "statically linked CUDA runtime" in done.stderr
    assert (
        sluice_run(pool, built / "vector_add", "1", SLUICE_STATIC_RUNTIME="maybe").returncode != 0
    )


def test_check_says_what_would_become_of_it(pool: StaticPool, built: Path) -> None:
    assert "carries the CUDA runtime inside (13.0.48)" in check(pool, built / "symbols")
    assert "sluice run --static-runtime divert" in check(pool, built / "symbols")
    asked = check(pool, built / "symbols", SLUICE_STATIC_RUNTIME="divert")
    assert "its functions lead to ours" in asked


def test_check_names_each_object_and_what_becomes_of_it(
    pool: StaticPool, built: Path, tmp_path: Path
) -> None:
    """Five of a known runtime, one of another; the program itself has none."""
    known = [tmp_path / f"libanswer{number}.so" for number in range(5)]
    for library in known:
        shutil.copy(built / "libanswer.so", library)
    other = with_one_other_byte(built / "libanswer.so", tmp_path / "libother.so")
    program = tmp_path / "program"
    link = ["-Wl,--no-as-needed", f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    names = [f"-l:{library.name}" for library in (*known, other)]
    subprocess.run(["c++", built / "linked.cc", "-o", program, *link, *names], check=True)
    for divert, becomes in (("leave", "private tables"), ("divert", "lead to ours")):
        said = check(pool, program, SLUICE_STATIC_RUNTIME=divert).splitlines()
        (line,) = (each for each in said if "carry the CUDA runtime inside (13.0.48)" in each)
        assert all(str(library) in line for library in known), line
        assert becomes in line
        assert any(
            f"{other} carries the CUDA runtime inside (libcudart_static)" in each
            and "of a version that cannot be diverted here" in each
            for each in said
        ), said


def test_the_file_of_settings_is_as_good_as_the_option(
    pool: StaticPool, built: Path, tmp_path: Path
) -> None:
    (tmp_path / ".sluice").mkdir()
    (tmp_path / ".sluice" / "client.conf").write_text("[client]\nstatic_runtime = divert\n")
    done = sluice_run(pool, built / "linked", HOME=str(tmp_path))
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr
    assert "its functions lead to ours" in check(pool, built / "linked", HOME=str(tmp_path))
    left = sluice_run(pool, "--static-runtime", "leave", built / "linked", HOME=str(tmp_path))
    assert "statically linked CUDA runtime" in left.stderr, "the option comes before it"


def test_sluice_run_without_python_knows_the_variable(
    pool: StaticPool, built: Path, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    script = shutil.copy(ROOT / "packaging" / "guest" / "sluice-run", tmp_path / "bin")
    (tmp_path / "lib").symlink_to(find_native("libcuda.so.1").parent)
    for setting, prints in (("divert", "42\n"), ("leave", "-1\n")):
        variables = {"SLUICE_STATIC_RUNTIME": setting, "LD_LIBRARY_PATH": ""}
        done = subprocess.run(
            [script, built / "linked"],
            env=pool.environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == prints, done.stderr


def check(pool: StaticPool, program: Path, **variables: str) -> str:
    """What `sluice check` says of it."""
    done = subprocess.run(
        [sys.executable, "-m", "sluice.guest_runtime", "check", program],
        env=pool.environment(PYTHONPATH=str(ROOT / "python"), **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def with_one_other_byte(source: Path, out: Path, *, named: bool = False) -> Path:
    """A copy of a program or library whose cudaStreamDestroy begins otherwise.

    Without names, unless it is `named`.
    """
    symbols = subprocess.run(["nm", source], capture_output=True, text=True, check=True).stdout
    (line,) = (one for one in symbols.splitlines() if one.endswith(" cudaStreamDestroy"))
    content = bytearray(source.read_bytes())
    place = 0
    headers = subprocess.run(
        ["readelf", "-lW", source], capture_output=True, text=True, check=True
    ).stdout
    for row in headers.splitlines():
        words = row.split()
        if words and words[0] == "LOAD" and "E" in words[6:8]:
            place = int(line.split()[0], 16) - int(words[2], 16) + int(words[1], 16)
    assert place
    content[place] ^= 1
    out.write_bytes(content)
    out.chmod(0o755)
    if not named:
        subprocess.run(["strip", out], check=True)
    return out


def renamed(source: Path, out: Path, *options: str) -> Path:
    """A copy with another table of symbols, by these options of objcopy's."""
    subprocess.run(["objcopy", *options, source, out], check=True)
    return out


def test_a_runtime_with_one_other_byte_is_left_alone(
    pool: StaticPool, built: Path, tmp_path: Path
) -> None:
    found = known_runtime(built / "vector_add")
    assert found
    assert (found.version, found.major) == ("13.0.48", 13)
    other = with_one_other_byte(built / "vector_add", tmp_path / "other")
    assert known_runtime(other) is None
    done = sluice_run(pool, other, "100", SLUICE_STATIC_RUNTIME="divert")
    assert done.returncode != 0
    assert "statically linked CUDA runtime" in done.stderr


def test_a_runtime_of_another_text_is_known_by_its_names(
    pool: StaticPool, built: Path, tmp_path: Path
) -> None:
    other = with_one_other_byte(built / "vector_add", tmp_path / "other", named=True)
    assert known_runtime(other) == ("13.0", 13)
    done = sluice_run(pool, other, "10000", SLUICE_STATIC_RUNTIME="divert")
    assert done.stdout == (PROGRAMS / "expected" / "vector_add.out").read_text(), done.stderr
    assert "inside (13.0)" in check(pool, other)


@pytest.mark.parametrize(
    "options",
    [
        ("--strip-symbol=cudaMalloc",),
        ("--redefine-sym=cudaMalloc=cudaOfLater",),
        ("--redefine-sym=cudaMalloc=cudaFree",),
        ("--add-symbol=cudaOfLater=.text:0x{inside:x},function,local",),
        ("--add-symbol=odd=.text:0x{odd:x},function,local",),
        ("--add-symbol=cudaThreadExit=.text:0x0,function,local",),
    ],
)
def test_names_that_are_not_those_of_a_release_are_none(
    built: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    other = with_one_other_byte(built / "vector_add", tmp_path / "other", named=True)
    row = subprocess.run(["readelf", "-SW", other], capture_output=True, text=True, check=True)
    (text,) = (line for line in row.stdout.splitlines() if " .text " in line)
    begin = int(text.split("PROGBITS")[1].split()[0], 16)
    said = subprocess.run(["nm", other], capture_output=True, text=True, check=True).stdout
    (malloc,) = (line for line in said.splitlines() if line.endswith(" cudaMalloc"))
    inside = int(malloc.split()[0], 16) - begin + 32
    changed = [option.format(inside=inside, odd=inside + 1) for option in options]
    assert known_runtime(renamed(other, tmp_path / "changed", *changed)) is None


@pytest.mark.skipif(not CUDA12.exists(), reason="CUDA 12.9's wheel is not unpacked in build/cuda12")
def test_older_releases_are_known_by_what_they_have(tmp_path: Path) -> None:
    """Their archives are in no wheel: names that they lack are taken out of 12.9's."""
    program = tmp_path / "vector_add"
    libraries = [str(CUDA12), "-ldl", "-lrt", "-lpthread"]
    command = [*NVCC, "-cudart=none", "-o", program, PROGRAMS / "vector_add.cu", *libraries]
    subprocess.run(command, check=True)
    other = with_one_other_byte(program, tmp_path / "other", named=True)
    assert known_runtime(other) == ("12.8", 12)
    lock = (ROOT / "native/api/static_runtimes.lock").read_text().splitlines()
    releases = [line.split()[1:] for line in lock if line.startswith("release ")]
    for versions, *lacked in releases:
        older = renamed(other, tmp_path / "older", *(f"--strip-symbol={n}" for n in lacked))
        assert known_runtime(older) == (versions.rpartition(".")[0].split(",")[0][:4], 12)


def test_files_that_hold_anything_are_only_looked_at(built: Path, tmp_path: Path) -> None:
    """In a process of its own, which a fault would end."""
    script = tmp_path / "look.py"
    script.write_text(f"""
import ctypes, random, sys
hook = ctypes.CDLL({str(find_native("libsluice-audit.so"))!r})
ask = hook.sluice_static_runtime_of
wholes = [open(f"{built}/{{name}}", "rb").read() for name in ("streams_events", "symbols")]
path = {str(tmp_path / "any")!r}
room = ctypes.create_string_buffer(8)
chance = random.Random(int(sys.argv[1]))
for _ in range(300):
    whole = chance.choice(wholes)
    one = bytearray(whole[: chance.choice((len(whole), chance.randrange(len(whole)), 64, 700))])
    for _ in range(chance.randrange(40)):
        where = chance.choice((64, 1000, len(one)))
        if one[:where]:
            at = chance.randrange(min(where, len(one)))
            one[at] = chance.choice((0, 255, chance.randrange(256)))
    open(path, "wb").write(one)
    assert ask(path.encode(), room, 8) in (0, 1, 2)
    assert room.raw[7:] == b"\\0"
""")
    subprocess.run([sys.executable, script, str(random.randrange(1 << 30))], check=True)


def test_it_keeps_what_was_preloaded(pool: StaticPool) -> None:
    asked = ("sh", "-c", "echo $LD_PRELOAD")
    done = sluice_run(pool, *asked, SLUICE_STATIC_RUNTIME="divert", LD_PRELOAD="libm.so.6")
    first, *_, last = done.stdout.strip().split(":")
    assert Path(first).samefile(find_native("libcudart.so.13"))
    assert last == "libm.so.6"
