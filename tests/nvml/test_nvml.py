# SPDX-License-Identifier: Apache-2.0
"""libnvidia-ml.so.1 as nvidia-ml-py uses it: it shows the session's vGPUs, and opens one late."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_nvml import driver_beside_nvml
from static_pool import StaticPool

from sluice.config.native_files import find_native

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

HEAD = """
import ctypes, os, sys
import pynvml as n

def refusal(call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0

n.nvmlInit()
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StaticPool]:
    with StaticPool(tmp_path, vgpus=2, memory_mib=512) as started:
        yield started


def run(pool: StaticPool, code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code],
        env=pool.environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_starting_counting_and_taking_handles_opens_no_session(pool: StaticPool) -> None:
    code = """
assert n.nvmlDeviceGetCount() == 2
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
assert refusal(n.nvmlDeviceGetHandleByIndex, 2) == n.NVML_ERROR_INVALID_ARGUMENT
assert [n.nvmlDeviceGetIndex(h) for h in handles] == [0, 1]
assert [n.nvmlDeviceGetComputeRunningProcesses(h) for h in handles] == [[], []]
assert n.nvmlSystemGetCudaDriverVersion() == 13000
assert n.nvmlSystemGetNVMLVersion() == "13"
"""
    run(pool, code)
    # whoever has CUDA in it is told of itself, and counts before it forks
    run(pool, 'ctypes.CDLL("libcudart.so.13")' + code)
    assert pool.sessions() == 0


def test_without_a_server_it_counts_what_the_user_asked_for(pool: StaticPool) -> None:
    code = """
print(n.nvmlDeviceGetCount(), refusal(n.nvmlDeviceGetName, n.nvmlDeviceGetHandleByIndex(0)))
"""
    shown = run(pool, code, SLUICE_SERVER_SOCKET="/nowhere", SLUICE_CHANNEL="shm", SLUICE_VGPU="3")
    assert shown == "3 9"  # NVML_ERROR_DRIVER_NOT_LOADED


def test_a_vgpu_has_the_names_that_cuda_gives_it(pool: StaticPool) -> None:
    code = """
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
cuda = ctypes.CDLL("libcuda.so.1")
assert refusal(n.nvmlDeviceGetName, handles[0]) == 0 and cuda.cuInit(0) == 0
for i, handle in enumerate(handles):
    text, raw = ctypes.create_string_buffer(128), (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetName(text, 128, i) == 0
    assert n.nvmlDeviceGetName(handle) == text.value.decode()
    assert cuda.cuDeviceGetUuid_v2(raw, i) == 0
    uuid = n.nvmlDeviceGetUUID(handle)
    assert uuid.startswith("GPU-") and uuid[4:].replace("-", "") == bytes(raw).hex()
    for known in (uuid, uuid[4:], uuid.lower()):
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(known)) == i
    assert cuda.cuDeviceGetPCIBusId(text, 128, i) == 0
    pci = n.nvmlDeviceGetPciInfo(handle)
    assert pci.busId.endswith(text.value.decode().upper()) and len(pci.busId) == 16
    for same in (text.value.decode(), text.value.decode().lower(), pci.busId, pci.busIdLegacy):
        assert n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByPciBusId(same))
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), i)
    assert n.nvmlDeviceGetCudaComputeCapability(handle) == (major.value, minor.value)
assert n.nvmlDeviceGetUUID(handles[0]) != n.nvmlDeviceGetUUID(handles[1])
assert refusal(n.nvmlDeviceGetHandleByUUID, "GPU-0") == n.NVML_ERROR_NOT_FOUND
assert refusal(n.nvmlDeviceGetHandleByPciBusId, "FFFF:01") == n.NVML_ERROR_NOT_FOUND
assert n.nvmlDeviceGetArchitecture(handles[0]) == n.NVML_DEVICE_ARCH_HOPPER
assert n.nvmlDeviceGetMigMode(handles[0]) == [0, 0]
assert n.nvmlDeviceGetTopologyCommonAncestor(*handles) == n.NVML_TOPOLOGY_INTERNAL
can = ctypes.c_int()
assert cuda.cuDeviceCanAccessPeer(ctypes.byref(can), 0, 1) == 0
status = n.NVML_P2P_STATUS_OK if can.value else n.NVML_P2P_STATUS_NOT_SUPPORTED
assert n.nvmlDeviceGetP2PStatus(*handles, 0) == status
assert n.nvmlDeviceGetP2PStatus(handles[0], handles[0], 0) == n.NVML_P2P_STATUS_OK
assert refusal(n.nvmlDeviceGetP2PStatus, *handles, 5) == n.NVML_ERROR_INVALID_ARGUMENT
"""
    run(pool, code)
    assert pool.sessions() == 1, "CUDA and NVML of one process share a session"


def test_a_process_that_looked_first_finds_its_vgpu_by_the_uuid_that_it_knows(
    pool: StaticPool,
) -> None:
    code = """
looked = [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(2)]
assert looked[0] != looked[1]
n.nvmlShutdown()
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
n.nvmlInit()
for i, uuid in enumerate(looked):
    for known in (uuid, uuid[4:], uuid.lower()):
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(known)) == i
    own = n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i))
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(own)) == i
assert refusal(n.nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000") == 6
"""
    run(pool, code)


def test_memory_is_the_slice_and_follows_the_process(pool: StaticPool) -> None:
    code = """
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
before = n.nvmlDeviceGetMemoryInfo(handles[0])
assert (before.total, before.used) == (512 << 20, 0)
assert n.nvmlDeviceGetComputeRunningProcesses(handles[0]) == []
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20)) == 0
after = n.nvmlDeviceGetMemoryInfo(handles[0], n.nvmlMemory_v2)
assert (after.total, after.used, after.reserved) == (512 << 20, 64 << 20, 0)
assert after.free == after.total - after.used
(process,) = n.nvmlDeviceGetComputeRunningProcesses(handles[0])
assert (process.pid, process.usedGpuMemory) == (os.getpid(), 64 << 20)
assert n.nvmlDeviceGetComputeRunningProcesses(handles[1]) == []
assert n.nvmlDeviceGetMemoryInfo(handles[1]).used == 0
assert n.nvmlDeviceGetGraphicsRunningProcesses(handles[0]) == []
"""
    run(pool, code)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_what_only_the_node_knows_comes_from_its_nvml(tmp_path: Path, short_path: Path) -> None:
    driver = driver_beside_nvml(short_path)
    code = """
import time
cuda = ctypes.CDLL("libcuda.so.1")  # so it has a session, and asks its worker
h = n.nvmlDeviceGetHandleByIndex(1)
use = n.nvmlDeviceGetUtilizationRates(h)
assert (use.gpu, use.memory) == (37, 12)
assert n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU) == 41
assert n.nvmlDeviceGetTemperatureV(h, n.NVML_TEMPERATURE_GPU) == 41
assert refusal(n.nvmlDeviceGetTemperature, h, 7) == n.NVML_ERROR_INVALID_ARGUMENT
assert n.nvmlDeviceGetTemperatureThreshold(h, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == 89
for kind in (n.NVML_TEMPERATURE_THRESHOLD_GPU_MAX, n.NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN):
    assert refusal(n.nvmlDeviceGetTemperatureThreshold, h, kind) == n.NVML_ERROR_NOT_SUPPORTED
assert n.nvmlDeviceGetEnforcedPowerLimit(h) == 700000
assert n.nvmlDeviceGetTotalEnergyConsumption(h) == 1 << 40
assert [n.nvmlDeviceGetClockInfo(h, i) for i in range(4)] == [1000, 1001, 1002, 1003]
assert n.nvmlDeviceGetClock(h, n.NVML_CLOCK_SM, n.NVML_CLOCK_ID_CURRENT) == 1001
assert refusal(n.nvmlDeviceGetClockInfo, h, 1 << 20) == n.NVML_ERROR_INVALID_ARGUMENT
assert n.nvmlDeviceGetPerformanceState(h) == 0
assert n.nvmlDeviceGetCurrPcieLinkGeneration(h) == 5
assert n.nvmlDeviceGetPersistenceMode(h) == 1
for call in (n.nvmlDeviceGetFanSpeed, n.nvmlDeviceGetNumFans):
    assert refusal(call, h) == n.NVML_ERROR_NOT_SUPPORTED
wanted = (n.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, n.NVML_FI_DEV_POWER_INSTANT, 1 << 20)
energy, power, unknown = n.nvmlDeviceGetFieldValues(h, wanted)
assert (energy.nvmlReturn, energy.value.ullVal) == (0, 1 << 40)
assert (energy.valueType, energy.fieldId) == (n.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, wanted[0])
assert abs(energy.timestamp / 1e6 - time.time()) < 600 and energy.latencyUsec >= 0
assert power.nvmlReturn == 0 and power.value.uiVal
assert unknown.nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED, "each says for itself"
begun, asked = time.monotonic(), {n.nvmlDeviceGetPowerUsage(h) for _ in range(1000)}
assert len(asked) <= 2 + (time.monotonic() - begun) / 0.1, "one answer serves many questions"
time.sleep(0.12)
assert n.nvmlDeviceGetPowerUsage(h) > max(asked), "for a tenth of a second"
"""
    with StaticPool(tmp_path, vgpus=2, driver=driver) as pool:
        run(pool, code)


def test_what_only_the_node_knows_is_not_supported(pool: StaticPool) -> None:
    code = """
h = n.nvmlDeviceGetHandleByIndex(0)
for call, *rest in (
    (n.nvmlDeviceGetUtilizationRates,), (n.nvmlDeviceGetTemperature, 0),
    (n.nvmlDeviceGetPowerUsage,), (n.nvmlDeviceGetClockInfo, 1), (n.nvmlDeviceGetFanSpeed,),
):
    assert refusal(call, h, *rest) == n.NVML_ERROR_NOT_SUPPORTED, call
# The software GPU has no kernel driver.
assert refusal(n.nvmlSystemGetDriverVersion) == n.NVML_ERROR_NOT_SUPPORTED
"""
    run(pool, code)


def test_all_of_the_machine_is_as_near_to_a_vgpu(pool: StaticPool) -> None:
    """Programs bind themselves to these: processors, memory, and GPUs of a processor."""
    code = """
import math
def numbers(path):
    with open(path) as file:
        ranges = [part.split("-") for part in file.read().strip().split(",")]
    return {n for r in ranges for n in range(int(r[0]), int(r[-1]) + 1)}
def members(words):
    return {64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1}
processors = numbers("/sys/devices/system/cpu/online")
h = n.nvmlDeviceGetHandleByIndex(1)
words = math.ceil((max(processors) + 1) / 64)
assert members(n.nvmlDeviceGetCpuAffinity(h, words)) == processors
assert members(n.nvmlDeviceGetCpuAffinity(h, words + 1)) == processors
for scope in (n.NVML_AFFINITY_SCOPE_NODE, n.NVML_AFFINITY_SCOPE_SOCKET):
    assert members(n.nvmlDeviceGetCpuAffinityWithinScope(h, words, scope)) == processors
    assert 0 in members(n.nvmlDeviceGetMemoryAffinity(h, 16, scope))
assert refusal(n.nvmlDeviceGetMemoryAffinity, h, 1, 2) == n.NVML_ERROR_INVALID_ARGUMENT
assert refusal(n.nvmlDeviceGetCpuAffinity, h, 0) == n.NVML_ERROR_INVALID_ARGUMENT
may = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(may)})
n.nvmlDeviceSetCpuAffinity(h)
assert os.sched_getaffinity(0) >= may, "it is bound to those that are near"
library = ctypes.CDLL("libnvidia-ml.so.1")
count, two = ctypes.c_uint(), (ctypes.c_void_p * 2)()
def near(processor, room):
    count.value = room
    to = two if room else None
    return library.nvmlSystemGetTopologyGpuSet(processor, ctypes.byref(count), to)
assert near(min(processors), 0) == 0 and count.value == 2
assert near(min(processors), 1) == 0 and (two[0], two[1]) == (ctypes.addressof(
    n.nvmlDeviceGetHandleByIndex(0).contents), None)
assert near(max(processors) + 1, 0) == n.NVML_ERROR_INVALID_ARGUMENT
assert len(n.nvmlDeviceGetTopologyNearestGpus(h, n.NVML_TOPOLOGY_INTERNAL)) == 1
assert len(n.nvmlDeviceGetTopologyNearestGpus(h, n.NVML_TOPOLOGY_SYSTEM)) == 0
assert len(n.nvmlDeviceGetFieldValues(h, [])) == 0
"""
    run(pool, code)


def test_it_must_be_started_and_handles_must_be_its_own(pool: StaticPool) -> None:
    code = """
n.nvmlInit()
n.nvmlShutdown()
assert n.nvmlDeviceGetCount() == 2, "starts are counted"
library = ctypes.CDLL("libnvidia-ml.so.1")
count = ctypes.c_uint(64)
assert library.nvmlDeviceGetIndex(None, ctypes.byref(count)) == 2
assert library.nvmlDeviceGetIndex(ctypes.c_void_p(64), ctypes.byref(count)) == 2
handle = ctypes.c_void_p()
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert library.nvmlDeviceGetName(handle, None, 64) == 2
short = ctypes.create_string_buffer(4)
assert library.nvmlDeviceGetName(handle, short, 4) == n.NVML_ERROR_INSUFFICIENT_SIZE
memory = (ctypes.c_ulonglong * 5)()
assert library.nvmlDeviceGetMemoryInfo_v2(handle, memory) == 25, "the struct says its version"
n.nvmlShutdown()
assert refusal(n.nvmlDeviceGetCount) == n.NVML_ERROR_UNINITIALIZED
assert library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(count)) == 1
assert library.nvmlShutdown() == 1
library.nvmlErrorString.restype = ctypes.c_char_p
assert library.nvmlErrorString(3) == b"Not Supported"
assert library.nvmlErrorString(-3) == b"Unknown Error"
"""
    run(pool, code)


def test_hidden_vgpus_are_counted_and_not_asked_for(tmp_path: Path) -> None:
    code = """
cuda = ctypes.CDLL("libcuda.so.1")
hidden, shown = (n.nvmlDeviceGetHandleByIndex(i) for i in range(2))
assert refusal(n.nvmlDeviceGetName, hidden) == n.NVML_ERROR_NO_PERMISSION
name, raw, count = n.nvmlDeviceGetName(shown), (ctypes.c_ubyte * 16)(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
assert cuda.cuDeviceGetUuid_v2(raw, 0) == 0
uuid = n.nvmlDeviceGetUUID(shown)
assert uuid[4:].replace("-", "") == bytes(raw).hex(), "NVML's second is CUDA's first"
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)) == 1
assert n.nvmlDeviceGetMemoryInfo(shown).total == 512 << 20
assert n.nvmlDeviceGetCount() == 2
print(count.value)
"""
    with StaticPool(tmp_path, vgpus=2, memory_mib=512) as pool:
        assert run(pool, code, CUDA_VISIBLE_DEVICES="1") == "1"


@pytest.mark.parametrize("hidden", ["", "-1", "7"])
def test_no_session_is_opened_where_all_are_hidden(pool: StaticPool, hidden: str) -> None:
    code = """
cuda = ctypes.CDLL("libcuda.so.1")
assert n.nvmlDeviceGetCount() == 2
assert refusal(n.nvmlDeviceGetName, n.nvmlDeviceGetHandleByIndex(0)) == n.NVML_ERROR_NO_PERMISSION
print(cuda.cuInit(0))
"""
    assert run(pool, code, CUDA_VISIBLE_DEVICES=hidden) == "100"  # CUDA_ERROR_NO_DEVICE
    assert pool.sessions() == 0


def test_a_forked_child_counts_and_asks_no_further(pool: StaticPool) -> None:
    code = """
cuda = ctypes.CDLL("libcuda.so.1")
h = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceGetName(h)
child = os.fork()
if child == 0:
    right = n.nvmlDeviceGetCount() == 2 and refusal(n.nvmlDeviceGetName, h) == 999
    os._exit(0 if right else 1)
assert os.waitpid(child, 0)[1] == 0
assert n.nvmlDeviceGetName(h)
"""
    run(pool, code)


def test_it_exports_what_the_header_declares_and_nothing_else() -> None:
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", find_native("libnvidia-ml.so.1")],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[2] for line in shown.stdout.splitlines()}
    root = Path(__file__).resolve().parents[2]
    rows = (root / "native/api/imported/cuda13/nvml_functions.json").read_text()
    assert names == set(re.findall(r'"name": "(\w+)"', rows))
