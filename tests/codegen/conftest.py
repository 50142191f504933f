# SPDX-License-Identifier: Apache-2.0
"""What the tests of the registry share: where things lie, and a registry to spoil."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODEGEN = ROOT / "native" / "codegen"
sys.path.insert(0, str(CODEGEN))


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    command = [sys.executable, str(CODEGEN / "generate_abi.py"), "--out", str(out)]
    subprocess.run(command, check=True)
    return out


@pytest.fixture(scope="session")
def cuda_root() -> Path:
    """Where the PyPI wheels of the toolkit are unpacked; SLUICE_CUDA_ROOT says otherwise."""
    default = ROOT / "build" / "cuda13" / "nvidia" / "cu13"
    root = Path(os.environ.get("SLUICE_CUDA_ROOT", default))
    if not (root / "include" / "cuda.h").exists():
        pytest.skip(f"NVIDIA's headers are not at {root} (unpack nvidia-cuda-runtime there)")
    return root


@pytest.fixture
def spoiled(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes a registry with another driver.yaml."""

    def make(driver_yaml: str) -> Path:
        api = tmp_path / "api"
        shutil.copytree(ROOT / "native" / "api", api, symlinks=True)
        (api / "driver.yaml").write_text(driver_yaml)
        (api / "ids.lock").write_text("")
        return api

    return make
