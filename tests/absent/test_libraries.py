# SPDX-License-Identifier: Apache-2.0
"""A library that is not available loads, answers its own refusal, and says so once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = yaml.safe_load((ROOT / "native/api/absent.yaml").read_text())
#: A function of each as a program would meet it first, and what it gets.
FIRST = {
    "libcupti.so.13": ("cuptiEnableKernelReplayMode", 27),
    "libcupti.so.12": ("cuptiEnableKernelReplayMode", 27),
    "libcufile.so.0": ("cuFileDriverOpen", 5001),
    "libcusparseLt.so.0": ("cusparseLtInit", 10),
    "libnvshmem_host.so.3": ("nvshmemx_hostlib_init_attr", 3),
}


def run(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    return subprocess.run(
        [sys.executable, "-c", f"import ctypes\n{code}"],
        env={**variables, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("soname", FIRST)
def test_the_first_call_is_refused_and_told_and_no_other_is(soname: str, tmp_path: Path) -> None:
    function, answer = FIRST[soname]
    code = f"l = ctypes.CDLL({str(find_native(soname))!r})\n"
    done = run(code + f"print(l.{function}(None, None), l.{function}(None, None))", tmp_path)
    assert done.stdout.split() == [str(answer), str(answer)]
    (line,) = done.stderr.splitlines()
    assert line.startswith("sluice: ")
    for word in (function, soname, LIBRARIES[soname]["status"], LIBRARIES[soname]["meaning"]):
        assert word in line
    (log,) = (tmp_path / ".sluice/log").iterdir()
    assert log.read_text().splitlines() == [line]


@pytest.mark.parametrize("soname", FIRST)
def test_loading_alone_says_nothing_and_needs_no_other_library(soname: str, tmp_path: Path) -> None:
    path = find_native(soname)
    assert run(f"ctypes.CDLL({str(path)!r})", tmp_path).stderr == ""
    assert not (tmp_path / ".sluice").exists()
    shown = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED\).*\[(.+)\]", shown.stdout))
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    assert f"soname: [{soname}]" in shown.stdout


@pytest.mark.parametrize("soname", FIRST)
def test_it_exports_the_listed_names_under_their_version(soname: str) -> None:
    listed = json.loads((ROOT / f"native/api/absent/{soname}.json").read_text())
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", find_native(soname)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    version = f"@@{listed['node']}" if listed["node"] else ""
    exported = {words[2] for words in map(str.split, shown.splitlines()) if words[1] == "T"}
    assert exported == {name + version for name, _ in listed["functions"]}


def test_a_screen_that_is_off_stays_empty(tmp_path: Path) -> None:
    (tmp_path / ".sluice").mkdir()
    (tmp_path / ".sluice/client.conf").write_text("[log]\nlog_to_screen = false\n")
    code = f"ctypes.CDLL({str(find_native('libcupti.so.13'))!r}).cuptiEnableKernelReplayMode(None)"
    assert run(code, tmp_path).stderr == ""
    (log,) = (tmp_path / ".sluice/log").iterdir()
    assert "cuptiEnableKernelReplayMode" in log.read_text()


def test_answers_that_are_no_status(tmp_path: Path) -> None:
    cupti, cufile, cusparse, nvshmem = (
        str(find_native(name)) for name in FIRST if name != "libcupti.so.12"
    )
    done = run(
        f"""
cupti, cufile = ctypes.CDLL({cupti!r}), ctypes.CDLL({cufile!r})
sparse, shmem = ctypes.CDLL({cusparse!r}), ctypes.CDLL({nvshmem!r})
text = ctypes.c_char_p()
assert cupti.cuptiGetResultString(15, ctypes.byref(text)) == 0
assert text.value == b"CUPTI_ERROR_NOT_INITIALIZED"
assert cupti.cuptiGetResultString(-5, ctypes.byref(text)) == 1
version = ctypes.c_uint()
assert cupti.cuptiGetVersion(ctypes.byref(version)) == 0 and version.value == 130001
cufile.cuFileRead.restype = ctypes.c_ssize_t
assert cufile.cuFileRead(None, None, 0, 0, 0) == -5001
assert cufile.cuFileUseCount() == 0
sparse.cusparseLtGetErrorName.restype = ctypes.c_char_p
assert sparse.cusparseLtGetErrorName(10) == b"CUSPARSE_STATUS_NOT_SUPPORTED"
sparse.cusparseLtGetErrorString.restype = ctypes.c_char_p
assert b"Sluice" in sparse.cusparseLtGetErrorString(10)
shmem.nvshmem_malloc.restype = ctypes.c_void_p
assert shmem.nvshmem_malloc(64) is None
assert (shmem.nvshmem_my_pe(), shmem.nvshmemx_init_status()) == (-1, 0)
shmem.nvshmem_double_g.restype = ctypes.c_double
assert shmem.nvshmem_double_g(None, 0) == 0.0
name = ctypes.create_string_buffer(256)
shmem.nvshmem_info_get_name(name)
assert b"not available" in name.value
print("all")
""",
        tmp_path,
    )
    assert done.stdout.strip() == "all", done.stderr
