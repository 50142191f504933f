# SPDX-License-Identifier: Apache-2.0
"""What people look at GPUs with shows their vGPUs, as its authors ship it: by NVML, or by reading
nvidia-smi. None of them takes a vGPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from node_nvml import driver_beside_nvml
from package_environment import python_with
from static_pool import StaticPool
from vgpu_user import VgpuUser

from sluice.config.native_files import find_native

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "Sluice software GPU (CPU)"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="session")
def python() -> Path:
    return python_with(Path(__file__).with_name("requirements.txt"), "monitors")


@dataclass
class Watched:
    """A pool with one running program, and what looks at it."""

    pool: StaticPool
    user: VgpuUser
    python: Path
    path: str

    def run(self, *command: str) -> str:
        """A program of the environment: its standard output."""
        done = subprocess.run(
            [str(self.python.parent / command[0]), *command[1:]],
            env=self.pool.environment(PATH=self.path, TERM="dumb", COLUMNS="120"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert self.pool.sessions() == 1, "the program's own, and none of who looks"
        return done.stdout


@pytest.fixture(params=["shm", "tcp"], scope="module")
def watched(
    request: pytest.FixtureRequest, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp(f"monitors-{request.param}")
    for each in (folder, *list(folder.parents)[:2]):
        each.chmod(0o755)
    node, programs = folder / "node", folder / "bin"
    node.mkdir()
    programs.mkdir()
    # what the bundle's bin/nvidia-smi is, of this checkout
    smi = programs / "nvidia-smi"
    smi.write_text(
        f"#!/bin/sh\nPYTHONPATH={CHECKOUT}/python "
        f"SLUICE_LIBRARIES={find_native('libnvidia-ml.so.1').parent} "
        f'exec {sys.executable} -m sluice.guest_runtime smi "$@"\n'
    )
    smi.chmod(0o755)
    driver = driver_beside_nvml(node)
    tcp = request.param == "tcp"
    with (
        StaticPool(folder, memory_mib=512, driver=driver, tcp=tcp) as pool,
        VgpuUser(pool.environment()) as user,
    ):
        yield Watched(pool, user, python, f"{programs}:{os.environ['PATH']}")


def test_nvidia_ml_py(watched: Watched) -> None:
    code = """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
(process,) = n.nvmlDeviceGetComputeRunningProcesses(h)
print(json.dumps([
    n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), n.nvmlDeviceGetUUID(h), process.pid,
    process.usedGpuMemory >> 20, n.nvmlDeviceGetTemperature(h, 0),
    n.nvmlDeviceGetUtilizationRates(h).gpu,
]))
"""
    user = watched.user
    shown = json.loads(watched.run("python", "-c", code))
    assert shown == [1, NAME, user.uuid, user.pid, 64, 41, 37]


def test_gpustat(watched: Watched) -> None:
    [gpu] = json.loads(watched.run("gpustat", "--json"))["gpus"]
    assert (gpu["uuid"], gpu["name"]) == (watched.user.uuid, NAME)
    assert (gpu["memory.total"], gpu["memory.used"]) == (512, 64)
    assert (gpu["temperature.gpu"], gpu["utilization.gpu"]) == (41, 37)
    assert gpu["power.draw"] == 120
    [process] = gpu["processes"]
    assert (process["pid"], process["gpu_memory_usage"]) == (watched.user.pid, 64)
    assert f"[0] {NAME} | 41" in watched.run("gpustat", "--no-color", "-cpu")


def test_nvitop(watched: Watched) -> None:
    shown = watched.run("nvitop", "-1", "--no-unicode")
    assert "64.00MiB / 512.0MiB" in shown
    assert "41C" in shown
    assert f" {watched.user.pid} C " in shown
    code = """
import json, nvitop
(device,) = nvitop.Device.all()
print(json.dumps([device.uuid(), device.memory_total() >> 20, list(device.processes())]))
"""
    shown = json.loads(watched.run("python", "-c", code))
    assert shown == [watched.user.uuid, 512, [watched.user.pid]]


def test_gputil_reads_our_nvidia_smi(watched: Watched) -> None:
    code = """
import json, GPUtil
(gpu,) = GPUtil.getGPUs()
print(json.dumps([
    gpu.uuid, gpu.name, gpu.memoryTotal, gpu.memoryUsed, gpu.load, gpu.temperature,
    GPUtil.getAvailable(maxLoad=0.5, maxMemory=0.5), GPUtil.getAvailable(maxMemory=0.1),
]))
"""
    shown = json.loads(watched.run("python", "-c", code))
    assert shown == [watched.user.uuid, NAME, 512, 64, 0.37, 41, [0], []]


def test_py3nvml(watched: Watched) -> None:
    code = """
import json, py3nvml, py3nvml.py3nvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
(process,) = n.nvmlDeviceGetComputeRunningProcesses(h)
print(json.dumps([
    n.nvmlDeviceGetName(h), n.nvmlDeviceGetMemoryInfo(h).used >> 20, process.pid,
    n.nvmlDeviceGetTemperature(h, 0), py3nvml.get_free_gpus(),
]))
"""
    shown = json.loads(watched.run("python", "-c", code))
    assert shown == [NAME, 64, watched.user.pid, 41, [False]]
