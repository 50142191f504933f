# SPDX-License-Identifier: Apache-2.0
"""What benchmark and GPU runs measure becomes records that documents can keep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gpu"), str(HERE.parents[1] / "dev")]

import acceptance  # noqa: E402
import footprint  # noqa: E402
import run_ddp  # noqa: E402
import run_workloads  # noqa: E402
from acceptance import Checked  # noqa: E402
from figure import Figure, records  # noqa: E402
from measurements import Run, read_kept  # noqa: E402

from sluice.server.gpus.acceptance import Check, Outcome, Report  # noqa: E402


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SLUICE_COMMIT", "85737fd7b6d1")
    return Run("make bench", rounds=3)


def test_a_figure_has_its_ratio_and_what_is_wanted(run: Run) -> None:
    call = Figure("sync_call_us", 2.2, "us", floor=0.5, floor_of="ping", limit=1.75, rounds=9)
    rate = Figure("grants_per_s", 1150.0, "1/s", limit=1000)
    assert call.ratio == pytest.approx(4.4)
    assert call.wanted == "at most 1.75"
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


def test_workloads_of_another_pytorch_have_a_prefix(run: Run) -> None:
    native, ours = [workload(250, None)], [workload(325, 256)]
    found = run_workloads.records(["gpt2_generate"], {"native": native, "shm": ours}, run, "cu12_")
    assert not [r.problems() for r in found if r.problems()]
    assert {r.name.removeprefix("cu12_") for r in found} == {
        "gpt2_generate", "gpt2_generate_round_trips_per_token", "gpt2_generate_commands_per_token",
        "gpt2_generate_cpu_s", "import_s", "first_kernel_s",
    }  # fmt: skip
    assert all(r.name.startswith("cu12_") for r in found)


def test_another_pytorch_says_for_which_cuda_it_is_and_what_was_left_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    [packages] = (tmp_path / "lib").glob("python3.*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch" / "version.py").write_text("cuda = '12.8'\n")
    (packages / "torch" / "__init__.py").write_text(
        "from torch import version\n__version__ = '2.9.1+cu128'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("SLUICE_VGPU", "1")
    python = tmp_path / "bin" / "python"
    assert run_workloads.torch_version(python) == {"PyTorch": "2.9.1 for CUDA 12.8"}
    (packages / "notes.json").write_text('{"machine code": "for sm_90 alone"}')
    said = run_workloads.torch_version(python)
    assert said == {"PyTorch": "2.9.1 for CUDA 12.8", "machine code": "for sm_90 alone"}
    kept = run_workloads.own({"SLUICE_VGPU": "1", "PYTHONPATH": "x", "PATH": "/bin"})
    assert kept == {"PATH": "/bin"}


def test_a_worker_has_no_native_figure_beside_it(run: Run) -> None:
    native = {"gpu_mib": 618.0, "host_mib": 322.0, "cpu": 0.48, "took": 1.0}
    ours = native | {"worker_mib": 37.0, "worker_cpu": 0.32, "host_mib": 273.0}
    found = footprint.records({"native": native, "shm": ours, "tcp": ours}, run)
    assert not [r.problems() for r in found if r.problems()]
    assert {r.name: r.floor for r in found if r.channel == "shm"} == {
        "idle_gpu_mib": 618, "idle_host_mib": 322, "idle_worker_mib": None,
        "launches_100000_cpu_s": 0.48, "launches_100000_worker_cpu_s": None,
    }  # fmt: skip


def said(steps: float, reduce: float, last: str = "0.98", agree: bool = True) -> run_ddp.Said:
    return {
        "losses": ["1.00", last], "ranks_agree": agree,
        "steps_per_s": steps, "all_reduce_gib_s": reduce,
    }  # fmt: skip


def test_ranks_are_held_against_native_in_pairs(run: Run) -> None:
    native = [said(600, 280), said(620, 279), said(610, 281)]
    ours = [said(900, 268.8), said(930, 279), said(976, 267)]
    found = run_ddp.records(native, ours, run)
    assert not [r.problems() for r in found if r.problems()]
    steps, reduce = found
    assert (steps.value, steps.floor, steps.ratio, steps.rounds) == (930, 610, 1.5, 3)
    assert (steps.ratio_spread, steps.spread) == ((1.5, 1.6), (900, 976))
    assert (reduce.unit, reduce.ratio) == ("GiB/s", 0.96)
    assert {r.name for r in found} == {r.name for r in read_kept()["ddp"]}


def test_ranks_that_compute_something_else_are_named() -> None:
    good = said(1, 1)
    assert run_ddp.differences([good, good], [good, good]) == []
    [losses, weights] = run_ddp.differences([good], [said(1, 1, last="0.97", agree=False)])
    assert losses.startswith("Sluice: losses ['1.00', '0.97']")
    assert weights == "Sluice: ranks end with weights that differ"


def card(model: str, seconds: float, **figures: float) -> Checked:
    checks = (Check("copies", ok=True, text="", figures=figures),)
    return Checked(model, Report(Outcome.PASSED, "", checks), seconds)


H200 = {
    "from_host_gbs": 55.0, "to_host_gbs": 54.0, "on_device_gbs": 4260.0,
    "fp32_tflops": 51.0, "bf16_tflops": 873.0,
}  # fmt: skip


def test_a_card_is_held_against_what_a_healthy_one_reaches(run: Run) -> None:
    found = acceptance.records([card("NVIDIA H200", 13.0, **H200)], run)
    assert not [r.problems() for r in found if r.problems()]
    assert {r.name: (r.value, r.limit) for r in found} == {
        "acceptance_s": (13, None),
        "acceptance_bus_gb_s": (54, 12.8),  # the worse direction
        "acceptance_memory_gb_s": (4260, 2400),
        "acceptance_fp32_tflop_s": (51, 26.8),
        "acceptance_bf16_tflop_s": (873, 296.7),
    }
    assert {r.name for r in found} == {r.name for r in read_kept()["acceptance"]}
    assert {r.spread for r in found} == {None}


def test_cards_are_told_by_their_median_and_spread(run: Run) -> None:
    cards = [card("a new one", s, **H200 | {"on_device_gbs": 300 * s}) for s in (12.0, 14.0, 13.0)]
    by_name = {r.name: r for r in acceptance.records(cards, run)}
    memory = by_name["acceptance_memory_gb_s"]
    assert (memory.value, memory.spread, memory.limit) == (3900, (3600, 4200), None)
    assert by_name["acceptance_s"].spread == (12, 14)


def test_what_a_card_cannot_do_has_no_record(run: Run) -> None:
    figures = {name: value for name, value in H200.items() if name != "bf16_tflops"}
    found = acceptance.records([card("Tesla T4", 13.0, **figures)], run)
    assert "acceptance_bf16_tflop_s" not in {r.name for r in found}
    assert len(found) == 4
