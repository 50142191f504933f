# SPDX-License-Identifier: Apache-2.0
"""The rules for the bundle's libraries catch what would not load in an old guest."""

from __future__ import annotations

import sys
from pathlib import Path

from .conftest import CHECKOUT, Compile

sys.path.insert(0, str(CHECKOUT / "packaging"))

import library_rules

SHARED = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")


def violations(path: Path) -> list[str]:
    return library_rules.violations(path, "libcuda.so.1")


def test_a_library_that_is_right_passes(compile_c: Compile) -> None:
    library = compile_c("l.so", "int cuInit(unsigned f){return f;}", *SHARED, "-nostdlib")
    assert violations(library) == []


def test_a_newer_glibc_is_caught(compile_c: Compile) -> None:
    source = "unsigned arc4random(void); int cuInit(unsigned f){return arc4random();}"
    (text,) = violations(compile_c("l.so", source, *SHARED))
    assert "GLIBC_2.36" in text


def test_a_cxx_runtime_of_the_guest_is_caught(compile_c: Compile) -> None:
    source = "int cuInit(unsigned f){return f;}"
    library = compile_c("l.so", source, *SHARED, "-Wl,--no-as-needed", "-lstdc++")
    assert any("libstdc++" in text for text in violations(library))


def test_a_foreign_export_is_caught(compile_c: Compile) -> None:
    source = "int cuInit(unsigned f){return f;} int helper(void){return 1;}"
    assert any("helper" in text for text in violations(compile_c("l.so", source, *SHARED)))


def test_a_wrong_name_is_caught(compile_c: Compile) -> None:
    library = compile_c("l.so", "int cuInit(unsigned f){return f;}", "-shared", "-fPIC")
    assert any("SONAME" in text for text in violations(library))


def test_a_search_path_of_the_build_machine_is_caught(compile_c: Compile) -> None:
    source = "int cuInit(unsigned f){return f;}"
    for tags in ("--enable-new-dtags", "--disable-new-dtags"):
        library = compile_c("l.so", source, *SHARED, f"-Wl,{tags},-rpath,/build/lib")
        assert any("/build/lib" in text for text in violations(library))


def test_a_library_may_need_what_the_bundle_brings_and_nothing_else(compile_c: Compile) -> None:
    source = "int cuInit(unsigned f){return f;}"
    driver = compile_c("libcuda.so.1", source, *SHARED)
    runtime = compile_c(
        "libcudart.so.13",
        "int cuInit(unsigned); int cudaFree(void* p){return cuInit(!p);}",
        *("-shared", "-fPIC", "-Wl,-soname,libcudart.so.13"),
        str(driver),
    )
    (text,) = library_rules.violations(runtime, "libcudart.so.13")
    assert "libcuda.so.1" in text
    assert library_rules.violations(runtime, "libcudart.so.13", ["libcuda.so.1"]) == []


def test_a_forwarding_library_exports_what_nvidias_does(compile_c: Compile) -> None:
    source = "int curandCreateGenerator(void){return 0;} int curandOfOurs(void){return 0;}"
    soname = "-Wl,-soname,libcurand.so.10"
    library = compile_c("libcurand.so.10", source, "-shared", "-fPIC", soname)
    (text,) = library_rules.violations(library, "libcurand.so.10")
    assert "curandOfOurs" in text
    assert "curandCreateGenerator" not in text


def test_a_library_without_a_rule_is_caught(compile_c: Compile) -> None:
    library = compile_c("l.so", "int f(void){return 1;}", "-shared", "-fPIC")
    assert any("unknown" in text for text in library_rules.violations(library, "libnew.so"))
