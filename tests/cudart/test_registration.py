# SPDX-License-Identifier: Apache-2.0
"""Registration asks nothing of the driver, and fat binaries are loaded when they are first used."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cudart.conftest import Loaded

INVALID_DEVICE_FUNCTION = 98
INVALID_SYMBOL = 13
INVALID_HANDLE = 400


def test_registration_makes_no_driver_call(loaded: Loaded) -> None:
    assert loaded.calls() == []


def test_a_fat_binary_is_loaded_once_and_as_it_is(loaded: Loaded) -> None:
    assert loaded.launch() == 0
    assert loaded.launch() == 0
    assert loaded.launch(loaded.OTHER_KERNEL) == 0
    loads = [line for line in loaded.calls() if line.startswith("cuLibraryLoadData")]
    assert loads == [f"cuLibraryLoadData {ctypes.addressof(loaded.image)}"]


def test_threads_that_launch_first_together_load_once(loaded: Loaded) -> None:
    barrier = threading.Barrier(8)

    def launch() -> None:
        barrier.wait()
        assert loaded.launch() == 0

    threads = [threading.Thread(target=launch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = loaded.calls()
    assert sum(line.startswith("cuLibraryLoadData") for line in calls) == 1
    assert sum(line.startswith("cuDevicePrimaryCtxRetain") for line in calls) == 1
    assert sum(line.startswith("cuLaunchKernel") for line in calls) == 8


def test_a_kernel_goes_to_the_driver_as_configured(loaded: Loaded) -> None:
    from_stub = loaded.launch
    assert from_stub(shared=48, stream=0x77) == 0
    kernel = 0x3000 + ord("k")
    assert loaded.calls()[-1] == f"cuLaunchKernel {kernel} 1 1 1 1 1 1 48 {0x77}"
    assert from_stub(suffix="_ptsz") == 0
    assert loaded.calls()[-1] == f"cuLaunchKernel {kernel} 1 1 1 1 1 1 0 2"


def test_what_was_not_registered_is_left_to_the_driver(loaded: Loaded) -> None:
    assert loaded.launch(0x1234) == INVALID_HANDLE
    assert loaded.api.cudaGetLastError() == INVALID_HANDLE
    assert loaded.launch(0) == INVALID_DEVICE_FUNCTION
    kernel = ctypes.c_void_p()
    error = loaded.api.cudaGetKernel(ctypes.byref(kernel), ctypes.c_void_p(0x1234))
    assert error == INVALID_DEVICE_FUNCTION


def test_a_kernel_handle_can_be_launched_like_a_stub(loaded: Loaded) -> None:
    kernel = ctypes.c_void_p()
    stub = ctypes.c_void_p(loaded.KERNEL)
    assert loaded.api.cudaGetKernel(ctypes.byref(kernel), stub) == 0
    assert kernel.value == 0x3000 + ord("k")
    assert loaded.launch(kernel.value) == 0


def test_an_unregistered_library_is_unloaded_and_its_kernels_are_gone(loaded: Loaded) -> None:
    assert loaded.launch() == 0
    loaded.host_abi("UnregisterFatBinary", loaded.module)
    assert "cuLibraryUnload 8192" in loaded.calls()
    assert loaded.launch() == INVALID_HANDLE


def test_many_kernels_are_all_found_again(loaded: Loaded) -> None:
    stubs = [0x10000000 + 16 * i for i in range(5000)]
    for stub in stubs:
        loaded.register_function(stub, b"m")
    assert all(loaded.launch(stub) == 0 for stub in stubs)
    assert loaded.launch() == 0


def test_a_missing_kernel_is_an_invalid_device_function(loaded: Loaded) -> None:
    not_found = 500
    loaded.answer("cuLibraryGetKernel", not_found)
    assert loaded.launch() == INVALID_DEVICE_FUNCTION


def test_a_fat_binary_without_code_for_the_device_says_so(loaded: Loaded) -> None:
    no_binary = 209
    loaded.answer("cuLibraryLoadData", no_binary)
    assert loaded.launch() == no_binary
    loaded.answer("cuLibraryLoadData", 0)
    assert loaded.launch() == 0


def test_variables_are_found_by_their_shadow(loaded: Loaded) -> None:
    address, size = ctypes.c_void_p(), ctypes.c_size_t()
    shadow = ctypes.c_void_p(loaded.VARIABLE)
    assert loaded.api.cudaGetSymbolAddress(ctypes.byref(address), shadow) == 0
    assert loaded.api.cudaGetSymbolSize(ctypes.byref(size), shadow) == 0
    assert (address.value, size.value) == (0x4000, 16)
    other = ctypes.c_void_p(0x99)
    assert loaded.api.cudaGetSymbolAddress(ctypes.byref(address), other) == INVALID_SYMBOL


def test_a_managed_variable_is_where_the_driver_says(loaded: Loaded) -> None:
    place, size = ctypes.c_void_p(), ctypes.c_size_t(4)
    shadow = ctypes.byref(place)
    loaded.host_abi("RegisterManagedVar", loaded.module, shadow, None, b"m", 0, size, 0, 0)
    initialise = loaded.api.__getattr__("__cudaInitModule")
    not_found, address = 500, ctypes.c_void_p()
    loaded.answer("cuLibraryGetManaged", not_found)
    assert initialise(loaded.module) & 0xFF == 0
    assert place.value is None
    loaded.answer("cuLibraryGetManaged", 0)
    assert initialise(loaded.module) & 0xFF == 1
    assert place.value == 0x5000
    # The program names the variable itself, which is there.
    assert loaded.api.cudaGetSymbolAddress(ctypes.byref(address), place) == 0
    assert address.value == 0x5000
    assert initialise(loaded.module) & 0xFF == 1
    assert sum(line.startswith("cuLibraryGetManaged") for line in loaded.calls()) == 3


def test_call_configurations_nest(loaded: Loaded) -> None:
    push = loaded.api.__getattr__("__cudaPushCallConfiguration")
    pop = loaded.api.__getattr__("__cudaPopCallConfiguration")
    dim = type(loaded).DIM
    missing_configuration = 52
    for x in (3, 5):
        assert push(dim(x, 1, 1), dim(x, 2, 1), ctypes.c_size_t(x), ctypes.c_void_p(x)) == 0
    for x in (5, 3):
        grid, block, shared, stream = dim(), dim(), ctypes.c_size_t(), ctypes.c_void_p()
        out = [ctypes.byref(value) for value in (grid, block, shared, stream)]
        assert pop(*out) == 0
        assert (grid.x, block.x, block.y, shared.value, stream.value) == (x, x, 2, x, x)
    assert pop(*out) == missing_configuration
