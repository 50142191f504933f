# SPDX-License-Identifier: Apache-2.0
"""libcudart_static.a: NVIDIA's names and nothing else, and a driver that is found when it runs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from sluice.config.native_files import find_native
from sluice.guest_runtime.elf_file import read_elf
from sluice.guest_runtime.modules import has_static_runtime

ROOT = Path(__file__).resolve().parents[2]
#: Where `make programs` unpacks NVIDIA's runtimes.
VENDORS = {12: "cuda12/nvidia/cuda_runtime", 13: "cuda13/nvidia/cu13"}
PROGRAM = """
#include <cstdio>
#include "abi/cuda_driver.h"
#include "abi/cuda_runtime.h"
// The program's own: the archive's must not meet it.
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t) { return static_cast<CUresult>(77); }
int main() {
  int count = -1;
  const cudaError_t error = cudaGetDeviceCount(&count);
  std::printf("%d %d %d\\n", static_cast<int>(error), count,
              static_cast<int>(cuMemAlloc_v2(nullptr, 0)));
}
"""


@pytest.fixture(scope="session")
def archive(cudart: Path) -> Path:
    return cudart.parent / "libcudart_static.a"


CUDA_12 = """
#include <cstdio>
#include "abi/cuda12_runtime.h"
int main() {
  int version = 0;
  sluice::cuda12::cudaPointerAttributes two[2] = {};
  two[1].hostPointer = &version;
  const cudaError_t error = sluice::cuda12::cudart12_cudaPointerGetAttributes(two, &version);
  const bool whole = error == cudaSuccess && two[1].hostPointer == &version;
  const int asked = static_cast<int>(cudaRuntimeGetVersion(&version));
  std::printf("%d %d %d\\n", asked, version, whole);
}
"""


def test_the_one_of_cuda_12_has_cuda_12_s_structures(
    tmp_path: Path, archive: Path, generated: Path
) -> None:
    source = tmp_path / "program.cc"
    source.write_text(CUDA_12)
    older = archive.parent / "cuda12" / archive.name
    (tmp_path / "libcuda.so.1").symlink_to(find_native("libsluice-softgpu.so.1"))
    command = ["g++", "-std=c++20", "-DSLUICE_CUDART_MAJOR=12", f"-I{generated}"]
    command += ["-o", tmp_path / "program", source, older, "-lrt", "-lpthread", "-ldl"]
    subprocess.run(command, check=True)
    assert run(tmp_path / "program", tmp_path) == "0 12090 1\n"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, archive: Path, generated: Path) -> Path:
    folder = tmp_path_factory.mktemp("static")
    source = folder / "program.cc"
    source.write_text(PROGRAM)
    # As nvcc -cudart static links: no libcuda.
    link = [f"-L{archive.parent}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"]
    command = ["g++", "-std=c++20", f"-I{generated}", "-o", folder / "program", source, *link]
    subprocess.run(command, check=True)
    return folder / "program"


def run(program: Path, folder: Path) -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def global_names(archive: Path) -> set[str]:
    command = ["nm", "--defined-only", "--extern-only", archive]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = (line.split() for line in listed.stdout.splitlines())
    return {row[-1] for row in rows if len(row) == 3}


def test_only_the_runtime_s_names_are_global(archive: Path) -> None:
    names = global_names(archive)
    assert "cudaMalloc" in names
    assert "__cudaRegisterFatBinary" in names
    assert [name for name in names if not name.startswith(("cuda", "__cuda"))] == []


@pytest.mark.parametrize("major", VENDORS)
def test_every_name_of_the_vendor_s_archive_is_there_but_for_graphics(
    archive: Path, major: int
) -> None:
    vendor = ROOT / "build" / VENDORS[major] / "lib" / archive.name
    if not vendor.exists():
        pytest.skip(f"{vendor} is not unpacked (make programs)")
    ours = global_names(archive if major == 13 else archive.parent / "cuda12" / archive.name)
    theirs = {name for name in global_names(vendor) if name.startswith(("cuda", "__cuda"))}
    lacking = sorted(theirs - ours)
    assert len(theirs) > 400
    assert [name for name in lacking if not re.search("EGL|GL|VDPAU|Egl", name)] == []


def test_names_are_hidden_so_that_a_library_does_not_export_its_copy(
    tmp_path: Path, archive: Path
) -> None:
    library = tmp_path / "libuser.so"
    whole = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
    subprocess.run(["g++", "-shared", "-o", library, *whole, "-ldl"], check=True)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    assert "cuda" not in listed.stdout


EXCEPTIONS = """
#include <cstdio>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>
extern "C" int cudaRuntimeGetVersion(int*);
int main() {
  std::map<std::string, std::vector<int>> all{{"a", {1}}};
  std::mutex mutex;
  try {
    std::lock_guard lock(mutex);
    int version = 0;
    if (cudaRuntimeGetVersion(&version) == 0 && version >= 13000) throw std::runtime_error("it");
    all.at("b").push_back(2);
  } catch (const std::exception& e) {
    std::printf("%s\\n", e.what());
  }
}
"""


@pytest.mark.parametrize("runtime", [[], ["-static-libstdc++", "-static-libgcc"]])
def test_a_c_plus_plus_program_keeps_its_own_inline_functions(
    tmp_path: Path, archive: Path, runtime: list[str]
) -> None:
    source = tmp_path / "program.cc"
    source.write_text(EXCEPTIONS)
    link = [f"-L{archive.parent}", "-lcudart_static", "-lrt", "-lpthread", "-ldl", *runtime]
    command = ["g++", "-std=c++20", "-O0", "-o", tmp_path / "program", source, *link]
    subprocess.run(command, check=True)
    assert run(tmp_path / "program", tmp_path) == "it\n"


def test_the_driver_is_found_at_run_time(program: Path, fake_driver: Path) -> None:
    error, count, own = run(program, fake_driver.parent).split()
    assert (error, own) == ("0", "77")
    assert int(count) > 0


def test_without_a_driver_it_says_what_nvidia_s_says(program: Path, tmp_path: Path) -> None:
    assert run(program, tmp_path).split() == ["35", "0", "77"]


def test_sluice_check_tells_it_from_nvidia_s(program: Path) -> None:
    elf = read_elf(program)
    assert elf is not None
    assert not has_static_runtime(elf)
