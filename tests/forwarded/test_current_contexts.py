# SPDX-License-Identifier: Apache-2.0
"""What is current on a thread whose context the driver's functions took away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from static_pool import StaticPool

HEAD = """
import ctypes as c
rt, cu = c.CDLL("libcudart.so.{major}"), c.CDLL("libcuda.so.1")
ref, pointer = c.byref, c.c_void_p

def current():
    found = pointer()
    assert cu.cuCtxGetCurrent(ref(found)) == 0
    return found.value

def made(name, *arguments):
    made = pointer()
    assert getattr(rt, name)(ref(made), *arguments) == 0, name
    return made

assert rt.cudaSetDevice(0) == 0
primary = current()
assert primary
event, stream = made("cudaEventCreate"), made("cudaStreamCreateWithFlags", 1)
assert rt.cudaEventRecord(event, stream) == rt.cudaStreamSynchronize(stream) == 0
"""


def run(folder: Path, code: str, major: int = 13) -> None:
    with StaticPool(folder) as pool:
        done = pool.run(sys.executable, "-c", HEAD.format(major=major) + code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("major", [12, 13])
def test_the_runtime_gives_a_thread_without_one_its_devices(tmp_path: Path, major: int) -> None:
    """Also where the driver could answer without: `cudaFree(0)` is how programs ask for one."""
    code = """
memory = made("cudaMalloc", c.c_size_t(64))
calls = [("cudaFree", None), ("cudaEventQuery", event), ("cudaEventSynchronize", event),
         ("cudaPointerGetAttributes", c.create_string_buffer(256), memory),
         ("cudaStreamQuery", stream), ("cudaFree", memory), ("cudaEventDestroy", event)]
for name, *arguments in calls:
    assert cu.cuCtxSetCurrent(None) == 0 and current() is None
    assert getattr(rt, name)(*arguments) == 0, name
    assert current() == primary, name
assert cu.cuCtxPopCurrent_v2(ref(pointer())) == 0 and current() is None
assert rt.cudaFree(None) == 0 and current() == primary
assert cu.cuCtxSetCurrent(None) == 0
assert rt.cudaGetDevice(ref(c.c_int())) == 0 and current() is None, "a question about devices"
"""
    run(tmp_path, code, major)


def test_a_stream_is_asked_for_its_context_by_a_thread_that_has_none(tmp_path: Path) -> None:
    """As NVIDIA's DALI does, to make that current; a stream of the current context is none."""
    code = """
assert cu.cuCtxSetCurrent(None) == 0
found, number, device = pointer(), c.c_ulonglong(), c.c_int(7)
assert cu.cuStreamGetCtx(stream, ref(found)) == 0 and found.value == primary
assert cu.cuStreamGetId(stream, ref(number)) == 0 and number.value
assert cu.cuStreamGetDevice(stream, ref(device)) == 0 and device.value == 0
assert cu.cuStreamGetFlags(stream, ref(device)) == 0 and device.value == 1
for handle in (None, pointer(1), pointer(2)):
    assert cu.cuStreamGetCtx(handle, ref(found)) == 201, "CUDA_ERROR_INVALID_CONTEXT"
assert cu.cuStreamGetCtx(pointer(4096), ref(found)) == 400, "CUDA_ERROR_INVALID_HANDLE"
assert current() is None
"""
    run(tmp_path, code)
