# SPDX-License-Identifier: Apache-2.0
"""NVML is asked of the driver's own library, also where the loader would find Sluice's first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

from sluice.server.gpus.nvml_facts import SWITCH, nvlink_groups

ROOT = Path(__file__).resolve().parents[2]
NVML = """
#include <string.h>
int nvmlInitWithFlags(unsigned f){ return 0; }
int nvmlInit_v2(void){ return 0; }
int nvmlShutdown(void){ return 0; }
int nvmlDeviceGetCount_v2(unsigned* n){ *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d){ *d = d; return 0; }
int nvmlDeviceGetUUID(void* d, char* text, unsigned n){ strcpy(text, "GPU-theirs"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void* d, int* major, int* minor){
  *major = 9; *minor = 0; return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void* d, unsigned long long* m){ m[2] = 384ull << 20; return 0; }
"""
TRAP = "#include <stdlib.h>\nint nvmlInitWithFlags(unsigned f){ abort(); }"
ASK = """
import sys
from sluice.server.gpus.nvml_facts import facts_of_gpus
facts = facts_of_gpus(sys.argv[1])
print({uuid: (fact.kept_mib, fact.architecture, fact.numa_node) for uuid, fact in facts.items()})
"""


def library(folder: Path, source: str) -> Path:
    folder.mkdir()
    path = folder / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-x", "c", "-Wl,-soname,libnvidia-ml.so.1"]
    command = ["gcc", *options, "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return folder


def kept(driver_folder: Path, first_found: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(driver_folder / "libcuda.so.1")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "python"),
            "LD_LIBRARY_PATH": str(first_found),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_drivers_own_nvml_is_asked(tmp_path: Path) -> None:
    theirs, ours = library(tmp_path / "theirs", NVML), library(tmp_path / "ours", TRAP)
    assert kept(theirs, ours) == "{'GPU-theirs': (384, 'sm_90', -1)}"


def test_without_one_beside_the_driver_none_is_asked(tmp_path: Path) -> None:
    ours = library(tmp_path / "ours", TRAP)
    assert kept(tmp_path, ours) == "{}"


GROUPS = [
    pytest.param([("a", set()), ("b", set())], ["", ""], id="no links"),
    pytest.param([("a", {"b"}), ("b", {"a"}), ("c", set())], ["nvlink0", "nvlink0", ""], id="two"),
    pytest.param(
        [("a", {"b"}), ("c", {"d"}), ("b", {"a"}), ("d", {"c"})],
        ["nvlink0", "nvlink1", "nvlink0", "nvlink1"],
        id="two pairs",
    ),
    pytest.param(
        [("a", {"b"}), ("b", {"a", "c"}), ("c", {"b"})], ["nvlink0"] * 3, id="over another"
    ),
    pytest.param([("a", {SWITCH}), ("b", {SWITCH})], ["nvlink0"] * 2, id="over a switch"),
    pytest.param([("a", {"elsewhere"})], [""], id="to a GPU that this host does not see"),
]


@pytest.mark.parametrize(("gpus", "groups"), GROUPS)
def test_gpus_that_nvlink_joins_are_a_group(
    gpus: list[tuple[str, set[str]]], groups: list[str]
) -> None:
    assert nvlink_groups(gpus) == groups
