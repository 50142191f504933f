# SPDX-License-Identifier: Apache-2.0
"""The bundle's libcudart_static.a: a program relinked with it runs, and `sluice check` names it.

From the real bundle, unpacked on this host; nvcc as tests/programs/build.py has it. Sessions are on
the software GPU. Skipped where nvcc or the native part is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from static_pool import StaticPool

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.guest_runtime.elf_file import read_elf
from sluice.guest_runtime.installation_check import relink_advice
from sluice.guest_runtime.modules import has_static_runtime

from .conftest import CHECKOUT

PROGRAMS = CHECKOUT / "tests/programs"
NVCC = CHECKOUT / "build/cuda13/nvidia/cu13/bin/nvcc"


def usable() -> bool:
    try:
        find_native("sluice-worker")
    except NativeFileMissing:
        return False
    return NVCC.exists()


def test_the_advice_names_the_archive_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LIBRARIES", str(tmp_path))
    (tmp_path / "libcudart_static.a").write_bytes(b"!<arch>\n")
    advice = relink_advice()
    assert f"nvcc -cudart static -L {tmp_path} " in advice
    assert str(tmp_path / "libcudart_static.a") in advice
    assert "of CUDA 12" not in advice
    (tmp_path / "cuda12").mkdir()
    (tmp_path / "cuda12/libcudart_static.a").write_bytes(b"!<arch>\n")
    assert f"of CUDA 12 {tmp_path / 'cuda12/libcudart_static.a'}" in relink_advice()


@pytest.mark.slow
@pytest.mark.skipif(not usable(), reason="nvcc is not unpacked, or the native part is not built")
@pytest.mark.vm  # no guest, but the bundle: it runs with the rigs, for which that is built
def test_a_program_relinked_with_the_bundle_s_runtime_runs(bundle: Path, tmp_path: Path) -> None:
    with tarfile.open(bundle) as archive:
        archive.extractall(tmp_path, filter="data")
    library = tmp_path / "sluice-guest" / "lib"
    program = tmp_path / "vector_add"
    options = ["-O2", "--no-compress", "-gencode=arch=compute_75,code=compute_75"]
    options += ["-cudart=static", "-cudadevrt=none", f"-L{library}", "-o", str(program)]
    subprocess.run([NVCC, *options, PROGRAMS / "vector_add.cu"], check=True)
    elf = read_elf(program)
    assert elf is not None
    assert not [name for name in elf.needed if "cuda" in name], "it brings its runtime along"
    assert not has_static_runtime(elf), "and that is not NVIDIA's"
    with StaticPool(tmp_path) as pool:
        environment = {**pool.environment(), "LD_LIBRARY_PATH": str(library)}
        done = subprocess.run(
            [program], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (PROGRAMS / "expected" / "vector_add.out").read_text()
    checked = subprocess.run(
        [sys.executable, "-m", "sluice_guest", "check", str(program)],
        env={**os.environ, "PYTHONPATH": str(library.parent / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "libcudart_static" not in checked.stdout, checked.stdout
