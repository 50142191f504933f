# SPDX-License-Identifier: Apache-2.0
"""`sluice check python …` looks into the packages that the command imports, and runs nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sluice.guest_runtime.findings import Verdict
from sluice.guest_runtime.program_check import check_program
from sluice.guest_runtime.python_check import imported

from .conftest import Compile

INSIDE = "void __cudaRegisterFatBinary(void){} int work(void){__cudaRegisterFatBinary();}"


@pytest.fixture
def packages(tmp_path: Path, compile_c: Compile, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages on the interpreter's path: one links the runtime, one holds it, one is plain."""
    for name in ("linked", "holding", "plain"):
        (tmp_path / "site" / name).mkdir(parents=True)
        trap = f"raise SystemExit('{name} was imported')"
        (tmp_path / "site" / name / "__init__.py").write_text(trap)
    soname = "-Wl,-soname,libcudart.so.11.0"
    runtime = compile_c("libcudart.so.11.0", "int f(void){return 0;}", "-shared", "-fPIC", soname)
    uses = "int f(void); int g(void){return f();}"
    compile_c("site/linked/_native.cpython.so", uses, "-shared", "-fPIC", str(runtime))
    compile_c("site/holding/deep/_core.so", INSIDE, "-shared", "-fPIC")
    compile_c("site/plain/_fast.so", "int f(void){return 0;}", "-shared", "-fPIC")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path / "site"


def texts(*arguments: str) -> list[str]:
    found = check_program(sys.executable, arguments)
    return [f.text for f in found if f.subject == "packages"]


def test_another_version_and_a_runtime_inside_are_found(packages: Path) -> None:
    found = check_program(sys.executable, ("-c", "import linked.sub, os\nfrom holding import x"))
    bad = [f"{f.text} -> {f.remedy}" for f in found if f.verdict is Verdict.BAD]
    assert len(bad) == 2
    assert str(packages / "holding/deep/_core.so") in bad[0]
    assert "libcudart_static" in bad[0]
    assert "libcudart.so.11.0" in bad[1]
    assert str(packages / "linked/_native.cpython.so") in bad[1]


def test_packages_for_different_versions_of_cuda_are_named(
    packages: Path, compile_c: Compile
) -> None:
    for name in ("libcudart.so.12", "libcublas.so.13"):
        shared = ("-shared", "-fPIC")
        soname = f"-Wl,-soname,{name}"
        library = compile_c(name, "int f(void){return 0;}", *shared, soname)
        package = f"for_{name[-2:]}"
        uses = "int f(void); int g(void){return f();}"
        compile_c(f"site/{package}/_native.so", uses, *shared, str(library))
        (packages / package / "__init__.py").touch()
    (text,) = (t for t in texts("-c", "import for_12, for_13") if "mixes" in t)
    assert f"{packages / 'for_12/_native.so'} needs CUDA 12's" in text
    assert f"{packages / 'for_13/_native.so'} needs CUDA 13's" in text
    assert not [t for t in texts("-c", "import for_13, plain") if "mixes" in t]


def test_a_package_may_have_files_for_several_versions_of_cuda(
    packages: Path, compile_c: Compile
) -> None:
    """It loads one of them, as the rest of the program has it: that is none's fault."""
    uses = "int f(void); int g(void){return f();}"
    for name in ("libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"):
        shared = ("-shared", "-fPIC")
        runtime = compile_c(name, "int f(void){return 0;}", *shared, f"-Wl,-soname,{name}")
        compile_c(f"site/many/libmany_{name[13:15]}.so", uses, *shared, str(runtime))
    (packages / "many" / "__init__.py").touch()
    found = check_program(sys.executable, ("-c", "import many"))
    assert not [f for f in found if f.verdict is Verdict.BAD and f.subject == "packages"]
    (text,) = (f.text for f in found if "chooses itself" in f.text)
    assert "many has files for CUDA 12 and 13" in text
    assert text.endswith("not served here: libmany_11.so needs libcudart.so.11.0")


def test_of_a_namespace_what_is_imported_and_of_nvidias_what_ours_is_not(
    packages: Path, compile_c: Compile
) -> None:
    """`nvidia` holds many packages, and libraries that ours stand for."""
    holding = compile_c("site/space/tool/_core.so", INSIDE, "-shared", "-fPIC")
    compile_c("site/space/other/_core.so", INSIDE, "-shared", "-fPIC")
    compile_c("site/space/tool/libcublas.so.13", INSIDE, "-shared", "-fPIC")
    (packages / "space/tool/__init__.py").touch()
    for code in ("import space.tool", "from space import tool", "import space.tool.deep"):
        (text,) = texts("-c", code)
        assert f"{holding} carries the CUDA runtime inside" in text, code


def test_a_package_without_cuda_and_one_that_is_missing_say_nothing(packages: Path) -> None:
    assert texts("-c", "import plain, not_there_at_all, json") == []


def test_a_script_and_a_module_are_followed(packages: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def main():\n    import holding\n")
    assert "_core.so" in texts("-u", "-W", "ignore", str(script), "--epochs", "3")[0]
    assert "_core.so" in texts("-m", "holding.cli")[0]


def test_a_script_with_python_in_its_first_line_is_followed(packages: Path, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text(f"#!{sys.executable}\nimport holding\n")
    script.chmod(0o755)
    assert any("_core.so" in finding.text for finding in check_program(str(script)))


def test_code_that_cannot_be_parsed_is_said(packages: Path) -> None:
    (text,) = texts("-c", "print 'old'")
    assert "cannot be parsed" in text


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], []),
        (["-c", "import a.b as c, d; from e.f import g; from . import h"], ["a.b", "d", "e.f.g"]),
        (["-cimport a"], ["a"]),
        (["-I", "-X", "dev", "-m", "a.b", "x.py"], ["a.b"]),
        (["-V"], []),
    ],
)
def test_what_a_command_imports(words: list[str], names: list[str]) -> None:
    assert imported(words) == (names, "")
