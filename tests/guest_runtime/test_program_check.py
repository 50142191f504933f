# SPDX-License-Identifier: Apache-2.0
"""A program that would miss Sluice is told why, and one that would not is let through."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sluice.guest_runtime.findings import Finding, Verdict
from sluice.guest_runtime.program_check import check_program

from .conftest import CHECKOUT, Compile

USES = "extern int cudaMalloc(void**, unsigned long); int main(){ return cudaMalloc(0, 0); }"
RUNTIME = "int cudaMalloc(void** p, unsigned long n){ return 0; }"
STATIC_RUNTIME = CHECKOUT / "build/cuda13/nvidia/cu13/lib/libcudart_static.a"


INSIDE = "void __cudaRegisterFatBinary(void){} int work(void){__cudaRegisterFatBinary();}"


def runtime(compile_c: Compile, name: str = "libcudart.so.13") -> Path:
    return compile_c(name, RUNTIME, "-shared", "-fPIC", f"-Wl,-soname,{Path(name).name}")


def bad_ones(findings: list[Finding]) -> list[str]:
    return [f.text + " -> " + f.remedy for f in findings if f.verdict is Verdict.BAD]


def test_a_program_with_the_shared_runtime_works(compile_c: Compile) -> None:
    program = compile_c("program", USES, str(runtime(compile_c)))
    findings = check_program(str(program))
    assert bad_ones(findings) == []
    assert "libcudart.so.13" in findings[0].text


def test_a_program_with_the_runtime_inside_is_told_to_relink(compile_c: Compile) -> None:
    inside = "void __cudaRegisterFatBinary(void){} int main(){__cudaRegisterFatBinary();}"
    (text,) = bad_ones(check_program(str(compile_c("program", inside))))
    assert "libcudart_static" in text
    assert "-cudart shared" in text


@pytest.mark.skipif(not STATIC_RUNTIME.exists(), reason="no CUDA 13 runtime unpacked in build/")
@pytest.mark.parametrize("stripped", [False, True])
def test_the_real_static_runtime_is_seen_also_when_stripped(
    compile_c: Compile, stripped: bool
) -> None:
    program = compile_c(
        "program", USES, str(STATIC_RUNTIME), "-lpthread", "-ldl", "-lrt", "-lstdc++", "-lm"
    )
    if stripped:
        subprocess.run(["strip", str(program)], check=True)
    (text,) = bad_ones(check_program(str(program)))
    assert "libcudart_static" in text


def test_another_major_version_is_named(compile_c: Compile) -> None:
    program = compile_c("program", USES, str(runtime(compile_c, "libcudart.so.11.0")))
    (text,) = bad_ones(check_program(str(program)))
    assert "libcudart.so.11.0" in text
    assert "libcudart.so.13" in text


def test_a_program_for_cuda_12_is_served_and_says_so(compile_c: Compile) -> None:
    program = compile_c("program", USES, str(runtime(compile_c, "libcudart.so.12")))
    findings = check_program(str(program))
    assert bad_ones(findings) == []
    assert any("libcudart.so.12: these are replaced, for CUDA 12" in f.text for f in findings)


def test_a_program_with_two_versions_in_it_is_refused(compile_c: Compile) -> None:
    older, newer = runtime(compile_c, "libcudart.so.12"), runtime(compile_c, "libcublas.so.13")
    program = compile_c("program", USES, "-Wl,--no-as-needed", str(older), str(newer))
    (text,) = bad_ones(check_program(str(program)))
    assert "mixes libraries of several CUDA versions" in text
    assert "CUDA 12" in text
    assert "CUDA 13" in text


def test_a_static_program_is_refused(compile_c: Compile) -> None:
    program = compile_c("program", "int main(){return 0;}", "-static")
    assert "statically" in bad_ones(check_program(str(program)))[0]


def test_an_rpath_with_a_runtime_of_its_own_is_noted(compile_c: Compile) -> None:
    library = runtime(compile_c, "own/libcudart.so.13")
    program = compile_c("program", USES, str(library), "-Wl,-rpath,$ORIGIN/own")
    findings = check_program(str(program))
    assert bad_ones(findings) == []
    assert any("sluice run" in f.remedy for f in findings)


def test_a_script_is_followed_to_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/usr/bin/env -S bash -e\ntrue\n")
    script.chmod(0o755)
    findings = check_program(str(script))
    assert bad_ones(findings) == []
    assert "is a script, run by" in findings[0].text
    assert "bash" in findings[0].text


def test_a_program_that_is_not_there() -> None:
    assert "no such program" in bad_ones(check_program("/nowhere/at-all"))[0]


def test_a_library_of_the_programs_own_with_the_runtime_inside_is_named(
    compile_c: Compile,
) -> None:
    deep = compile_c("lib/libdeep.so", INSIDE, "-shared", "-fPIC", "-Wl,-soname,libdeep.so")
    near = compile_c(
        "lib/libnear.so",
        "int work(void); int near_work(void){return work();}",
        *("-shared", "-fPIC", "-Wl,-soname,libnear.so", "-Wl,-rpath,$ORIGIN", str(deep)),
    )
    program = compile_c(
        "program",
        "int near_work(void); int main(){return near_work();}",
        *(str(near), "-Wl,-rpath,$ORIGIN/lib", "-Wl,--allow-shlib-undefined"),
    )
    (text,) = bad_ones(check_program(str(program)))
    assert str(deep) in text
    assert "libcudart_static" in text
    assert "-cudart shared" in text


def test_a_library_of_nvidias_that_ours_does_not_stand_for_is_looked_at(
    compile_c: Compile,
) -> None:
    """It is an ordinary user of CUDA: what it carries inside decides."""
    theirs = compile_c(
        "lib/libnppig.so.13", INSIDE, "-shared", "-fPIC", "-Wl,-soname,libnppig.so.13"
    )
    uses = "int work(void); int main(){return work();}"
    far = check_program(str(compile_c("far", uses, str(theirs))))
    assert bad_ones(far) == []
    assert any("libnppig.so.13" in f.text and "not found here" in f.text for f in far)
    near = check_program(str(compile_c("near", uses, str(theirs), "-Wl,-rpath,$ORIGIN/lib")))
    (text,) = bad_ones(near)
    assert f"{theirs} carries the CUDA runtime inside" in text
    assert not any("not found here" in f.text for f in near)


def test_a_library_can_be_looked_at_and_a_file_that_may_not_be_run_is_said(
    compile_c: Compile, tmp_path: Path
) -> None:
    says = 'int puts(const char*); int say(void){return puts("");}'
    library = compile_c("libdeep.so", INSIDE + says, "-shared", "-fPIC")
    library.chmod(0o644)
    (text,) = bad_ones(check_program(str(library)))
    assert "carries the CUDA runtime inside" in text
    script = tmp_path / "train"
    script.write_text("#!/bin/sh\n")
    (found,) = check_program(str(script))
    assert (found.text, found.remedy) == (f"{script} may not be run", f"chmod +x {script}")


def test_a_compiler_of_nvidias_is_no_matter(compile_c: Compile) -> None:
    nvrtc = compile_c(
        "libnvrtc.so.13", "int f(void){return 0;}", "-shared", "-fPIC", "-Wl,-soname,libnvrtc.so.13"
    )
    program = compile_c("program", "int f(void); int main(){return f();}", str(nvrtc))
    assert all("libnvrtc" not in finding.text for finding in check_program(str(program)))


def test_a_program_for_musl_is_told_so(compile_c: Compile) -> None:
    program = compile_c(
        "program", "int main(){return 0;}", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"
    )
    (text,) = bad_ones(check_program(str(program)))
    assert "musl" in text
    assert "glibc" in text


def test_a_setuid_program_is_told_so(compile_c: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_c("program", "int main(){return 0;}")
    program.chmod(0o4755)
    assert bad_ones(check_program(str(program))) == [], "its owner stays who he is"
    monkeypatch.setattr(os, "geteuid", lambda: program.stat().st_uid + 1)
    (text,) = bad_ones(check_program(str(program)))
    assert "setuid" in text
    assert "LD_AUDIT" in text
