# SPDX-License-Identifier: Apache-2.0
"""What benchmark and GPU runs measure becomes records that documents can keep."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gpu"), str(HERE.parents[1] / "dev")]

import footprint  # noqa: E402
import run_workloads  # noqa: E402
from figure import Figure, records  # noqa: E402
from measurements import Run  # noqa: E402


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SLUICE_COMMIT", "85737fd7b6d1")
    return Run("make bench", rounds=3)


def test_a_figure_has_its_ratio_and_what_is_wanted(run: Run) -> None:
    call = Figure("sync_call_us", 2.2, "us", floor=0.5, floor_of="ping", limit=1.75, rounds=9)
    rate = Figure("grants_per_s", 1150.0, "1/s", limit=1000)
    assert (call.ratio, call.wanted) == (pytest.approx(4.4), "at most 1.75")
    assert (rate.ratio, rate.wanted) == (None, "at least 1,000")
    kept = records([call, rate], run)
    assert [(r.ratio, r.limit, r.better, r.rounds) for r in kept] == [
        (4.4, 1.75, "lower", 9), (None, 1000, "higher", 3),
    ]  # fmt: skip
    assert not [r.problems() for r in kept if r.problems()]


def workload(rate: float, sent: float | None) -> run_workloads.Lines:
    return {
        "gpt2_generate": {
            "rate": rate, "unit": "tokens/s", "commands": sent, "round_trips": sent,
            "cpu_s": 0.5, "import_s": 2.0, "first_kernel_s": 0.1, "checksum": 1.0,
        },
    }  # fmt: skip


def test_workloads_are_held_against_native_in_pairs(run: Run) -> None:
    native = [workload(rate, None) for rate in (250, 260, 240)]
    ours = [workload(rate, 256) for rate in (325, 312, 336)]
    found = run_workloads.records(["gpt2_generate"], {"native": native, "tcp": ours}, run)
    assert not [r.problems() for r in found if r.problems()]
    by_name = {r.name: r for r in found}
    rate = by_name["gpt2_generate"]
    assert (rate.value, rate.floor, rate.ratio, rate.channel) == (325, 250, 1.3, "tcp")
    assert (rate.ratio_spread, rate.spread) == ((1.2, 1.4), (312, 336))
    assert by_name["gpt2_generate_commands_per_token"].value == 2
    assert by_name["first_kernel_s"].ratio == 1
    assert set(by_name) == {
        "gpt2_generate", "gpt2_generate_round_trips_per_token", "gpt2_generate_commands_per_token",
        "gpt2_generate_cpu_s", "import_s", "first_kernel_s",
    }  # fmt: skip


def test_a_worker_has_no_native_figure_beside_it(run: Run) -> None:
    native = {"gpu_mib": 618.0, "host_mib": 322.0, "cpu": 0.48, "took": 1.0}
    ours = native | {"worker_mib": 37.0, "worker_cpu": 0.32, "host_mib": 273.0}
    found = footprint.records({"native": native, "shm": ours, "tcp": ours}, run)
    assert not [r.problems() for r in found if r.problems()]
    assert {r.name: r.floor for r in found if r.channel == "shm"} == {
        "idle_gpu_mib": 618, "idle_host_mib": 322, "idle_worker_mib": None,
        "launches_100000_cpu_s": 0.48, "launches_100000_worker_cpu_s": None,
    }  # fmt: skip
