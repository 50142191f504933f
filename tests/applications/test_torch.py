# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own wheel, with NVIDIA's libraries beside it as pip installs them, on a vGPU.

Needs an environment with torch 2.11 for CUDA 13, or 2.9 for CUDA 12 (build/applications/torch, or
SLUICE_TORCH_PYTHON names its interpreter); 3 GB, so it is not installed by the tests. The software
GPU runs no machine code, so no kernel of PyTorch's runs here: tests/gpu does that.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from static_pool import StaticPool

from sluice.config.native_files import find_native
from sluice.guest_runtime.substitution import served_by

ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).with_name("torch_app.py")
PYTHON = Path(
    os.environ.get("SLUICE_TORCH_PYTHON", ROOT / "build" / "applications" / "torch/bin/python")
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason=f"PyTorch is not installed: {PYTHON} is missing (SLUICE_TORCH_PYTHON names another)",
    ),
]


def cuda_major() -> str:
    """Which CUDA version that PyTorch is for."""
    [file] = PYTHON.parent.parent.glob("lib/python3*/site-packages/torch/version.py")
    found = re.search(r"^cuda.*= '(\d+)\.", file.read_text(), re.MULTILINE)
    assert found, file
    return found[1]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StaticPool]:
    with StaticPool(tmp_path, memory_mib=1024) as started:
        yield started


def torch_part(pool: StaticPool, part: str, **variables: str) -> tuple[dict[str, Any], str]:
    """(what a part of torch_app.py found, what was written on the screen)."""
    variables = {
        "PYTHONPATH": str(ROOT / "python"),
        "SLUICE_LIBRARIES": str(find_native("libcuda.so.1").parent),
        "TRITON_CACHE_DIR": str(pool.folder / "triton"),
        "LD_LIBRARY_PATH": "",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-m", "sluice.guest_runtime", "run", str(PYTHON), str(APP), part],
        env=pool.environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_it_sees_the_vgpu_and_its_slice_of_memory(pool: StaticPool) -> None:
    found, screen = torch_part(pool, "device")
    assert found["available"] is True
    assert (found["count"], found["cuda_count"]) == (1, 1)
    assert found["name"] == "Sluice software GPU (CPU)"
    assert found["total"] == [1024 << 20, 1024 << 20]
    assert found["free"] <= 1024 << 20
    assert found["kernels_for"] is True
    assert screen == ""


def test_hidden_vgpus_are_no_devices(tmp_path: Path) -> None:
    with StaticPool(tmp_path, vgpus=3) as pool:
        found, _ = torch_part(pool, "device", CUDA_VISIBLE_DEVICES="2,0")
        assert (found["available"], found["count"], found["cuda_count"]) == (True, 2, 2)
        assert torch_part(pool, "hidden", CUDA_VISIBLE_DEVICES="") == ({"available": False}, "")


def test_counting_devices_starts_nothing(pool: StaticPool) -> None:
    found, _ = torch_part(pool, "counted")
    assert found == {"count": 1, "child": 0}
    assert pool.sessions() == 1, "the child's"


@pytest.mark.parametrize("part", ["memory", "copies", "order"])
def test_what_needs_no_kernel_works(pool: StaticPool, part: str) -> None:
    found, _ = torch_part(pool, part)
    assert {name for name, right in found.items() if right is not True} == set()
    assert len(found) > 3


def test_expandable_segments_work(pool: StaticPool) -> None:
    setting = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    found, _ = torch_part(pool, "copies", **setting)
    assert {name for name, right in found.items() if right is not True} == set()


def test_each_library_of_ours_came_before_the_one_in_the_wheels(pool: StaticPool) -> None:
    found, _ = torch_part(pool, "libraries")
    ours = find_native("libcuda.so.1").parent
    served = served_by(ours)
    replaced = {name: folder for name, folder in found.items() if served.replacement(name)}
    major = cuda_major()
    wanted = {"libcuda.so.1", f"libcudart.so.{major}", f"libcupti.so.{major}"}
    assert wanted <= replaced.keys()
    # A checkout has those of CUDA 12 in a folder of their own, with links.
    assert {n: f for n, f in replaced.items() if Path(f) not in (ours, ours / "cuda12")} == {}
    assert "/nvidia/" in found[f"libnvrtc.so.{major}"], "compilers stay NVIDIA's"


def test_the_profiler_has_both_sides(pool: StaticPool) -> None:
    found, _ = torch_part(pool, "profiler")
    assert "aten::to" in found["names"]
    assert {"Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"} <= set(
        found["names"]
    )


def test_triton_links_what_it_compiles_with_our_driver(pool: StaticPool) -> None:
    found, _ = torch_part(pool, "triton")
    assert found == {"folders": [str(find_native("libcuda.so.1").parent)], "warp": 32}


def test_sluice_check_tells_what_of_it_is_served(pool: StaticPool) -> None:
    ours = find_native("libcuda.so.1").parent
    variables = {"PYTHONPATH": str(ROOT / "python"), "SLUICE_LIBRARIES": str(ours)}
    command = [sys.executable, "-m", "sluice.guest_runtime", "check"]
    done = subprocess.run(
        [*command, str(PYTHON), "-c", "import torch"],
        env=pool.environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "torch needs libc" in done.stdout
    line = next(line for line in done.stdout.splitlines() if "these are replaced" in line)
    for name in (
        *("libcuda.so.1", f"libcudart.so.{cuda_major()}"),
        *("libcufile.so.0", "libnvshmem_host.so.3"),
    ):
        assert name in line
    complaints = [x for x in done.stdout.splitlines() if x.startswith("BAD   packages")]
    if cuda_major() == "12":  # one library of that wheel has the runtime inside
        complaints = [x for x in complaints if "libtorch_nvshmem.so carries" not in x]
    assert complaints == []
