# SPDX-License-Identifier: Apache-2.0
"""The last error is a thread's own, given once by get, kept by peek; sticky errors come again."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cudart.conftest import Loaded

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALISED = 3
INVALID_DIRECTION = 21
INVALID_DEVICE = 101
NOT_READY = 600
ILLEGAL_ADDRESS = 700
NOT_SUPPORTED = 801


def test_get_forgets_and_peek_does_not(loaded: Loaded) -> None:
    loaded.answer("cuMemAlloc_v2", OUT_OF_MEMORY)
    assert loaded.malloc() == OUT_OF_MEMORY
    assert loaded.api.cudaPeekAtLastError() == OUT_OF_MEMORY
    assert loaded.api.cudaPeekAtLastError() == OUT_OF_MEMORY
    assert loaded.api.cudaGetLastError() == OUT_OF_MEMORY
    assert loaded.api.cudaGetLastError() == 0


def test_success_does_not_forget_an_error(loaded: Loaded) -> None:
    loaded.answer("cuMemAlloc_v2", OUT_OF_MEMORY)
    loaded.malloc()
    loaded.answer("cuMemAlloc_v2", 0)
    assert loaded.malloc() == 0
    assert loaded.api.cudaGetLastError() == OUT_OF_MEMORY


def test_the_later_error_wins(loaded: Loaded) -> None:
    loaded.answer("cuMemAlloc_v2", OUT_OF_MEMORY)
    loaded.malloc()
    loaded.api.cudaSetDevice(7)
    assert loaded.api.cudaGetLastError() == INVALID_DEVICE


def test_a_sticky_error_comes_again_with_every_call(loaded: Loaded) -> None:
    assert loaded.launch() == 0
    for function in ("cuCtxSynchronize", "cuMemAlloc_v2", "cuLaunchKernel", "cuMemFree_v2"):
        loaded.answer(function, ILLEGAL_ADDRESS)
    assert loaded.api.cudaDeviceSynchronize() == ILLEGAL_ADDRESS
    assert loaded.api.cudaGetLastError() == ILLEGAL_ADDRESS
    assert loaded.malloc() == ILLEGAL_ADDRESS
    assert loaded.launch() == ILLEGAL_ADDRESS
    assert loaded.api.cudaFree(ctypes.c_void_p(0x5000)) == ILLEGAL_ADDRESS
    assert loaded.api.cudaGetLastError() == ILLEGAL_ADDRESS


def test_not_ready_is_an_answer_and_no_error(loaded: Loaded) -> None:
    loaded.answer("cuStreamQuery", NOT_READY)
    assert loaded.api.cudaStreamQuery(None) == NOT_READY
    assert loaded.api.cudaGetLastError() == 0


def test_errors_are_each_thread_s_own(loaded: Loaded) -> None:
    loaded.api.cudaSetDevice(7)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(loaded.api.cudaGetLastError()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert loaded.api.cudaGetLastError() == INVALID_DEVICE


def test_bad_launches_keep_the_driver_s_code(loaded: Loaded) -> None:
    loaded.answer("cuLaunchKernel", INVALID_VALUE)
    assert loaded.launch(grid=type(loaded).DIM(0, 1, 1)) == INVALID_VALUE
    assert loaded.api.cudaGetLastError() == INVALID_VALUE
    assert loaded.api.cudaGetLastError() == 0
    out_of_resources = 701
    loaded.answer("cuLaunchKernel", out_of_resources)
    assert loaded.launch() == out_of_resources


def test_shared_memory_beyond_32_bits_is_refused_here(loaded: Loaded) -> None:
    assert loaded.launch(shared=(1 << 32) + 8) == INVALID_VALUE
    assert not any(line.startswith("cuLaunchKernel") for line in loaded.calls())


def test_a_bad_direction_is_refused_before_the_driver(loaded: Loaded) -> None:
    loaded.calls()
    size = ctypes.c_size_t(4)
    assert loaded.api.cudaMemcpy(None, None, size, 9) == INVALID_DIRECTION
    assert loaded.calls() == []


def test_a_function_that_the_driver_lacks_is_not_supported(loaded: Loaded) -> None:
    assert loaded.api.cudaStreamGetFlags(None, None) == NOT_SUPPORTED
    assert loaded.api.cudaGetLastError() == NOT_SUPPORTED


def test_an_old_driver_is_insufficient(loaded: Loaded) -> None:
    insufficient = 35
    loaded.fake.fake_version(12080)
    assert loaded.malloc() == insufficient
    loaded.fake.fake_version(13000)
    assert loaded.malloc() == 0


def test_a_failed_initialisation_is_tried_again(loaded: Loaded) -> None:
    no_device = 100
    loaded.answer("cuInit", no_device)
    assert loaded.malloc() == no_device
    loaded.answer("cuInit", 0)
    assert loaded.malloc() == 0


def test_a_forked_child_hears_that_nothing_is_initialised(loaded: Loaded) -> None:
    assert loaded.malloc() == 0
    child = os.fork()
    if child == 0:
        heard = (loaded.malloc(), loaded.launch(), loaded.api.cudaDeviceSynchronize())
        os._exit(0 if heard == (NOT_INITIALISED,) * 3 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert loaded.malloc() == 0


def test_names_and_texts_of_errors(loaded: Loaded) -> None:
    assert loaded.api.cudaGetErrorName(ILLEGAL_ADDRESS) == b"cudaErrorIllegalAddress"
    text = loaded.api.cudaGetErrorString(ILLEGAL_ADDRESS)
    assert text == b"an illegal memory access was encountered"
    assert loaded.api.cudaGetErrorName(12345) == b"unrecognized error code"
