# SPDX-License-Identifier: Apache-2.0
"""How tests/gpu/delays.py has programs measure in turns: workloads.py itself, with what it runs."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))

from tenants import TenantFailed, Tenants  # noqa: E402
from turns import of_neighbours, order, take_turns  # noqa: E402

OTHERS = ["a", "b", "c"]

#: What workloads.py calls of PyTorch besides the workloads, which are this test's own.
FAKE_TORCH = """
class Tensor:
    def __getattr__(self, name):
        return lambda *given, **named: self
    def __float__(self):
        return 1.0
def zeros(*given, **named):
    return Tensor()
def as_tensor(value):
    return Tensor()
def manual_seed(seed):
    pass
class cuda:
    synchronize = staticmethod(lambda: None)
"""

#: Steps of one process at a time, on a machine that is slower with each of them.
PROGRAM = """
import pathlib, sys, time, workloads
log, factor = pathlib.Path(sys.argv.pop(1)), float(sys.argv.pop(1))
def build(name):
    def step():
        with log.open("a") as file:
            file.write(f"{factor} {name}\\n")
        time.sleep(0.001)
    return lambda torch: (step, "steps/s", 1.0)
for name in ("one", "two"):
    workloads.WORKLOADS[name] = (build(name), 3, 5)
workloads.main()
"""


def test_each_program_is_between_two_turns_of_the_one_it_is_held_against() -> None:
    rounds = [order("native", OTHERS, number) for number in range(6)]
    assert all(names[::2] == ["native"] * 4 for names in rounds)
    assert all(sorted(names[1::2]) == OTHERS for names in rounds)
    assert len({tuple(names) for names in rounds}) == 6, "each round has an order of its own"
    for place in (1, 3, 5):
        assert Counter(names[place] for names in rounds) == dict.fromkeys(OTHERS, 2)


def test_a_machine_that_becomes_slower_is_no_difference_between_programs() -> None:
    names = order("native", OTHERS, 0)
    own = {"native": 100.0, "a": 200.0, "b": 100.0, "c": 50.0}
    speeds = [1 - 0.05 * turn for turn in range(len(names))]  # two thirds in the end
    rates = [own[name] * speed for name, speed in zip(names, speeds, strict=True)]
    ratios = {
        name: rates[names.index(name)] / native
        for name, native in of_neighbours(names, rates).items()
    }
    assert ratios == pytest.approx({"a": 2, "b": 1, "c": 0.5})


def test_a_warm_workload_measures_when_it_is_told_and_does_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    log = tmp_path / "steps"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{GPU}"}

    def done() -> Counter[str]:
        lines = log.read_text().splitlines()
        log.write_text("")
        return Counter(lines)

    with Tenants() as tenants:
        command = [sys.executable, "-c", PROGRAM, str(log)]
        told = {
            name: tenants.start(name, [*command, str(n), "one", "two", "--when-told"], environment)
            for n, name in enumerate(["native", *OTHERS])
        }
        assert tenants.wait_ready() == [{"ready": ["one", "two"]}] * 4
        assert done() == {f"{n}.0 {name}": 3 for n in range(4) for name in ("one", "two")}
        task = {"name": "two", "lead": 0.0, "seconds": 0.05}
        names = order("native", OTHERS, 0)
        said = take_turns(told, names, task)
        steps = done()
        assert set(steps) == {f"{n}.0 two" for n in range(4)}
        assert [line["name"] for line in said] == ["two"] * len(names)
        assert all(0 < line["rate"] <= 1000 and line["unit"] == "steps/s" for line in said)
        assert set(of_neighbours(names, [line["rate"] for line in said])) == set(OTHERS)
        # however short a turn is, it has a step, and so has what goes before it
        take_turns(told, ["b"], {"name": "one", "lead": 0.0, "seconds": 0.0})
        assert done() == {"2.0 one": 2}
    assert [tenant.process.returncode for tenant in told.values()] == [0] * 4


def test_a_program_that_fails_in_its_turn_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{GPU}"}
    with Tenants() as tenants:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "steps"), "1", "one"]
        told = {"one": tenants.start("one", [*command, "--when-told"], environment)}
        tenants.wait_ready()
        with pytest.raises(TenantFailed, match=r"one ended with status 1\n[^$]*KeyError: 'two'"):
            take_turns(told, ["one"], {"name": "two", "lead": 0.0, "seconds": 0.0})
