# SPDX-License-Identifier: Apache-2.0
"""CUPTI's records and numbers as we have them are those of NVIDIA's headers, of both versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cupti_programs import cuda_headers, cupti_headers

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {
    "Kernel": ("KernelRecord", """
        registersPerThread=registers start=start gridX=grid blockX=block
        correlationId=correlation name=name graphNodeId=graph_node graphId=graph
        clusterX=cluster localMemoryTotal_v2=local_total_wide channelID=channel
        sharedMemoryExecuted=shared_executed launchType=launch_type gridId=grid_id
    """),
    "CUpti_ActivityMemcpy6": ("CopyRecord", """
        copyKind=copy_kind srcKind=from_kind bytes=bytes correlationId=correlation
        graphNodeId=graph_node graphId=graph copyCount=copies
    """),
    "CUpti_ActivityMemcpyPtoP4": ("PeerCopyRecord", """
        srcDeviceId=from_device dstContextId=to_context correlationId=correlation
        graphNodeId=graph_node
    """),
    "CUpti_ActivityMemset4": ("FillRecord", """
        value=value bytes=bytes correlationId=correlation memoryKind=memory_kind
        graphNodeId=graph_node graphId=graph
    """),
    "CUpti_ActivityAPI": ("CallRecord", """
        cbid=cbid start=start threadId=thread returnValue=result
    """),
    "CUpti_ActivityExternalCorrelation": ("ExternalRecord", """
        externalKind=external_kind externalId=external correlationId=correlation
    """),
    "CUpti_CallbackData": ("CallbackData", """
        functionName=function symbolName=symbol correlationData=data correlationId=correlation
    """),
}  # fmt: skip
NUMBERS = {
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": "kConcurrentKernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY2": "kMemcpyPeer",
    "CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION": "kExternalCorrelation",
    "CUPTI_ERROR_NOT_SUPPORTED": "kNotSupported",
    "CUPTI_ERROR_MAX_LIMIT_REACHED": "kMaxLimitReached",
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": "kMultipleSubscribers",
    "CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0": "kCustom0",
    "CUPTI_ACTIVITY_MEMCPY_KIND_PTOP": "kPeer",
    "CUPTI_CB_DOMAIN_RUNTIME_API": "kRuntimeApi",
}


@pytest.mark.parametrize("major", [13, 12])
def test_records_and_numbers_are_nvidias(major: int, tmp_path: Path) -> None:
    kernel = "CUpti_ActivityKernel10" if major == 13 else "CUpti_ActivityKernel9"
    lines = ["#include <cupti.h>", '#include "cupti_abi.h"', f"using Kernel = {kernel};"]
    for theirs, (ours, fields) in FIELDS.items():
        name = f"sluice::cupti::{ours}"
        # CUDA 12's kernel record ends before the newest's last field; readers go by the offsets.
        shorter = theirs == "Kernel" and major == 12
        size = f"offsetof({name}, device_launched)" if shorter else f"sizeof({name})"
        lines.append(f"static_assert(sizeof({theirs}) == {size});")
        for pair in fields.split():
            a, b = pair.split("=")
            lines.append(f"static_assert(offsetof({theirs}, {a}) == offsetof({name}, {b}));")
    lines += [f"static_assert(int({a}) == int(sluice::cupti::{b}));" for a, b in NUMBERS.items()]
    source = tmp_path / "records.cc"
    source.write_text("\n".join(lines) + "\n")
    folders = [cupti_headers(major), *cuda_headers(major), ROOT / "native"]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof"]
    subprocess.run([*command, *(f"-I{f}" for f in folders), source], check=True, timeout=120)


@pytest.mark.parametrize("major", [13, 12])
def test_the_numbers_of_calls_are_what_an_import_gives(major: int, tmp_path: Path) -> None:
    tool = ROOT / "native" / "codegen" / "import_cupti.py"
    headers = cupti_headers(major)
    command = [sys.executable, str(tool), "--include", str(headers), "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    kept = ROOT / "native" / "api" / "imported" / f"cuda{major}" / "cupti_calls.json"
    assert json.loads((tmp_path / "cupti_calls.json").read_text()) == json.loads(kept.read_text())
