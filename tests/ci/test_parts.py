# SPDX-License-Identifier: Apache-2.0
"""What .ci/run makes of its parts: order, budgets, failures, the table."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LIMITS = "hung_after_minutes = 1\nends_at_minutes = 5"
TO_NO_END = "not run to its end: ended with the time for all"


@pytest.fixture(scope="module")
def ci() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_parts", CHECKOUT / ".ci" / "parts.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_parts"] = module
    spec.loader.exec_module(module)
    return module


def plan(ci: ModuleType, folder: Path, *stages: dict[str, str], total: float = 100) -> object:
    lines = [f"total_minutes = {total}", LIMITS]
    for stage in stages:
        lines.append("[[stage]]\nparts = [")
        for name, command in stage.items():
            lines.append(f"  {{ name = {name!r}, command = {command!r}, minutes = 10 }},")
        lines.append("]")
    path = folder / "budgets.toml"
    path.write_text("\n".join(lines))
    return ci.read_plan(path)


def test_the_projects_own_budgets_hold_and_the_tests_come_first(ci: ModuleType) -> None:
    found = ci.read_plan(CHECKOUT / ".ci" / "budgets.toml")
    assert [part.command for part in found.stages[0]] == [("make", "test")]
    assert found.total_minutes <= 80


def test_every_target_is_one_of_the_makefile(ci: ModuleType) -> None:
    targets = [
        line.split(":")[0]
        for line in (CHECKOUT / "Makefile").read_text().splitlines()
        if not line.startswith(("\t", "#", "."))
    ]
    for stage in ci.read_plan(CHECKOUT / ".ci" / "budgets.toml").stages:
        for part in stage:
            assert part.command[0] == "make"
            assert part.command[1] in targets, part


def test_a_part_that_yields_lets_the_others_go_first(ci: ModuleType, tmp_path: Path) -> None:
    for yields, nice in ((True, 19), (False, os.nice(0))):
        part = ci.Part("a", ("nice",), 1, "a", yields)
        ci.run_part(part, ci.Outcome(part), tmp_path, ci.Limits(60, math.inf), shown=False)
        assert int((tmp_path / "a.log").read_text()) == nice


def test_parts_that_come_to_more_than_the_whole_are_refused(ci: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="come to 20 of 15 minutes"):
        plan(ci, tmp_path, {"a": "true"}, {"b": "true"}, total=15)
    plan(ci, tmp_path, {"a": "true", "b": "true"}, total=15)  # beside one another


def test_parts_of_a_lane_follow_one_another(ci: ModuleType, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    path = tmp_path / "budgets.toml"
    path.write_text(
        f"total_minutes = 20\n{LIMITS}\n[[stage]]\nparts = [\n"
        f"{{name = 'a', command = 'touch {first}', minutes = 10, lane = 'x'}},\n"
        f"{{name = 'b', command = 'mv {first} {second}', minutes = 10, lane = 'x'}},\n"
        "{name = 'c', command = 'true', minutes = 20}]\n"
    )
    found = ci.read_plan(path)
    assert ci.run_plan(found, tmp_path / "logs")[1]
    assert second.exists()
    path.write_text(path.read_text().replace("= 20\n", "= 19\n"))
    with pytest.raises(ValueError, match="come to 20 of 19"):
        ci.read_plan(path)


def test_output_comes_through_and_is_kept(
    ci: ModuleType, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    commands = plan(ci, tmp_path, {"one": "echo 7 passed"}, {"two": "echo a", "three": "echo b"})
    outcomes, good = ci.run_plan(commands, tmp_path / "logs")
    assert good
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    assert (tmp_path / "logs" / "two.log").read_text() == "a\n"
    assert b"7 passed\n" in capfdbinary.readouterr().out


def test_nothing_runs_behind_a_failure_and_the_table_says_so(
    ci: ModuleType, tmp_path: Path
) -> None:
    after = tmp_path / "after"
    commands = plan(ci, tmp_path, {"bad": "false", "beside": "true"}, {"behind": f"touch {after}"})
    outcomes, good = ci.run_plan(commands, tmp_path / "logs")
    assert not good
    assert not after.exists()
    shown = ci.table(outcomes, 1, 100).splitlines()
    assert "FAILED (status 1)" in shown[1]
    assert shown[2].endswith("passed")
    assert shown[3].endswith("not run")


def test_a_part_over_its_budget_is_named_and_fails_nothing(ci: ModuleType) -> None:
    part = ci.Part("slow", ("true",), 1, "slow")
    line = ci.table([ci.Outcome(part, 0, 61.0, 1.5)], 61, 45).splitlines()[1]
    assert line.endswith("passed, over its budget")
    assert "1:01" in line


@pytest.mark.parametrize(("minutes", "how"), [(60, "not run: no time was left"), (0, TO_NO_END)])
def test_a_part_that_is_spare_is_left_out_and_named_where_the_time_ends_before_it(
    ci: ModuleType, tmp_path: Path, minutes: int, how: str
) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(
        "total_minutes = 100\nhung_after_minutes = 1\nends_at_minutes = 0.02\n"
        "[[stage]]\nparts = [\n"
        f"{{name = 'a', command = 'sleep 60', minutes = {minutes}, spare = true}},\n"
        "{name = 'b', command = 'true', minutes = 1}]\n"
    )
    outcomes, good = ci.run_plan(ci.read_plan(path), tmp_path / "logs")
    assert good
    assert how in ci.table(outcomes, 1, 100).splitlines()[1]
    assert ci.unsteady(tmp_path / "logs", outcomes) == []


def test_what_a_spare_part_needs_is_told_by_what_the_stages_before_it_took(
    ci: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "budgets.toml"
    text = (
        f"total_minutes = 100\n{LIMITS}\n[[stage]]\n"
        "parts = [{name = 'a', command = 'sleep 0.5', minutes = 0.001}]\n[[stage]]\n"
        "parts = [{name = 'b', command = 'true', minutes = MINUTES, spare = true}]\n"
    )
    for minutes, code in ((1, None), (0.01, 0)):
        path.write_text(text.replace("MINUTES", str(minutes)))
        outcomes, good = ci.run_plan(ci.read_plan(path), tmp_path / "logs")
        assert good
        assert outcomes[1].code == code


def test_a_part_that_is_spare_fails_all_the_same(ci: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(
        f"total_minutes = 100\n{LIMITS}\n[[stage]]\nparts = [\n"
        "{name = 'a', command = 'false', minutes = 1, spare = true}]\n"
    )
    assert not ci.run_plan(ci.read_plan(path), tmp_path / "logs")[1]


PYTEST = "import pathlib, time\ndef test_fails(): assert False\ndef test_hangs(): time.sleep(600)\n"
FAILED_TWICE = "1/1 Test #1: One.Fails ...***Failed    0.01 sec\n" * 2


@pytest.mark.parametrize("said", ["pytest", FAILED_TWICE])
def test_what_a_spare_part_has_found_fails_though_its_time_is_over(
    ci: ModuleType, tmp_path: Path, said: str
) -> None:
    command = ("sh", "-c", f"printf '{said}'; sleep 600")
    if said == "pytest":
        (tmp_path / "test_it.py").write_text(PYTEST)
        command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path))
    part = ci.Part("extra", command, 0.01, "extra", spare=True)
    outcome = ci.Outcome(part)
    ci.run_part(part, outcome, tmp_path, ci.Limits(60, time.monotonic() + 8), shown=False)
    assert outcome.ended == ci.TIME_IS_OVER
    assert not outcome.left_out
    assert not outcome.good
    assert "FAILED (ended with the time for all)" in ci.table([outcome], 1, 100)


def test_what_failed_once_is_nothing_that_a_part_has_found(ci: ModuleType) -> None:
    assert not ci.has_failed("...R.s..  [ 50%]\n1/1 Test #1: One.Fails ...***Failed  0.01 sec\n")
    assert ci.has_failed("...R.s..  [ 50%]\n.RE [ 99%]\n")


def test_a_part_can_be_chosen_by_its_name(ci: ModuleType, tmp_path: Path) -> None:
    commands = plan(ci, tmp_path, {"one": "true"}, {"two": "true"})
    assert [[part.name for part in stage] for stage in ci.choose(commands, ["two"]).stages] == [
        ["two"]
    ]
    with pytest.raises(ValueError, match="no part three: there are one, two"):
        ci.choose(commands, ["three"])


@pytest.mark.parametrize(
    ("silent", "left", "why"),
    [(0.5, 60.0, "said nothing for 0:00"), (60.0, 0.5, "ended with the time for all")],
)
def test_one_that_hangs_is_ended_and_says_where_it_stands(
    ci: ModuleType, tmp_path: Path, silent: float, left: float, why: str
) -> None:
    hangs = (
        "import faulthandler, subprocess, time; faulthandler.enable()\n"
        "print('begun', flush=True); subprocess.run(['sleep', '600']); time.sleep(600)"
    )
    part = ci.Part("hangs", (sys.executable, "-c", hangs), 1, "hangs")
    outcome = ci.Outcome(part)
    limits = ci.Limits(silent, time.monotonic() + left)
    ci.run_part(part, outcome, tmp_path, limits, shown=False)
    said = (tmp_path / "hangs.log").read_text()
    assert said.startswith("begun\n")
    assert "most recent call first" in said
    assert f"FAILED ({why})" in ci.table([outcome], 1, 100)


def test_what_a_part_leaves_behind_is_not_waited_for(ci: ModuleType, tmp_path: Path) -> None:
    part = ci.Part("leaves", ("sh", "-c", "echo done; sleep 300 & echo $! > pid"), 1, "leaves")
    limits = ci.Limits(60, math.inf)
    began = time.monotonic()
    outcome = ci.Outcome(part)
    ci.CHECKOUT, checkout = tmp_path, ci.CHECKOUT
    try:
        ci.run_part(part, outcome, tmp_path, limits, shown=False)
    finally:
        ci.CHECKOUT = checkout
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (outcome.code, outcome.ended) == (0, "")
    assert (tmp_path / "leaves.log").read_text() == "done\n"
    assert time.monotonic() - began < 200


def test_what_passes_the_second_time_is_named(ci: ModuleType, tmp_path: Path) -> None:
    tests = tmp_path / "tests" / "test_it.py"
    tests.parent.mkdir()
    tests.write_text(
        "import pathlib, pytest\n"
        "def test_unsteady(tmp_path_factory):\n"
        "    flag = pathlib.Path(__file__).with_name('flag')\n"
        "    there = flag.exists()\n"
        "    flag.touch()\n"
        "    assert there, 'a - b'\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError\n"
        "def test_error(broken): pass\n"
        "def test_fails(): assert False\n"
    )
    command = (sys.executable, "-m", "pytest", "--rootdir", ".", *ci.RERUN.split(), "-q", "tests")
    part = ci.Part("some", ("env", "-C", str(tmp_path), *command), 1, "some")
    outcome = ci.Outcome(part)
    ci.run_part(part, outcome, tmp_path, ci.Limits(60, math.inf), shown=False)
    assert outcome.code == 1
    said = (tmp_path / "some.log").read_text()
    assert "1 failed, 1 passed, 1 error, 3 rerun" in said
    assert "a - b" in said, "why it failed the first time"
    assert ci.unsteady(tmp_path, [outcome]) == ["some: tests/test_it.py::test_unsteady"]


def test_a_native_test_that_passes_the_second_time_is_named(ci: ModuleType, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    (tmp_path / "CTestTestfile.cmake").write_text(
        f'add_test(Unsteady.One "sh" "-c" "test -e {flag} || {{ touch {flag}; exit 1; }}")\n'
        'add_test(Fails.One "false")\nadd_test(Passes.One "true")\n'
    )
    ctest = ("ctest", "--test-dir", str(tmp_path), *ci.RERUN_NATIVE.split(), "--output-on-failure")
    part = ci.Part("native", ctest, 1, "native")
    outcome = ci.Outcome(part)
    ci.run_part(part, outcome, tmp_path, ci.Limits(60, math.inf), shown=False)
    assert outcome.code != 0
    assert ci.unsteady(tmp_path, [outcome]) == ["native: Unsteady.One"]


def test_a_native_test_that_is_skipped_is_not_unsteady(ci: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "CTestTestfile.cmake").write_text(
        'add_test(Skips.One "sh" "-c" "exit 77")\n'
        "set_tests_properties(Skips.One PROPERTIES SKIP_RETURN_CODE 77)\n"
        'add_test(Disabled.One "false")\n'
        "set_tests_properties(Disabled.One PROPERTIES DISABLED TRUE)\n"
    )
    ctest = ("ctest", "--test-dir", str(tmp_path), *ci.RERUN_NATIVE.split())
    part = ci.Part("native", ctest, 1, "native")
    outcome = ci.Outcome(part)
    ci.run_part(part, outcome, tmp_path, ci.Limits(60, math.inf), shown=False)
    said = (tmp_path / "native.log").read_text()
    assert "***Skipped" in said
    assert "***Not Run (Disabled)" in said
    assert outcome.code == 0
    assert ci.unsteady(tmp_path, [outcome]) == []
