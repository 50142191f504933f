# SPDX-License-Identifier: Apache-2.0
"""What CUDA 12's runtime has of its own, against NVIDIA's headers, and told apart from 13's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import c_text
import pytest
from imported import RegistryError
from layouts import leaves, records
from major_model import Conversion, Major
from registry import load_registry

ROOT = Path(__file__).resolve().parents[2]
WHEEL = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime"
LISTED = ROOT / "native" / "api" / "runtime12.yaml"


@pytest.fixture(scope="session")
def headers(cuda_root: Path) -> list[str]:
    """Options that find CUDA 12's headers, and behind them the ones that come with nvcc."""
    if not (WHEEL / "include" / "cuda_runtime_api.h").exists():
        pytest.skip(f"CUDA 12's headers are not at {WHEEL} (make programs)")
    return [f"-I{WHEEL}/include", f"-I{cuda_root}/include"]


@pytest.fixture(scope="session")
def major() -> Major:
    [found] = load_registry().majors
    return found


def test_importing_gives_the_committed_files_byte_by_byte(
    headers: list[str], cuda_root: Path, tmp_path: Path
) -> None:
    """CUDA 12's headers over what nvcc's own wheels have besides: crt and the profiler's."""
    pytest.importorskip("clang.cindex", reason="the libclang wheel is not installed")
    assert headers
    include, again = tmp_path / "include", tmp_path / "again"
    include.mkdir()
    for folder in (cuda_root / "include", WHEEL / "include"):
        for path in [*folder.glob("*.h"), folder / "crt"]:
            if path.exists():
                (include / path.name).unlink(missing_ok=True)
                (include / path.name).symlink_to(path)
    command = [sys.executable, ROOT / "native" / "codegen" / "import_headers.py"]
    command += ["--include", include, "--only", "runtime", "--out", again]
    subprocess.run(command, check=True)
    committed = ROOT / "native" / "api" / "imported" / "cuda12"
    names = {path.name for path in committed.iterdir()} - {"libraries.json", "cupti_calls.json"}
    assert {path.name for path in again.iterdir()} == names
    for name in names:
        assert (again / name).read_bytes() == (committed / name).read_bytes(), name


def check_syntax(command: list[str], text: str, *flags: str) -> None:
    done = subprocess.run(
        [*command, "-fsyntax-only", *flags, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]


def layouts(conversions: tuple[Conversion, ...], old: bool) -> Iterator[str]:
    """Sizes and offsets of every structure that differs, as the registry has them."""
    newest = records(load_registry().runtime)
    for one in conversions:
        name = str(one.declaration.tag)
        if not old and not one.both:
            continue
        declaration = one.declaration if old else newest[name]
        for expression, value in c_text.layout_checks(declaration):
            text = expression.replace("alignof(", "_Alignof(")
            yield f'_Static_assert({text} == {value}, "{text}");'


@pytest.mark.parametrize("old", [True, False], ids=["12", "13"])
def test_every_structure_that_differs_is_as_the_vendor_s_header_says(
    old: bool, major: Major, headers: list[str], cuda_root: Path
) -> None:
    lines = list(layouts(major.conversions, old))
    assert len(lines) > 100
    text = "#define __CUDA_API_VERSION_INTERNAL 1\n#include <stddef.h>"
    text += "\n#include <cuda_runtime_api.h>\n" + "\n".join(lines)
    where = headers if old else [f"-I{cuda_root}/include"]
    check_syntax(["gcc", "-x", "c", "-std=c11", "-w"], text, *where)


def test_every_function_is_declared_as_in_the_vendor_s_header(
    major: Major, headers: list[str]
) -> None:
    functions = [f for f in major.library.functions.values() if f.name.startswith("cuda")]
    assert len(functions) > 390
    lines = [f"#undef {f.name}\n{c_text.prototype(f)};" for f in functions]
    text = "#define __CUDA_API_VERSION_INTERNAL 1\n#include <cuda_runtime_api.h>\n"
    text += "\n".join(lines)
    check_syntax(["gcc", "-x", "c", "-std=c11", "-w"], text, *headers)


def test_a_wrong_layout_would_be_noticed(headers: list[str]) -> None:
    wrong = '_Static_assert(sizeof(struct cudaPointerAttributes) == 88, "13\'s");'
    with pytest.raises(AssertionError):
        check_syntax(["gcc", "-x", "c"], f"#include <cuda_runtime_api.h>\n{wrong}\n", *headers)


def test_sizes_are_those_that_cuda_12_has_always_had(major: Major) -> None:
    sizes = {c.declaration.tag: c.declaration.size for c in major.conversions}
    assert sizes["cudaDeviceProp"] == 1032
    assert sizes["cudaPointerAttributes"] == 24
    assert sizes["cudaResourceDesc"] == 64
    assert sizes["cudaResourceViewDesc"] == 48


def test_the_generated_files_compile(generated: Path, major: Major) -> None:
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{generated}", f"-I{ROOT}/native"]
    command = ["g++", "-x", "c++", "-std=c++20", f"-DSLUICE_CUDART_MAJOR={major.number}"]
    for part in (f"abi/cuda{major.number}_runtime.h", f"client/own_runtime{major.number}.inc"):
        check_syntax(command, f'#include "{part}"\n', *flags)


CONVERT = """
#include <cstdio>
#include "abi/cuda12_runtime.h"
template <typename From, typename To>
void show() {
  From from;
  To to;
  auto* bytes = reinterpret_cast<unsigned char*>(&from);
  for (size_t i = 0; i < sizeof from; ++i) bytes[i] = static_cast<unsigned char>(i * 7 % 251 + 1);
  std::memset(static_cast<void*>(&to), 0xff, sizeof to);
  sluice::cuda12::convert(from, &to);
  for (size_t i = 0; i < sizeof to; ++i)
    std::printf("%02x", reinterpret_cast<unsigned char*>(&to)[i]);
  std::printf("\\n");
}
int main() {
"""


def pattern(size: int) -> bytes:
    """What the program above puts into a structure."""
    return bytes(i * 7 % 251 + 1 for i in range(size))


def test_conversions_move_what_both_have_and_nothing_else(
    generated: Path, major: Major, tmp_path: Path
) -> None:
    newest = records(load_registry().runtime)
    both = [c.declaration for c in major.conversions if c.both]
    assert len(both) == 8
    text = CONVERT
    for declaration in both:
        old, new = f"sluice::cuda12::{declaration.tag}", f"::{declaration.tag}"
        text += f"  show<{new}, {old}>();\n  show<{old}, {new}>();\n"
    source, program = tmp_path / "convert.cc", tmp_path / "convert"
    source.write_text(text + "}\n")
    flags = ["-std=c++20", "-O2", "-w", f"-I{generated}"]
    subprocess.run(["g++", *flags, "-o", program, source], check=True)
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    for index, declaration in enumerate(both):
        older, newer = declaration, newest[str(declaration.tag)]
        for line, source_type, target in (
            (lines[2 * index], newer, older),
            (lines[2 * index + 1], older, newer),
        ):
            expected = bytearray(target.size)
            given = pattern(source_type.size)
            there = {path: (at, size) for path, at, size in leaves(source_type.fields)}
            for path, offset, size in leaves(target.fields):
                if path in there and "reserved" not in path.split("."):
                    at, other = there[path]
                    common = min(size, other)
                    expected[offset : offset + common] = given[at : at + common]
            assert bytes.fromhex(line) == bytes(expected), (declaration.tag, target.size)


@pytest.fixture
def with_text(tmp_path: Path) -> Path:
    api = tmp_path / "api"
    shutil.copytree(ROOT / "native" / "api", api)
    return api / "runtime12.yaml"


WRONG = {
    "unknown": (
        "  - cudaMemAdvise\n",
        "  - cudaMemAdvise\n  - cudaNever\n",
        "cudaNever: CUDA 12's headers declare no such name",
    ),
    "shared": (
        "  - cudaMemAdvise\n",
        "  - cudaMemAdvise\n  - cudaMalloc\n",
        "cudaMalloc: the same in both versions",
    ),
    "twice": ("  - cudaMemAdvise\n", "  - cudaMemAdvise\n" * 2, "listed twice"),
    "left out": ("  - cudaMemAdvise\n", "", "cudaMemAdvise works in the newer version"),
    "left out, by structure": (
        "  cudaPointerGetAttributes: {}\n",
        "",
        "cudaPointerGetAttributes works in the newer version",
    ),
    "too few": (
        "  cudaGraphAddDependencies: {with: {edgeData: nullptr}}\n",
        "  cudaGraphAddDependencies: {}\n",
        "takes 4 parameters where cudaGraphAddDependencies takes 5",
    ),
    "no such parameter": ("{dependencyData: nullptr}}\n", "{data: nullptr}}\n", "no parameter"),
    "another type": (
        "  cudaThreadSynchronize: cudaDeviceSynchronize\n",
        "  cudaThreadSynchronize: cudaFree\n",
        "cudaThreadSynchronize: takes 0 parameters where cudaFree takes 1",
    ),
    "unknown section": ("\nnames:\n", "\nalias: {}\nnames:\n", "'alias'"),
    "name with other structures": (
        "  cudaThreadSynchronize: cudaDeviceSynchronize\n",
        "  cudaGetDeviceProperties_v2: cudaGetDeviceProperties\n",
        "cudaGetDeviceProperties_v2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_the_headers_do_not_bear_out_is_refused(case: str, with_text: Path) -> None:
    before, after, complaint = WRONG[case]
    text = LISTED.read_text()
    assert before in text
    with_text.write_text(text.replace(before, after, 1))
    with pytest.raises(RegistryError) as caught:
        load_registry(with_text.parent)
    assert complaint in str(caught.value)
    assert "runtime12.yaml" in str(caught.value)


def test_names_that_mean_something_else_are_never_13_s(major: Major) -> None:
    """PyTorch and CuPy for 12 call these with 12's parameters."""
    for name in (
        "cudaGraphNodeGetDependencies",
        "cudaStreamUpdateCaptureDependencies",
        "cudaStreamGetCaptureInfo",
        "cudaMemAdvise",
        "cudaMemPrefetchAsync",
        "cudaPointerGetAttributes",
        "cudaGetDeviceProperties",
    ):
        assert name in major.renamed
        assert name in {f.name for f in major.own}
    assert "cudaMalloc" not in major.renamed
