# SPDX-License-Identifier: Apache-2.0
"""What a program that profiles itself by CUPTI is told, on the software GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cupti_programs import build_cupti_program
from static_pool import StaticPool

HERE = Path(__file__).resolve().parent
Record = dict[str, Any]
TO_DEVICE, TO_HOST = 1, 2
PAGEABLE, PINNED, DEVICE = 1, 2, 3
CUPTI_NOT_SUPPORTED, CUPTI_MULTIPLE_SUBSCRIBERS = 27, 39
CUSTOM0 = 3


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The program for each version of CUDA."""
    folder = tmp_path_factory.mktemp("profiling")
    source = HERE / "activity.cu"
    return {n: build_cupti_program(source, folder / f"activity{n}", n) for n in (13, 12)}


@pytest.fixture(scope="session")
def managed_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """managed.cu."""
    folder = tmp_path_factory.mktemp("managed")
    return build_cupti_program(HERE / "managed.cu", folder / "managed", 13)


def profile(program: Path, pool: StaticPool, *arguments: str) -> dict[str, list[Record]]:
    """Its records by kind."""
    result = subprocess.run(
        [program, *arguments],
        env=pool.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("counters are of all its sessions") == 1, "a reason, once"
    found: dict[str, list[Record]] = {}
    for line in result.stdout.splitlines():
        record = json.loads(line)
        found.setdefault(record["kind"], []).append(record)
    return found


def check(found: dict[str, list[Record]], *, times: bool = True) -> None:
    """All that must hold, whichever the channel and the version."""
    told = found["told"][0]
    assert not found.get("other")
    calls = {c["correlation"]: c for c in found["runtime"] + found["driver"]}
    assert len(calls) == len(found["runtime"] + found["driver"]), "a number for each call"

    kernels = sorted(found["kernel"], key=lambda k: k["start"])
    assert [k["shared"] for k in kernels] == [0, 16, 32]
    for kernel in kernels:
        assert kernel["name"] == "_Z5scalePfif"
        assert (kernel["grid"], kernel["block"]) == (4, 256)
        assert kernel["stream"] == told["stream"]
        assert (kernel["device"], kernel["context"]) == (0, 1)
        assert "LaunchKernel" in calls[kernel["correlation"]]["name"]
    assert len({k["correlation"] for k in kernels}) == 3

    large = told["large"]
    copies = {(c["copy"], c["bytes"]): c for c in found["copy"]}
    assert len(copies) == len(found["copy"]) == 3, "a copy in pieces is one"
    up, down, pinned = (copies[key] for key in ((1, large), (2, large), (2, 4000)))
    assert (up["from"], up["to"]) == (PAGEABLE, DEVICE)
    assert (down["from"], down["to"]) == (DEVICE, PAGEABLE)
    assert (pinned["from"], pinned["to"]) == (DEVICE, PINNED)
    assert calls[up["correlation"]]["name"] == "cudaMemcpy_v3020"
    assert calls[pinned["correlation"]]["name"] == "cudaMemcpyAsync_v3020"

    (fill,) = found["fill"]
    assert (fill["value"], fill["bytes"]) == (0, 4000)
    assert calls[fill["correlation"]]["name"] == "cudaMemset_v3020"

    assert {(x["of"], x["id"]) for x in found["external"]} == {(CUSTOM0, 1234567890123)}
    assert {k["correlation"] for k in kernels} <= {x["correlation"] for x in found["external"]}
    assert up["correlation"] not in {x["correlation"] for x in found["external"]}
    names = [c["name"] for c in found["driver"]]
    assert len(names) == 1, f"the runtime's own calls of the driver are not the program's: {names}"
    assert names[0].startswith("cuCtxSynchronize")

    assert told["popped"] == 1234567890123
    assert told["dropped"] == 0
    assert told["buffers"] == 0, "every buffer was handed back"
    assert told["device"] == 0
    assert (told["entered"], told["left"], told["wrong"]) == (1, 1, 0)
    assert told["again"] == CUPTI_MULTIPLE_SUBSCRIBERS
    assert told["counters"] == CUPTI_NOT_SUPPORTED

    for record in [*kernels, *found["copy"], fill, *calls.values()]:
        assert told["began"] <= record["start"] <= record["end"] <= told["ended"] + 1_000_000
    for record in [*kernels, *found["copy"], fill] if times else []:
        assert record["start"] >= calls[record["correlation"]]["start"]


@pytest.mark.parametrize("major", [13, 12])
@pytest.mark.parametrize("tcp", [False, True], ids=["shm", "tcp"])
def test_a_profiler_is_told_of_kernels_copies_and_calls(
    programs: dict[int, Path], tmp_path: Path, tcp: bool, major: int
) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        check(profile(programs[major], pool))


def test_a_profiler_may_bring_its_own_clock(programs: dict[int, Path], tmp_path: Path) -> None:
    with StaticPool(tmp_path) as pool:
        check(profile(programs[13], pool, "ticks"), times=False)


@pytest.mark.parametrize("tcp", [False, True], ids=["shm", "tcp"])
def test_pages_of_managed_memory_move_unseen(
    managed_program: Path, tmp_path: Path, tcp: bool
) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        done = pool.run(managed_program)
    seen = "sum 10000100000: 2 kernels, 1 copies of 400000 bytes, 1 fills\n"
    assert done.stdout == seen, done.stderr
