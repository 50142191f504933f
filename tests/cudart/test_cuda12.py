# SPDX-License-Identifier: Apache-2.0
"""libcudart.so.12: CUDA 12's parameters and structures, on FakeDriver and on the software GPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.config.native_files import find_native
from tests.cudart.conftest import Loaded as LoadedRuntime

if TYPE_CHECKING:
    from tests.cudart.conftest import Loaded

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WHEEL = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime"
COMPILER = ROOT / "build" / "cuda13" / "nvidia" / "cu13" / "include"
ADDRESS = 0x200000000000


@pytest.fixture
def loaded(fake_driver: Path) -> Loaded:
    return LoadedRuntime(find_native("libcudart.so.12"), fake_driver)


def word(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


def pointer(value: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)


def test_it_says_that_it_is_cuda_12(loaded: Loaded) -> None:
    version = ctypes.c_int()
    assert loaded.api.cudaRuntimeGetVersion(ctypes.byref(version)) == 0
    assert version.value == 12090


def test_a_driver_of_cuda_12_is_enough_but_not_one_of_11(loaded: Loaded) -> None:
    insufficient = 35
    loaded.fake.fake_version(11080)
    assert loaded.malloc() == insufficient
    loaded.fake.fake_version(12000)
    assert loaded.malloc() == 0


def test_advice_and_prefetching_name_a_device(loaded: Loaded) -> None:
    assert loaded.malloc() == 0
    loaded.calls()
    assert loaded.api.cudaMemAdvise(pointer(ADDRESS), word(64), 3, 1) == 0
    assert loaded.api.cudaMemPrefetchAsync(pointer(ADDRESS), word(64), 1, pointer(0x40)) == 0
    assert loaded.calls() == [
        f"cuMemAdvise {ADDRESS} 64 3 1",
        f"cuMemPrefetchAsync {ADDRESS} 64 1 {0x40}",
    ]


def test_prefetching_on_the_thread_s_own_stream(loaded: Loaded) -> None:
    assert loaded.malloc() == 0
    loaded.calls()
    assert loaded.api.cudaMemPrefetchAsync_ptsz(pointer(ADDRESS), word(64), 1, None) == 0
    assert loaded.calls() == [f"cuMemPrefetchAsync {ADDRESS} 64 1 2"]


def test_batches_say_which_copy_failed(loaded: Loaded) -> None:
    assert loaded.malloc() == 0
    loaded.answer("cuMemcpyBatchAsync", 1)
    failed = ctypes.c_size_t()
    batch = (None, None, None, word(3), None, None, word(1), ctypes.byref(failed), pointer(0x40))
    assert loaded.api.cudaMemcpyBatchAsync(*batch) == 1
    assert failed.value == 7
    boxes = (word(2), None, ctypes.byref(failed), ctypes.c_ulonglong(0), pointer(0x40))
    assert loaded.api.cudaMemcpy3DBatchAsync(*boxes) == 0
    assert failed.value == 8


def test_edges_without_data_are_ordinary_ones(loaded: Loaded) -> None:
    assert loaded.malloc() == 0
    loaded.calls()
    ends = (pointer(1), pointer(2), pointer(3))
    assert loaded.api.cudaGraphAddDependencies(*ends, word(5)) == 0
    assert loaded.api.cudaGraphAddDependencies_v2(*ends, pointer(4), word(5)) == 0
    assert loaded.api.cudaStreamUpdateCaptureDependencies(pointer(64), pointer(2), word(1), 1) == 0
    assert loaded.calls() == [
        "cuGraphAddDependencies_v2 1 2 3 0 5",
        "cuGraphAddDependencies_v2 1 2 3 4 5",
        "cuStreamUpdateCaptureDependencies_v2 64 2 0 1 1",
    ]


def test_each_version_of_the_capture_s_state_has_its_own_parameters(loaded: Loaded) -> None:
    assert loaded.malloc() == 0
    loaded.calls()
    stream, more = pointer(64), [pointer(n) for n in range(1, 7)]
    assert loaded.api.cudaStreamGetCaptureInfo(stream, *more[:2]) == 0
    assert loaded.api.cudaStreamGetCaptureInfo_v2(stream, *more[:5]) == 0
    assert loaded.api.cudaStreamGetCaptureInfo_v3(stream, *more) == 0
    assert loaded.api.cudaStreamGetCaptureInfo_v2_ptsz(None, *more[:5]) == 0
    assert loaded.calls() == [
        "cuStreamGetCaptureInfo_v3 64 1 2 0 0 0 0",
        "cuStreamGetCaptureInfo_v3 64 1 2 3 4 0 5",
        "cuStreamGetCaptureInfo_v3 64 1 2 3 4 5 6",
        "cuStreamGetCaptureInfo_v3 2 1 2 3 4 0 5",
    ]


def test_what_cuda_13_added_is_not_there(loaded: Loaded) -> None:
    for name in ("cudaLogsCurrent", "cudaMemGetDefaultMemPool", "cudaMemDiscardBatchAsync"):
        assert not hasattr(loaded.api, name)


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that is compiled against NVIDIA's header of CUDA 12."""
    if not (WHEEL / "include" / "cuda_runtime_api.h").exists():
        pytest.skip(f"CUDA 12's headers are not at {WHEEL} (make programs)")
    program = tmp_path_factory.mktemp("layouts") / "cuda12_layouts"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-deprecated-declarations"]
    where = [f"-I{WHEEL}/include", "-isystem", COMPILER]
    runtime = WHEEL / "lib" / "libcudart.so.12"
    source = HERE / "cuda12_layouts.cc"
    subprocess.run(["g++", *flags, *where, "-o", program, source, runtime], check=True)
    return program


def folder_of(out: Path, driver: Path) -> Path:
    """The runtime beside a driver."""
    out.mkdir()
    (out / "libcuda.so.1").symlink_to(driver)
    (out / "libcudart.so.12").symlink_to(find_native("libcudart.so.12"))
    return out


def check(program: Path, libraries: Path, *arguments: str) -> None:
    """Run it; it says which line was wrong."""
    done = subprocess.run(
        [program, *arguments],
        env={"LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "right\n", done.stderr
    assert done.returncode == 0


def test_structures_are_filled_as_cuda_12_s_header_has_them(layouts: Path, tmp_path: Path) -> None:
    driver = find_native("libsluice-softgpu.so.1")
    check(layouts, folder_of(tmp_path / "softgpu", driver))


def test_textures_are_described_as_cuda_12_s_header_has_them(
    layouts: Path, fake_driver: Path, tmp_path: Path
) -> None:
    check(layouts, folder_of(tmp_path / "fake", fake_driver), "textures")
