# SPDX-License-Identifier: Apache-2.0
"""Programs with a CUDA runtime inside, of both majors: relinked with ours, or NVIDIA's diverted.

They are compiled once for each major, and linked with each archive. test_diverted.py has what is
particular about diverting. Sessions are on the software GPU, over shared memory and TCP.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from static_pool import StaticPool

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
TOOLKIT = ROOT / "build" / "cuda13" / "nvidia" / "cu13"
OLDER = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime"
OPTIONS = ["-O1", "-std=c++17", "--no-compress", "-gencode=arch=compute_75,code=compute_75"]
NAMES = {
    "vector_add": "10000",
    "streams_events": "8192",
    "symbols": "",
    "graphs": "",
    "pools": "",
    "other_streams": "",
    "managed": "",
}
ARCHIVE = "libcudart_static.a"


def archives() -> dict[tuple[int, str], Path]:
    """By major and by whose it is."""
    ours = find_native("libcuda.so.1").parent
    return {
        (12, "diverted"): OLDER / "lib" / ARCHIVE,
        (13, "diverted"): TOOLKIT / "lib" / ARCHIVE,
        (12, "relinked"): ours / "cuda12" / ARCHIVE,
        (13, "relinked"): ours / ARCHIVE,
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME-MAJOR-WAY of all of them."""
    folder = tmp_path_factory.mktemp("inside")
    nvcc = [TOOLKIT / "bin" / "nvcc", *OPTIONS, "-cudart=none", "-cudadevrt=none"]
    for name in NAMES:
        for major, headers in ((12, [f"-I{OLDER / 'include'}"]), (13, [])):
            compiled = folder / f"{name}-{major}.o"
            source = PROGRAMS / f"{name}.cu"
            subprocess.run([*nvcc, *headers, "-c", "-o", compiled, source], check=True)
            for (version, way), archive in archives().items():
                if version == major:
                    out = folder / f"{name}-{major}-{way}"
                    libraries = [archive, "-ldl", "-lrt", "-lpthread"]
                    subprocess.run([*nvcc, "-o", out, compiled, *libraries], check=True)
    return folder


@pytest.fixture(scope="module", params=["shm", "tcp"])
def pool(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[StaticPool]:
    with StaticPool(tmp_path_factory.mktemp("pool"), tcp=request.param == "tcp") as started:
        yield started


@pytest.mark.parametrize("way", ["relinked", "diverted"])
@pytest.mark.parametrize("major", [12, 13])
@pytest.mark.parametrize("name", NAMES)
def test_prints_what_it_prints_natively(
    pool: StaticPool, built: Path, name: str, major: int, way: str
) -> None:
    sessions = pool.sessions()
    setting = "divert" if way == "diverted" else "leave"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sluice.guest_runtime", "run", "--static-runtime", setting),
            *(built / f"{name}-{major}-{way}", *NAMES[name].split()),
        ],
        env=pool.environment(
            PYTHONPATH=str(ROOT / "python"),
            SLUICE_LIBRARIES=str(find_native("libcuda.so.1").parent),
            LD_LIBRARY_PATH="",
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if not line.startswith("# ")]
    expected = (PROGRAMS / "expected" / f"{name}.out").read_text().splitlines()
    assert said == [line for line in expected if not line.startswith("# ")], done.stderr
    assert done.returncode == 0
    assert pool.sessions() == sessions + 1
    assert f"for CUDA {'12.9' if major == 12 else '13.0'}" in pool.log.read_text()
