# SPDX-License-Identifier: Apache-2.0
"""Function ids are append-only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from imported import RegistryError
from registry import load_ids, load_registry, missing_ids

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "native" / "codegen" / "generate_abi.py"
TWO = "functions:\n  cuFuncLoad: {class: answered}\n  cuProfilerStart: {class: answered}\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATOR), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_function_without_an_id_stops_the_build(
    spoiled: Callable[[str], Path], tmp_path: Path
) -> None:
    done = run("--api", str(spoiled(TWO)), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "cuFuncLoad, cuProfilerStart" in done.stderr
    assert "--update-ids" in done.stderr
    assert not (tmp_path / "out").exists()


def test_update_appends_and_leaves_what_is_there(spoiled: Callable[[str], Path]) -> None:
    api = spoiled(TWO)
    (api / "ids.lock").write_text("64 cuSomethingOld retired\n65 cuProfilerStart\n")
    assert run("--api", str(api), "--update-ids").returncode == 0
    expected = "64 cuSomethingOld retired\n65 cuProfilerStart\n66 cuFuncLoad\n"
    assert (api / "ids.lock").read_text() == expected
    assert load_registry(api).functions["cuFuncLoad"].id == 66
    assert run("--api", str(api), "--update-ids").returncode == 0
    assert (api / "ids.lock").read_text() == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("64 cuA\n66 cuB\n", "ids.lock:2: id 66 where 65 must stand"),
        ("64 cuA\n64 cuB\n", "ids.lock:2: id 64 where 65 must stand"),
        ("65 cuA\n", "ids.lock:1: id 65 where 64 must stand"),
        ("64 cuA\n65 cuA\n", "ids.lock:2: cuA has an id already"),
        ("64\n", "ids.lock:1"),
        ("64 cuA dead\n", "ids.lock:1"),
    ],
)
def test_changed_reused_or_removed_ids_are_refused(
    text: str, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "ids.lock"
    path.write_text(text)
    with pytest.raises(RegistryError) as caught:
        load_ids(path)
    assert complaint in str(caught.value)


def test_no_committed_function_lacks_an_id() -> None:
    """That released ids keep their meaning is told by tests/compatibility."""
    assert missing_ids(load_registry()) == []
