# SPDX-License-Identifier: Apache-2.0
"""Under `sluice run` our libraries win, however a program asks for them; nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.guest_runtime.check import findings
from sluice.guest_runtime.client_settings import ALL
from sluice.guest_runtime.findings import Verdict
from sluice.guest_runtime.installation import Installation
from sluice.guest_runtime.run import COMMANDS, CannotRun, environment_for

from .conftest import CHECKOUT, Compile, compile_hook

WHICH = 'const char* which(void){{ return "{}"; }}'
ASKS = "#include <stdio.h>\nextern const char* which(void); int main(){ puts(which()); }"
OPENS = """
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char** v){
  void* l = dlopen(v[1], RTLD_NOW);
  if(!l){ puts(dlerror()); return 1; }
  puts(((const char*(*)(void))dlsym(l, "which"))());
}
"""


class Setting:
    """A program with a CUDA runtime of its own, and ours in a bundle's lib folder."""

    def __init__(self, compile_c: Compile) -> None:
        shared = ("-shared", "-fPIC")
        self.theirs = compile_c(
            "theirs/libcuda.so.1", WHICH.format("theirs"), *shared, "-Wl,-soname,libcuda.so.1"
        )
        self.ours = compile_c(
            "lib/libcuda.so.1", WHICH.format("ours"), *shared, "-Wl,-soname,libcuda.so.1"
        )
        self.lib = self.ours.parent
        self.program = compile_c(
            "linked",
            ASKS,
            str(self.theirs),
            f"-Wl,-rpath,{self.theirs.parent}",
            "-Wl,--disable-new-dtags",
        )
        self.opener = compile_c("opener", OPENS, "-ldl")
        self.audit = compile_hook(self.lib)

    def run(self, *command: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sluice.guest_runtime", "run", *command],
            env={
                **os.environ,
                "PYTHONPATH": str(CHECKOUT / "python"),
                "SLUICE_LIBRARIES": str(self.lib),
                **variables,
            },
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture
def setting(compile_c: Compile) -> Setting:
    return Setting(compile_c)


def test_without_us_the_program_takes_its_own(setting: Setting) -> None:
    done = subprocess.run([setting.program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "theirs"


def test_a_library_found_by_rpath_is_replaced(setting: Setting) -> None:
    assert setting.run(str(setting.program)) == "ours"


def test_a_library_opened_by_its_path_is_replaced(setting: Setting) -> None:
    assert setting.run(str(setting.opener), str(setting.theirs)) == "ours"


def test_a_library_opened_by_its_name_is_replaced(setting: Setting) -> None:
    assert setting.run(str(setting.opener), "libcuda.so.1") == "ours"


def test_python_that_opens_it_by_its_path_is_served(setting: Setting) -> None:
    code = (
        "import ctypes; l = ctypes.CDLL(%r); l.which.restype = ctypes.c_char_p; "
        "print(l.which().decode())"
    )
    assert setting.run(sys.executable, "-c", code % str(setting.theirs)) == "ours"


def test_children_of_the_program_are_served_too(setting: Setting) -> None:
    assert setting.run("/bin/sh", "-c", f"{setting.program}; true") == "ours"


def test_other_libraries_are_left_alone(setting: Setting, compile_c: Compile) -> None:
    other = compile_c("theirs/libother.so.1", WHICH.format("other"), "-shared", "-fPIC")
    assert setting.run(str(setting.opener), str(other)) == "other"


def test_the_launcher_without_python_does_the_same(setting: Setting) -> None:
    folder = setting.lib.parent / "bin"
    folder.mkdir()
    launcher = folder / "sluice-run"
    shutil.copy(CHECKOUT / "packaging/guest/sluice-run", launcher)
    link = setting.lib.parent / "elsewhere"
    link.symlink_to(launcher)
    for path in (launcher, link):
        done = subprocess.run([path, setting.program], check=True, capture_output=True, text=True)
        assert done.stdout.strip() == "ours"


def test_nothing_else_of_the_environment_changes(setting: Setting) -> None:
    shown = json.loads(
        setting.run(
            sys.executable,
            "-c",
            "import os, json; print(json.dumps(dict(os.environ)))",
            LD_LIBRARY_PATH="/a::/b",
            CUDA_VISIBLE_DEVICES="1",
        )
    )
    assert shown.pop("LD_AUDIT") == str(setting.audit)
    assert shown.pop("LD_LIBRARY_PATH") == f"{setting.lib}:/a:/b"
    assert shown.pop("TRITON_LIBCUDA_PATH") == str(setting.lib)
    assert shown["CUDA_VISIBLE_DEVICES"] == "1"
    changed = {name for name in shown if shown[name] != os.environ.get(name)}
    if "PATH" in changed:  # no machine for these tests has to have one
        assert shown["PATH"] == f"{os.environ['PATH']}:{COMMANDS}"
        assert shutil.which("nvidia-smi") is None
        changed.discard("PATH")
    assert changed <= {"SLUICE_LIBRARIES", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "LC_CTYPE"}


def test_programs_that_ask_nvidia_smi_find_one(setting: Setting, tmp_path: Path) -> None:
    """On a machine without; where there is one it stays the first."""
    found = Installation(setting.lib, setting.audit, setting.ours, None, None)
    assert environment_for(found, {"PATH": str(tmp_path)})["PATH"] == f"{tmp_path}:{COMMANDS}"
    own = tmp_path / "nvidia-smi"
    own.touch(mode=0o755)
    assert environment_for(found, {"PATH": str(tmp_path)})["PATH"] == str(tmp_path)
    own.unlink()
    system = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    if shutil.which("nvidia-smi", path=system):
        pytest.skip("this machine has an nvidia-smi")
    said = setting.run("nvidia-smi", "--help", PATH=system)
    assert "Sluice" in said.splitlines()[0], said


def test_running_it_within_itself_adds_nothing(setting: Setting) -> None:
    found = Installation(setting.lib, setting.audit, setting.ours, None, None)
    once = environment_for(found, {"PATH": "/none"})
    assert environment_for(found, once) == once


def test_a_user_who_told_triton_himself_is_left_alone(setting: Setting) -> None:
    code = "import os; print(os.environ['TRITON_LIBCUDA_PATH'])"
    assert setting.run(sys.executable, "-c", code, TRITON_LIBCUDA_PATH="/own") == "/own"


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_it_tells_its_options_and_what_check_is(setting: Setting, word: str) -> None:
    def said(*words: str) -> str:
        command = [sys.executable, "-m", "sluice.guest_runtime", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    told = said("run", word)
    for option in (each.option for each in ALL if each.option):
        assert f"\n  {option}" in told
    assert "--gmem MIB" in told
    assert max(map(len, told.splitlines())) <= 100
    assert said("check", word) == said("help")
    code = "import sys; print(sys.argv[1])"
    assert setting.run(sys.executable, "-c", code, word) == word, "the program's own"


def test_without_an_installation_it_says_what_to_do() -> None:
    with pytest.raises(CannotRun, match=r"install\.sh"):
        environment_for(Installation(None, None, None, None, None), {})


def test_a_program_that_is_not_there_ends_like_a_shell(setting: Setting) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluice.guest_runtime", "run", "/no/such/program"],
        env={
            **os.environ,
            "PYTHONPATH": str(CHECKOUT / "python"),
            "SLUICE_LIBRARIES": str(setting.lib),
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "no such program" in done.stderr) == (127, True)


def test_check_is_bad_as_long_as_something_is_missing(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LIBRARIES", str(setting.lib))
    monkeypatch.setenv("SLUICE_GMEM", "lots")
    texts = [f"{f.text} {f.remedy}" for f in findings() if f.verdict is Verdict.BAD]
    assert any("libcudart.so.13 is missing" in text for text in texts)
    assert any("sluice-watch" in text for text in texts)
    assert any("SLUICE_GMEM" in text for text in texts)


def test_the_guests_python_may_be_3_9() -> None:
    import ast

    files = sorted((CHECKOUT / "guest_runtime").glob("*.py"))
    assert len(files) > 5
    for path in [*files, Path(CHECKOUT / "packaging/guest/sluice")]:
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else []
                    if node.level
                    else [node.module or ""]
                )
                for name in names:
                    top = name.split(".")[0]
                    assert top in sys.stdlib_module_names | {"sluice_guest"}, f"{path}: {name}"


def test_an_installed_package_finds_its_own_libraries(tmp_path: Path) -> None:
    # The wheel puts programs and libraries into one folder, sluice/native.
    package = tmp_path / "sluice" / "guest_runtime"
    shutil.copytree(CHECKOUT / "guest_runtime", package)
    native = tmp_path / "sluice" / "native"
    native.mkdir()
    for name in ("libcuda.so.1", "libcudart.so.13", "libsluice-audit.so"):
        (native / name).write_bytes(b"")
    show = "from sluice.guest_runtime.installation import find_installation as f; print(f().folder)"
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(native)
