# SPDX-License-Identifier: Apache-2.0
"""Programs compiled against CUDA 12's headers, by libcudart.so.12: as the same ones for 13 print.

Client, worker and software GPU are the ones of CUDA 13; only the runtime in the program is another.
test_every_program.py has them over TCP.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from folders import let_everybody_in
from static_pool import StaticPool

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "demo"))
from programs import Program, facts, load_programs, natively_with  # noqa: E402

BUILT = ROOT / "build" / "programs" / "cuda12"
#: What neither this channel nor the software GPU has, in programs of 13 as well.
ELSEWHERE = {
    "green_context": "the software GPU has no green contexts",
    "link_ptx": "the software GPU links nothing",
    "two_nodes": "wants GPUs of two nodes",
}
PROGRAMS = [one for one in load_programs(milestone_only=False, devices=2) if one.cuda12]


@pytest.fixture(scope="session")
def built() -> Path:
    build = ROOT / "tests" / "programs" / "build.py"
    subprocess.run([sys.executable, build], check=True, timeout=300)
    return BUILT


def test_the_session_says_which_version_it_is(tmp_path: Path, built: Path) -> None:
    [add] = [one for one in PROGRAMS if one.name == "vector_add"]
    with StaticPool(tmp_path) as pool:
        for folder, version in ((built, "12.9"), (built.parent, "13.0")):
            done = subprocess.run(
                add.command(folder), env=pool.environment(), timeout=60, check=False
            )
            assert done.returncode == 0
            assert f"for CUDA {version}" in pool.log.read_text()


def test_a_library_alone_says_it_too(tmp_path: Path) -> None:
    program = (
        "import ctypes; blas = ctypes.CDLL('libcublas.so.12'); handle = ctypes.c_void_p(); "
        "print(blas.cublasCreate_v2(ctypes.byref(handle)))"
    )
    not_supported = 15  # as the node of this pool has no cuBLAS
    with StaticPool(tmp_path) as pool:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        log = pool.log.read_text()
    assert int(done.stdout) == not_supported, done.stderr
    assert "for CUDA 12.9" in log
    assert "there is no libcublas.so.12 and no libcublas.so.13 on this node" in log
    assert "the GPU node has no libcublas.so.12 and no libcublas.so.13, which" in done.stderr


ON_THE_NODE = """
int cufftGetVersion(int* version) { *version = VERSION; return 0; }
int cublasCreate_v2(void** handle) { *handle = &handle; return 0; }
int cublasDestroy_v2(void* handle) { return 0; }
"""
ASKS = """
import ctypes, sys
fft, blas = (ctypes.CDLL(name) for name in sys.argv[1:])
version, handle = ctypes.c_int(), ctypes.c_void_p()
for _ in range(2):
    assert fft.cufftGetVersion(ctypes.byref(version)) == 0
    assert blas.cublasCreate_v2(ctypes.byref(handle)) == 0
    assert blas.cublasDestroy_v2(handle) == 0
print(version.value)
"""


def test_the_node_takes_its_libraries_of_cuda_12_where_it_has_them_and_says_so_once(
    tmp_path: Path,
) -> None:
    """Here it has cuFFT's of both versions, and cuBLAS's of 13 alone."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    let_everybody_in(tmp_path)
    for name, version in (("libcufft.so.11", 11), ("libcufft.so.12", 12), ("libcublas.so.13", 13)):
        compile_c(ON_THE_NODE, folder / name, "-shared", "-fPIC", f"-DVERSION={version}")
    of_12, of_13 = ("libcufft.so.11", "libcublas.so.12"), ("libcufft.so.12", "libcublas.so.13")
    with StaticPool(tmp_path, libraries=folder) as pool:
        older = pool.run(sys.executable, "-c", ASKS, *of_12)
        said = pool.log.read_text()
        newer = pool.run(sys.executable, "-c", ASKS, *of_13)
    assert (older.stdout, newer.stdout) == ("11\n", "12\n"), older.stderr + newer.stderr
    instead = "for a client of CUDA 12: there is no libcublas.so.12 on this node"
    taken = [line.rpartition("took ")[2] for line in said.splitlines() if "took " in line]
    assert taken == [
        f"{folder}/libcufft.so.11 for libcufft.so.11",
        f"{folder}/libcublas.so.13 {instead}",
    ]


RENAMED = """
#include <stdio.h>
int cudaRuntimeGetVersion(int*), cudaMalloc(void**, unsigned long), cudaFree(void*);
int main(void) {
  int version = 0;
  void* memory = 0;
  int error = cudaRuntimeGetVersion(&version);
  if (!error) error = cudaMalloc(&memory, 4096);
  if (!error) error = cudaFree(memory);
  printf("%d %d\\n", error, version);
}
"""


def test_a_copy_that_auditwheel_renamed_is_replaced(tmp_path: Path) -> None:
    """A wheel's own libcudart, under another name but with NVIDIA's version of its symbols."""
    name = "libcudart-5a077122.so.12.0.107"
    script, stub = tmp_path / "version.map", tmp_path / "wheel.libs" / name
    script.write_text("libcudart.so.12 { global: cuda*; local: *; };\n")
    stub.parent.mkdir()
    functions = ("cudaRuntimeGetVersion", "cudaMalloc", "cudaFree")
    code = "".join(f"int {one}(void) {{ return 77; }}\n" for one in functions)
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script={script}"]
    compile_c(code, stub, *shared)
    program = tmp_path / "program"
    compile_c(RENAMED, program, stub, f"-Wl,-rpath,{stub.parent}")
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"77 0\n"
    done = run_audited(tmp_path, [program])
    assert done.stdout == "0 12090\n", done.stderr


def test_a_renamed_copy_is_replaced_where_the_library_is_there_already(tmp_path: Path) -> None:
    """As torchvision's is beside PyTorch's, and asked for symbols of NVIDIA's version."""
    name = "libcudart.60cfec8e.so.12"
    script, folder = tmp_path / "version.map", tmp_path / "wheel.libs"
    script.write_text("libcudart.so.12 { global: cuda*; local: *; };\n")
    folder.mkdir()
    code = "int cudaRuntimeGetVersion(int* v) { return 77; }"
    shared = ["-shared", "-fPIC", f"-Wl,--version-script={script}"]
    compile_c(code, folder / name, *shared, f"-Wl,-soname,{name}")
    extension = tmp_path / "extension.so"
    asking = (
        "int cudaRuntimeGetVersion(int*); int asked(int* v) { return cudaRuntimeGetVersion(v); }"
    )
    flags = ["-shared", "-fPIC", f"-Wl,-rpath,{folder}"]
    compile_c(asking, extension, *flags, folder / name)
    program = (
        "import ctypes; first = ctypes.CDLL('libcudart.so.12'); v = ctypes.c_int(); "
        f"copy = ctypes.CDLL({str(extension)!r}); print(copy.asked(ctypes.byref(v)), v.value, "
        f"copy.cudaRuntimeGetVersion and ctypes.CDLL({name!r})._handle == first._handle)"
    )
    done = run_audited(tmp_path, [sys.executable, "-c", program])
    assert done.stdout == "0 12090 True\n", done.stderr


def run_audited(folder: Path, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a program whose libraries the loader hook replaces, and nothing else does."""
    with StaticPool(folder) as pool:
        audit = str(find_native("libsluice-audit.so"))
        return subprocess.run(
            command,
            env=pool.environment(LD_AUDIT=audit, LD_LIBRARY_PATH=""),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def compile_c(code: str, out: Path, *flags: str | Path) -> None:
    """Make a program or a library of C."""
    command = ["gcc", "-x", "c", "-w", "-o", out, "-", "-x", "none", *flags]
    subprocess.run(command, input=code, text=True, check=True)


def test_two_versions_in_one_program_are_named(tmp_path: Path) -> None:
    program = (
        "import ctypes; ctypes.CDLL('libcublas.so.12'); runtime = ctypes.CDLL('libcudart.so.13'); "
        "print(runtime.cudaFree(None))"
    )
    with StaticPool(tmp_path) as pool:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=pool.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == "0\n"
    assert done.stderr.count("libraries of CUDA 12 and of CUDA 13") == 1


def run(pool: StaticPool, built: Path, program: Program) -> None:
    done = subprocess.run(
        program.command(built),
        env=pool.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert facts(done.stdout) == facts(natively_with(program, 12)), done.stderr
    assert done.returncode == program.exit_code, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_prints_what_it_prints_for_cuda_13(tmp_path: Path, built: Path, program: Program) -> None:
    if program.name in ELSEWHERE:
        pytest.skip(ELSEWHERE[program.name])
    with StaticPool(tmp_path, vgpus=2, gpus=2) as pool:
        run(pool, built, program)
