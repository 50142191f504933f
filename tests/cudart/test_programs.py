# SPDX-License-Identifier: Apache-2.0
"""Every test program on the software GPU, by our runtime: prints what it printed on an H200."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.config.native_files import NativeFileMissing, find_native

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
BUILT = PROGRAMS.parents[1] / "build" / "programs"


@dataclass(frozen=True)
class Program:
    name: str
    arguments: tuple[str, ...]
    exit: int
    seconds: float
    expected: tuple[str, ...]
    softgpu: bool
    direct: bool
    devices: int


def manifest() -> list[Program]:
    text = (PROGRAMS / "programs.yaml").read_text()
    entries: list[dict[str, Any]] = yaml.safe_load(text)["programs"]
    return [
        Program(
            name=entry["name"],
            arguments=tuple(entry.get("arguments", ())),
            exit=entry["exit"],
            seconds=entry["seconds"],
            expected=tuple((PROGRAMS / entry["expected"]).read_text().splitlines()),
            softgpu=entry.get("softgpu", True),
            direct=entry.get("direct", True),
            devices=entry.get("devices", 1),
        )
        for entry in entries
    ]


@pytest.fixture(scope="session")
def built() -> Path:
    subprocess.run([sys.executable, PROGRAMS / "build.py", "--out", BUILT], check=True)
    return BUILT


@pytest.fixture(scope="session")
def libraries(cudart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the software GPU as libcuda.so.1 and our runtime."""
    try:
        softgpu = find_native("libsluice-softgpu.so.1")
    except NativeFileMissing as missing:
        pytest.fail(str(missing))
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "libcuda.so.1").symlink_to(softgpu)
    (folder / "libcudart.so.13").symlink_to(cudart)
    return folder


def comparable(output: str) -> tuple[str, ...]:
    return tuple(line for line in output.splitlines() if not line.startswith("# "))


def run(
    program: Program, built: Path, libraries: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [built / program.name, *program.arguments],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "SLUICE_SOFTGPU_COUNT": str(program.devices),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=program.seconds,
        check=False,
    )


@pytest.mark.parametrize("program", manifest(), ids=lambda program: program.name)
def test_prints_what_it_printed_natively(program: Program, built: Path, libraries: Path) -> None:
    if not program.softgpu:
        pytest.skip("the software GPU does not have this")
    if not program.direct:
        pytest.skip("Sluice's client has this, whose tests are in tests/forwarded")
    result = run(program, built, libraries)
    assert comparable(result.stdout) == program.expected, result.stderr
    assert result.returncode == program.exit, result.stderr


def test_every_program_is_in_the_manifest() -> None:
    sources = {source.stem for source in PROGRAMS.glob("*.cu")}
    assert {program.name for program in manifest()} == sources


def test_programs_need_the_libraries_by_name_only(built: Path) -> None:
    for program in manifest():
        dynamic = subprocess.run(
            ["readelf", "-d", built / program.name], capture_output=True, text=True, check=True
        ).stdout
        assert "[libcudart.so.13]" in dynamic, program.name
        assert "RPATH" not in dynamic, program.name
        assert "RUNPATH" not in dynamic, program.name


def test_a_wrong_sum_is_noticed(built: Path, libraries: Path) -> None:
    add = next(program for program in manifest() if program.name == "vector_add")
    code = (built / add.name).read_bytes()
    assert code.count(b"add.f32") == 1
    spoilt = libraries / add.name
    spoilt.write_bytes(code.replace(b"add.f32", b"sub.f32"))
    spoilt.chmod(0o755)
    result = run(add, libraries, libraries)
    assert result.returncode == 1
    assert comparable(result.stdout) != add.expected
