# SPDX-License-Identifier: Apache-2.0
"""What our libraries export is what NVIDIA's export, and each name does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from names import error_rows
from registry import load_registry

ROOT = Path(__file__).resolve().parents[2]


NVIDIA_12 = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12"


@pytest.fixture(scope="session")
def nvidia_cudart(cuda_root: Path) -> Path:
    path = cuda_root / "lib" / "libcudart.so.13"
    if not path.exists():
        pytest.skip(f"NVIDIA's libcudart is not at {path}")
    return path


def map_names(path: Path) -> set[str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return {line.removesuffix(";") for line in lines if re.fullmatch(r"\w+;", line)}


def test_libcudart_exports_what_nvidias_does(generated: Path, nvidia_cudart: Path) -> None:
    exports_alike(nvidia_cudart, generated / "exports" / "libcudart.map", "libcudart.so.13")


def test_libcudart_12_exports_what_nvidias_does(generated: Path) -> None:
    if not NVIDIA_12.exists():
        pytest.skip(f"NVIDIA's libcudart of CUDA 12 is not at {NVIDIA_12} (make programs)")
    exports_alike(NVIDIA_12, generated / "exports" / "libcudart12.map", "libcudart.so.12")


def exports_alike(nvidia_cudart: Path, script: Path, node: str) -> None:
    """The linker's script has every name of NVIDIA's library but graphics', under its version."""
    elffile = pytest.importorskip("elftools.elf.elffile")
    with nvidia_cudart.open("rb") as stream:
        elf = elffile.ELFFile(stream)
        symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
        versions = elf.get_section_by_name(".gnu.version")
        nodes = {
            verdef["vd_ndx"]: next(iter(aux)).name
            for verdef, aux in elf.get_section_by_name(".gnu.version_d").iter_versions()
        }
        exported = {}
        for index, symbol in enumerate(symbols):
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC":
                version = versions.get_symbol(index).entry["ndx"]
                exported[symbol.name] = nodes.get(version, "") if isinstance(version, int) else ""
    left_out = load_registry().runtime_left_out
    expected = {name for name in exported if not name.startswith(left_out)}
    assert map_names(script) == expected
    assert {exported[name] for name in expected} == {node}
    assert f"\n{node} {{\n" in script.read_text()


def test_libcuda_map_lists_every_function_without_a_version(generated: Path) -> None:
    text = (generated / "exports" / "libcuda.map").read_text()
    assert "\n{\n" in text, "NVIDIA's libcuda.so.1 has no version node"
    names = map_names(generated / "exports" / "libcuda.map")
    assert names == set(load_registry().driver_exports())
    assert {"cuGLInit", "cuGraphicsGLRegisterImage", "cuGLMapBufferObject_v2_ptds"} <= names
    assert {"cuMemAlloc", "cuMemAlloc_v2", "cuMemcpyHtoD_v2_ptds", "cuGetExportTable"} <= names


def test_error_texts_are_the_native_ones(nvidia_cudart: Path) -> None:
    registry = load_registry()
    program = (
        "import ctypes, sys\n"
        f"library = ctypes.CDLL({str(nvidia_cudart)!r})\n"
        "library.cudaGetErrorString.restype = ctypes.c_char_p\n"
        "library.cudaGetErrorName.restype = ctypes.c_char_p\n"
        "for value in map(int, sys.argv[1:]):\n"
        "    print(library.cudaGetErrorName(value).decode())\n"
        "    print(library.cudaGetErrorString(value).decode())\n"
    )
    rows = error_rows(registry.runtime.enum("cudaError"), "cudaError", registry.error_strings)
    values = [str(value) for value, _, _ in rows]
    done = subprocess.run(
        [sys.executable, "-c", program, *values], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    native = {int(v): (lines[2 * i], lines[2 * i + 1]) for i, v in enumerate(values)}
    for value, name, text in rows:
        assert name == native[value][0]
        if value in registry.error_strings:
            assert text == native[value][1], name


STUBS = """
#include <cstdio>
#include <cstring>
#include "client/unsupported_driver.inc"
namespace sluice::client {
static const char* last = "";
void note_unsupported(const char* name) { last = name; }
}
int main() {
  if (cuDestroyExternalMemory(nullptr) != CUDA_ERROR_NOT_SUPPORTED) return 1;
  if (std::strcmp(sluice::client::last, "cuDestroyExternalMemory") != 0) return 2;
  if (cuGraphicsGLRegisterImage() != CUDA_ERROR_NOT_SUPPORTED) return 3;
  return std::strcmp(sluice::client::last, "cuGraphicsGLRegisterImage") == 0 ? 0 : 4;
}
"""

VARIANTS = """
#include <cstring>
#include "client/variants_driver.inc"
static CUstream seen;
static int waited;
extern "C" {
static CUresult see(CUstream s) { seen = s; return CUDA_SUCCESS; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUstream s) { return see(s); }
CUresult cuStreamSynchronize(CUstream s) {
  waited += s == CU_STREAM_PER_THREAD;
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent, CUstream s) { return see(s); }
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction, void**, void**) {
  return see(c->hStream);
}
CUresult cuEventDestroy_v2(CUevent) { return CUDA_ERROR_INVALID_HANDLE; }
}
int main() {
  if (cuMemcpyHtoD_v2_ptds(0, nullptr, 0) != CUDA_SUCCESS) return 1;
  if (seen != CU_STREAM_PER_THREAD || waited != 1) return 2;
  if (cuEventRecord_ptsz(nullptr, nullptr) || seen != CU_STREAM_PER_THREAD) return 3;
  CUstream named = reinterpret_cast<CUstream>(0x40);
  if (cuEventRecord_ptsz(nullptr, named) != CUDA_SUCCESS || seen != named) return 4;
  CUlaunchConfig config{};
  if (cuLaunchKernelEx_ptsz(&config, nullptr, nullptr, nullptr) != CUDA_SUCCESS) return 5;
  if (seen != CU_STREAM_PER_THREAD || config.hStream != nullptr) return 6;
  return cuEventDestroy(nullptr) == CUDA_ERROR_INVALID_HANDLE ? 0 : 7;
}
"""


@pytest.mark.parametrize(("name", "text"), [("stubs", STUBS), ("variants", VARIANTS)])
def test_generated_definitions_behave(
    name: str, text: str, generated: Path, tmp_path: Path
) -> None:
    source, program = tmp_path / f"{name}.cc", tmp_path / name
    source.write_text(text)
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{generated}", f"-I{ROOT}/native"]
    # Only what is called here is defined: the linker drops the rest before it misses anything.
    link = ["-ffunction-sections", "-Wl,--gc-sections"]
    subprocess.run(["g++", *flags, str(source), "-o", str(program), *link], check=True)
    assert subprocess.run([str(program)], check=False).returncode == 0


def test_runtime_stubs_compile(generated: Path) -> None:
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{generated}", f"-I{ROOT}/native"]
    for part in ("unsupported_runtime", "variants_runtime"):
        text = f'#include "client/{part}.inc"\n'
        command = ["g++", "-x", "c++", *flags, "-fsyntax-only", "-"]
        subprocess.run(command, input=text, text=True, check=True)
