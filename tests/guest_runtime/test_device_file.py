# SPDX-License-Identifier: Apache-2.0
"""Programs that look for a file of NVIDIA's driver before they ask CUDA find one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sluice.guest_runtime.device_file import FILES, HOOKS, check_device_file, search_path
from sluice.guest_runtime.findings import Verdict

#: As JAX has it (jax/_src/xla_bridge.py, hardware_utils.py), and nothing else of it.
JAX = """
import importlib, os, pkgutil, jax_plugins
from jax._src import hardware_utils
for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__, "jax_plugins."):
    importlib.import_module(name).initialize()
print(any(os.path.exists(each) for each in hardware_utils._NVIDIA_GPU_DEVICES))
"""


def test_what_is_there_is_said_and_what_is_not(tmp_path: Path) -> None:
    there, missing = tmp_path / "nvidiactl", str(tmp_path / "nvidia0")
    found = check_device_file([missing, str(there)])
    assert found.verdict is Verdict.NOTE
    assert "ln -s null /dev/nvidiactl" in found.remedy
    there.symlink_to(os.devnull)
    found = check_device_file([missing, str(there)])
    assert found.verdict is Verdict.OK
    assert str(there) in found.text


def test_a_search_path_is_added_to_and_only_where_there_is_no_file(tmp_path: Path) -> None:
    missing = [str(tmp_path / "nvidiactl")]
    assert search_path(None, missing) == str(HOOKS)
    assert search_path("/a:", missing) == f"/a::{HOOKS}", "the current folder stays in it"
    assert search_path(f"{HOOKS}:/a", missing) == f"{HOOKS}:/a", "once is enough"
    assert search_path("/a", [os.devnull]) == "/a"
    assert search_path(None, [os.devnull]) is None
    assert not [each for each in HOOKS.iterdir() if each.name not in ("jax_plugins", "__pycache__")]


def jax_says(tmp_path: Path, devices: str) -> str:
    """Whether it takes the machine for one with a GPU; another's plugin is beside ours."""
    for name, text in (
        ("jax/_src/hardware_utils.py", devices),
        ("jax_plugins/other.py", "def initialize(): print('other')\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {"PYTHONPATH": search_path(str(tmp_path), [str(tmp_path / "none")]) or ""}
    done = subprocess.run(
        [sys.executable, "-c", JAX], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_jax_asks_cuda_on_a_machine_without_such_files(tmp_path: Path) -> None:
    assert jax_says(tmp_path, "_NVIDIA_GPU_DEVICES = ['/none']\n") == "other\nTrue\n"


def test_a_jax_that_keeps_them_otherwise_is_left_as_it_is(tmp_path: Path) -> None:
    assert jax_says(tmp_path, "_NVIDIA_GPU_DEVICES = ('/none',)\n") == "other\nFalse\n"
    said = jax_says(tmp_path, "OTHERS = []\n")
    assert "other\n" in said
    assert "sluice" not in said


def test_the_files_are_those_that_jax_knows() -> None:
    assert FILES == ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
