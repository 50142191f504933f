# SPDX-License-Identifier: Apache-2.0
"""Which device a thread uses, when contexts come into being, and what becomes of them."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cudart.conftest import Loaded

# FakeDriver's handles: devices are 10 and 11, their primary contexts 0x1000 more.
CONTEXT_0 = 0x1000 + 10
CONTEXT_1 = 0x1000 + 11


def current_device(loaded: Loaded) -> int:
    device = ctypes.c_int(-1)
    assert loaded.api.cudaGetDevice(ctypes.byref(device)) == 0
    return device.value


def test_counting_devices_makes_no_context(loaded: Loaded) -> None:
    count = ctypes.c_int()
    assert loaded.api.cudaGetDeviceCount(ctypes.byref(count)) == 0
    assert count.value == 2
    assert not any("Retain" in line for line in loaded.calls())


def test_the_first_use_binds_device_0(loaded: Loaded) -> None:
    assert loaded.api.cudaFree(None) == 0
    assert loaded.calls()[-2:] == ["cuDevicePrimaryCtxRetain 10", f"cuCtxSetCurrent {CONTEXT_0}"]
    assert loaded.api.cudaFree(None) == 0
    assert loaded.calls() == []


def test_set_device_initialises_it_at_once(loaded: Loaded) -> None:
    assert loaded.api.cudaSetDevice(1) == 0
    assert loaded.calls()[-2:] == ["cuDevicePrimaryCtxRetain 11", f"cuCtxSetCurrent {CONTEXT_1}"]
    assert current_device(loaded) == 1
    loaded.calls()
    assert loaded.api.cudaSetDevice(1) == 0
    assert loaded.calls() == []


def test_each_thread_has_its_own_device(loaded: Loaded) -> None:
    assert loaded.api.cudaSetDevice(1) == 0
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(current_device(loaded)))
    thread.start()
    thread.join()
    assert seen == [0]
    assert current_device(loaded) == 1


def test_a_context_of_the_driver_api_is_used_as_it_is(loaded: Loaded) -> None:
    loaded.fake.cuInit(0)
    loaded.fake.cuCtxSetCurrent(ctypes.c_void_p(CONTEXT_1))
    loaded.calls()
    assert loaded.malloc() == 0
    assert not any("SetCurrent" in line or "Retain" in line for line in loaded.calls())
    assert current_device(loaded) == 1


def test_a_context_taken_away_is_bound_again(loaded: Loaded) -> None:
    assert loaded.malloc() == 0
    loaded.fake.cuCtxSetCurrent(None)
    assert loaded.malloc() == 0
    loaded.fake.cuCtxSetCurrent(None)
    assert loaded.launch() == 0
    assert f"cuCtxSetCurrent {CONTEXT_0}" in loaded.calls()


def test_after_a_reset_every_thread_binds_anew(loaded: Loaded) -> None:
    barrier = threading.Barrier(2)
    other: list[int] = []

    def second_thread() -> None:
        assert loaded.malloc() == 0
        barrier.wait()
        barrier.wait()
        other.append(loaded.malloc())

    thread = threading.Thread(target=second_thread)
    thread.start()
    barrier.wait()
    assert loaded.malloc() == 0
    assert loaded.api.cudaDeviceReset() == 0
    calls = loaded.calls()
    assert "cuDevicePrimaryCtxReset_v2 10" in calls
    assert "cuDevicePrimaryCtxRelease_v2 10" in calls
    barrier.wait()
    thread.join()
    assert other == [0]
    assert "cuDevicePrimaryCtxRetain 10" in loaded.calls()
    assert loaded.malloc() == 0


def test_properties_come_from_attributes(loaded: Loaded) -> None:
    prop = ctypes.create_string_buffer(2048)
    assert loaded.api.cudaGetDeviceProperties(prop, 1) == 0
    assert prop.value == b"Fake device"
    # totalGlobalMem lies behind name, uuid, luid and the luid's mask (CUDA 13's layout).
    assert int.from_bytes(prop.raw[288:296], "little") == 3 << 30
    sharedmem, regs, warp = 8, 12, 10
    assert int.from_bytes(prop.raw[296:304], "little") == 1000 + sharedmem
    assert int.from_bytes(prop.raw[304:308], "little") == 1000 + regs
    assert int.from_bytes(prop.raw[308:312], "little") == 1000 + warp
    invalid_device = 101
    assert loaded.api.cudaGetDeviceProperties(prop, 2) == invalid_device


def test_per_thread_variants_mean_the_thread_s_stream(loaded: Loaded) -> None:
    assert loaded.api.cudaStreamSynchronize_ptsz(None) == 0
    assert loaded.calls()[-1] == "cuStreamSynchronize 2"
    assert loaded.api.cudaEventRecord_ptsz(ctypes.c_void_p(5), None) == 0
    assert loaded.calls()[-1] == "cuEventRecord 5 2"
    source = ctypes.create_string_buffer(8)
    to, size, to_device = ctypes.c_void_p(0x5000), ctypes.c_size_t(8), 1
    assert loaded.api.cudaMemcpy_ptds(to, source, size, to_device) == 0
    address = ctypes.addressof(source)
    assert loaded.calls()[-2:] == [
        f"cuMemcpyHtoDAsync_v2 {0x5000} {address} 8 2",
        "cuStreamSynchronize 2",
    ]


def test_the_default_streams_cannot_be_destroyed(loaded: Loaded) -> None:
    invalid_handle = 400
    for stream in (None, ctypes.c_void_p(1), ctypes.c_void_p(2)):
        assert loaded.api.cudaStreamDestroy(stream) == invalid_handle


def test_nothing_is_asked_for_no_bytes(loaded: Loaded) -> None:
    pointer = ctypes.c_void_p(1)
    nothing = ctypes.c_size_t(0)
    assert loaded.api.cudaMalloc(ctypes.byref(pointer), nothing) == 0
    assert pointer.value is None
    assert loaded.api.cudaMemcpy(None, None, nothing, 1) == 0
    assert not any("Alloc" in line or "Memcpy" in line for line in loaded.calls())
