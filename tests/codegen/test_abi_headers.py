# SPDX-License-Identifier: Apache-2.0
"""The generated headers compile alone and agree with NVIDIA's own, where those are present."""

from __future__ import annotations

import subprocess
from pathlib import Path

import c_text
import pytest
from imported import ImportedLibrary, TypeDeclaration
from registry import load_registry

HEADERS = ("abi/cuda_driver.h", "abi/cuda_runtime.h")
COMPILERS = {
    "gcc-c11": ["gcc", "-x", "c", "-std=c11", "-pedantic-errors"],
    "g++-c++20": ["g++", "-x", "c++", "-std=c++20", "-pedantic-errors"],
}


def compile_text(command: list[str], text: str, *flags: str) -> None:
    """Check syntax and types only; a failure shows what the compiler said."""
    done = subprocess.run(
        [*command, "-fsyntax-only", *flags, "-"],
        check=False,
        input=text,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_header_compiles_alone(compiler: str, header: str, generated: Path) -> None:
    compile_text(
        COMPILERS[compiler],
        f'#include "{header}"\n',
        f"-I{generated}",
        "-Wall",
        "-Wextra",
        "-Werror",
    )


def facts(library: ImportedLibrary, types: tuple[TypeDeclaration, ...]) -> list[str]:
    """Everything that the registry claims, as C that is wrong unless the headers agree."""
    lines = [f"#undef {name}" for name in library.functions]
    lines += [f"{c_text.prototype(f)};" for f in library.functions.values()]
    for declaration in types:
        for expression, value in c_text.layout_checks(declaration):
            expression = expression.replace("alignof(", "_Alignof(")
            lines.append(f'_Static_assert({expression} == {value}, "{expression}");')
        for name, value in declaration.values:
            lines.append(f'_Static_assert((long long){name} == {value}LL, "{name}");')
    for constant in library.constants:
        if constant.value is not None:
            text = f"(long long){constant.name} == {constant.value}LL"
            lines.append(f"void check_{constant.name}(int (*)[({text}) ? 1 : -1]);")
    return lines


def test_driver_agrees_with_nvidias_header(cuda_root: Path) -> None:
    library = load_registry().driver
    text = ["#define __CUDA_API_VERSION_INTERNAL 1", "#include <stddef.h>", "#include <cuda.h>"]
    text += ["#include <cudaProfiler.h>"] if profiler_headers(cuda_root) else []
    compile_text(
        ["gcc", "-x", "c", "-std=c11", "-w"],
        "\n".join([*text, *facts(library, library.types)]),
        f"-I{cuda_root}/include",
    )


def test_runtime_agrees_with_nvidias_header(cuda_root: Path) -> None:
    library = load_registry().runtime
    text = ["#define __CUDA_API_VERSION_INTERNAL 1", "#include <stddef.h>"]
    text += ["#include <cuda_runtime_api.h>", "#include <library_types.h>"]
    text += ["#include <cuda_profiler_api.h>"] if profiler_headers(cuda_root) else []
    compile_text(
        ["gcc", "-x", "c", "-std=c11", "-w"],
        "\n".join([*text, *facts(library, library.types)]),
        f"-I{cuda_root}/include",
    )


def profiler_headers(cuda_root: Path) -> bool:
    return (cuda_root / "include" / "cudaProfiler.h").exists()


def test_a_wrong_fact_would_be_noticed(cuda_root: Path) -> None:
    """The comparison above can fail: one offset moved, one parameter changed."""
    text = "#include <stddef.h>\n#include <cuda.h>\n"
    for wrong in (
        '_Static_assert(offsetof(CUDA_MEMCPY3D, Depth) == 8, "");',
        "CUresult cuInit(int *Flags);",
    ):
        with pytest.raises(AssertionError):
            compile_text(["gcc", "-x", "c"], text + wrong + "\n", f"-I{cuda_root}/include")


def test_streams_are_one_type_in_both_headers(generated: Path) -> None:
    text = '#include "abi/cuda_runtime.h"\n#include <type_traits>\n'
    text += "static_assert(std::is_same_v<CUstream, cudaStream_t>);\n"
    text += "static_assert(std::is_same_v<CUuuid, cudaUUID_t>);\n"
    compile_text(["g++", "-x", "c++", "-std=c++20"], text, f"-I{generated}")


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize(("language", "standard"), [("c", "c11"), ("c++", "c++20")])
def test_clang_accepts_the_header(
    language: str, standard: str, header: str, generated: Path
) -> None:
    """The compiler need not be installed: the libclang wheel parses with the same front end."""
    cindex = pytest.importorskip("clang.cindex", reason="the libclang wheel is not installed")
    name = "header.c" if language == "c" else "header.cc"
    flags = ["-Wall", "-Wextra", "-Wpedantic", f"-I{generated}", "-isystem", builtin_include()]
    unit = cindex.Index.create().parse(
        name,
        args=["-x", language, f"-std={standard}", *flags],
        unsaved_files=[(name, f'#include "{header}"\n')],
    )
    assert [str(diagnostic) for diagnostic in unit.diagnostics] == []


def builtin_include() -> str:
    """gcc's folder of stddef.h: the libclang wheel brings none."""
    command = ["gcc", "-print-file-name=include"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
