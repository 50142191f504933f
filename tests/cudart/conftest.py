# SPDX-License-Identifier: Apache-2.0
"""What the tests of libcudart stand on: the library, FakeDriver, fresh processes."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def cudart() -> Path:
    return find_native("libcudart.so.13")


@pytest.fixture(scope="session", params=[12, 13])
def runtime(request: pytest.FixtureRequest) -> tuple[int, Path]:
    """Each major version of the library, with its number."""
    return request.param, find_native(f"libcudart.so.{request.param}")


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated headers, for compiling test code against."""
    out = tmp_path_factory.mktemp("generated")
    generator = ROOT / "native" / "codegen" / "generate_abi.py"
    subprocess.run([sys.executable, generator, "--out", out], check=True)
    return out


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory, generated: Path) -> Path:
    out = tmp_path_factory.mktemp("fake") / "libcuda.so.1"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
    soname = "-Wl,-soname,libcuda.so.1"
    source = HERE / "fake_driver.cc"
    subprocess.run(["g++", *flags, soname, f"-I{generated}", "-o", out, source], check=True)
    return out


class Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class FatBinary(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_int),
        ("version", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("prelinked", ctypes.c_void_p),
    )


class Loaded:
    """libcudart.so.13 over FakeDriver in this process; two kernels and a variable registered."""

    DIM = Dim3
    KERNEL = 0xAAAA0000
    OTHER_KERNEL = 0xAAAA0010
    VARIABLE = 0xAAAA0020

    def __init__(self, cudart: Path, driver: Path) -> None:
        self.paths = (cudart, driver)

    def start(self) -> None:
        cudart, driver = self.paths
        self.fake = ctypes.CDLL(str(driver), mode=ctypes.RTLD_GLOBAL)
        self.api = ctypes.CDLL(str(cudart))
        getattr(self.api, "__cudaRegisterFatBinary").restype = ctypes.c_void_p
        self.api.cudaGetErrorName.restype = ctypes.c_char_p
        self.api.cudaGetErrorString.restype = ctypes.c_char_p
        self.image = ctypes.create_string_buffer(b"image")
        self.wrapper = FatBinary(0x466243B1, 1, ctypes.addressof(self.image), None)
        self.module = ctypes.c_void_p(
            self.host_abi("RegisterFatBinary", ctypes.byref(self.wrapper))
        )
        self.register_function(self.KERNEL, b"k")
        self.register_function(self.OTHER_KERNEL, b"o")
        variable = ctypes.c_void_p(self.VARIABLE)
        size = ctypes.c_size_t(16)
        self.host_abi("RegisterVar", self.module, variable, None, b"v", 0, size, 0, 0)
        self.host_abi("RegisterFatBinaryEnd", self.module)

    def host_abi(self, name: str, *arguments: object) -> int:
        return int(getattr(self.api, f"__cuda{name}")(*arguments) or 0)

    def register_function(self, stub: int, name: bytes) -> None:
        nothing = [None] * 5
        host_stub = ctypes.c_void_p(stub)
        self.host_abi("RegisterFunction", self.module, host_stub, None, name, -1, *nothing)

    def answer(self, function: str, result: int) -> None:
        self.fake.fake_answer(function.encode(), result)

    def calls(self) -> list[str]:
        """What the driver was asked since the last time."""
        buffer = ctypes.create_string_buffer(1 << 20)
        self.fake.fake_calls(buffer, ctypes.c_size_t(len(buffer)))
        return buffer.value.decode().splitlines()

    def launch(
        self,
        kernel: int = KERNEL,
        grid: Dim3 | None = None,
        block: Dim3 | None = None,
        shared: int = 0,
        stream: int = 0,
        suffix: str = "",
    ) -> int:
        function = getattr(self.api, f"cudaLaunchKernel{suffix}")
        one = Dim3(1, 1, 1)
        return int(
            function(
                ctypes.c_void_p(kernel),
                grid or one,
                block or one,
                None,
                ctypes.c_size_t(shared),
                ctypes.c_void_p(stream),
            )
        )

    def malloc(self, size: int = 4) -> int:
        return int(self.api.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size)))


@pytest.fixture
def loaded(cudart: Path, fake_driver: Path) -> Loaded:
    return Loaded(cudart, fake_driver)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that loads the libraries in a forked process: what they keep starts anew."""
    if "loaded" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    library = arguments["loaded"]
    assert isinstance(library, Loaded)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # What other tests left in cycles is the parent's to finalise: gRPC's waits for ever for a
        # thread that a fork does not take along.
        gc.disable()
        os.close(read)
        report = "passed"
        try:
            library.start()
            pyfuncitem.obj(**arguments)
        except BaseException:
            report = traceback.format_exc()
        os.write(write, report.encode()[-60000:])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        report = pipe.read()
    _, status = os.waitpid(child, 0)
    if report != "passed":
        pytest.fail(report or f"the test's process died: wait status {status:#x}", pytrace=False)
    return True
