# SPDX-License-Identifier: Apache-2.0
"""Importing NVIDIA's headers gives the committed files, and a difference is shown as one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from registry import load_registry

ROOT = Path(__file__).resolve().parents[2]
IMPORTER = ROOT / "native" / "codegen" / "import_headers.py"
COMMITTED = ROOT / "native" / "api" / "imported" / "cuda13"


@pytest.fixture(scope="session")
def headers(cuda_root: Path) -> Path:
    pytest.importorskip("clang.cindex", reason="the libclang wheel is not installed")
    include = cuda_root / "include"
    text = (include / "cuda.h").read_text(errors="replace")
    version = re.search(r"#define CUDA_VERSION (\d+)", text)
    imported = json.loads((COMMITTED / "source.json").read_text())["cuda_version"]
    if not version or int(version[1]) != imported:
        pytest.skip(f"the headers at hand are not those of CUDA {imported}, which were imported")
    for name, wheel in (
        ("cudaProfiler.h", "nvidia-cuda-profiler-api"),
        ("cuda_profiler_api.h", "nvidia-cuda-profiler-api"),
        ("nvml.h", "nvidia-nvml-dev"),
    ):
        if not (include / name).exists():
            pytest.skip(f"{name} is missing (it comes with {wheel})")
    return include


def importer(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(IMPORTER), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_import_gives_the_committed_files_byte_by_byte(headers: Path, tmp_path: Path) -> None:
    done = importer("--include", str(headers), "--out", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    others = {"cupti_calls.json"}  # import_cupti.py makes it, of another package's headers
    names = sorted({p.name for p in COMMITTED.iterdir()} - others)
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == names
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (COMMITTED / name).read_bytes(), name


def test_diff_shows_what_a_new_version_costs(headers: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(COMMITTED, older)
    path = older / "driver_functions.json"
    rows = [r for r in json.loads(path.read_text()) if r["name"] != "cuMemAlloc_v2"]
    rows.append({**rows[0], "name": "cuGoneForGood"})
    next(r for r in rows if r["name"] == "cuInit")["params"][0][1] = "int"
    path.write_text(json.dumps(rows))
    done = importer("--include", str(headers), "--diff", str(older))
    assert done.returncode == 0, done.stderr
    assert re.search(r"added +driver functions: cuMemAlloc_v2", done.stdout)
    assert re.search(r"removed +driver functions: cuGoneForGood", done.stdout)
    assert re.search(r"changed +driver functions: cuInit", done.stdout)
    assert "3 differences" in done.stdout


def test_missing_headers_are_named(tmp_path: Path) -> None:
    pytest.importorskip("clang.cindex", reason="the libclang wheel is not installed")
    done = importer("--include", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "cuda.h" in done.stderr


def answers(symbol: str, version: int, per_thread: bool) -> str | None:
    """Answer as cuGetProcAddress must, from the imported table."""
    rows = [r for r in load_registry().driver.proc_address if r.symbol == symbol]
    own = [r for r in rows if r.stream]
    chosen = own if per_thread and own else [r for r in rows if not r.stream]
    fitting = [r for r in chosen if r.version <= version]
    return max(fitting, key=lambda r: r.version).exported if fitting else None


@pytest.mark.parametrize(
    ("symbol", "version", "per_thread", "exported"),
    [
        ("cuMemAlloc", 2000, False, "cuMemAlloc"),
        ("cuMemAlloc", 3010, False, "cuMemAlloc"),
        ("cuMemAlloc", 3020, False, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, True, "cuMemAlloc_v2"),
        ("cuMemcpyHtoD", 13000, True, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 13000, False, "cuMemcpyHtoD_v2"),
        ("cuStreamBeginCapture", 10000, False, "cuStreamBeginCapture"),
        ("cuStreamBeginCapture", 10010, True, "cuStreamBeginCapture_v2_ptsz"),
        ("cuCtxCreate", 12050, False, "cuCtxCreate_v4"),
        ("cuCtxCreate", 11040, False, "cuCtxCreate_v3"),
        ("cuGraphInstantiate", 10000, False, "cuGraphInstantiate"),
        ("cuGraphInstantiate", 11000, False, "cuGraphInstantiate_v2"),
        ("cuGetProcAddress", 11030, False, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, False, "cuGetProcAddress_v2"),
        ("cuMemCreate", 10000, False, None),
    ],
)
def test_entry_points_by_version(
    symbol: str, version: int, per_thread: bool, exported: str | None
) -> None:
    assert answers(symbol, version, per_thread) == exported


def test_every_current_function_can_be_asked_for() -> None:
    driver = load_registry().driver
    reachable = {row.exported for row in driver.proc_address}
    missing = {n for n, f in driver.functions.items() if f.current and n not in reachable}
    assert missing == set()
