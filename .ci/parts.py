# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of budgets.toml and says what each took: `parts.py [NAME…]`, all without a name.

Called by .ci/run. The output of a part that runs alone is shown as it comes; that of parts beside
one another when each ends, so that nothing is mixed; all of it is kept in build/ci/NAME.log. Once
a part has failed the rest of its stage ends by itself and no further stage begins: the parts behind
it build on it, and a failure is wanted soon. The exit status is 1 then, and the table names what
did not run. Time fails nothing: a part over its budget is only named. But one that hangs is ended
(`hung_after_minutes` without a line, or the whole at `ends_at_minutes`), with SIGABRT first: pytest
says then where each thread stands. A part that is `spare` looks with other tools at what the parts
before it have tried: on a machine so slow that the time for all ends first it is named as not run,
or not to its end, and fails nothing that it has not found by then.

A test that fails is run once more in its place (`RERUN`): thousands of tests of real processes on a
machine that does something else as well must not stop a change for one that waited too short. What
passes the second time is named below the table as unsteady: that is a defect of the test, to be
mended and not to be lived with.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
LOGS = CHECKOUT / "build" / "ci"
RUNNING: set[subprocess.Popen[bytes]] = set()
RERUN = "--reruns 1 --max-suite-reruns 12 --rerun-show-tracebacks -raR"
"""pytest's, by the Makefile's PYTEST_FLAGS."""
RERUN_NATIVE = "--repeat until-pass:2"
"""ctest's, by its CTEST_FLAGS."""
NATIVE_FAILED = re.compile(r"Test +#\d+: (\S+) .*\*\*\*(?!Skipped|Not Run \(Disabled\))")
PYTEST_PROGRESS = re.compile(r"^[.sxXRFE]*[FE][.sxXRFE]*(?: +\[ *\d+%\])?$", re.MULTILINE)
"""A line of pytest's dots with a test among them that failed, or could not be set up, for good."""
TIME_IS_OVER = "ended with the time for all"
DUMP_SECONDS = 10.0  # for what SIGABRT makes a part say


@dataclass(frozen=True)
class Part:
    """A line of the budget."""

    name: str
    command: tuple[str, ...]
    minutes: float
    lane: str
    """Parts of a stage in the same lane run one after the other, lanes beside one another."""
    yields: bool = False
    """It gets what the other lanes leave of the processors."""
    spare: bool = False
    """It does not begin where no time would be left for it, and may be ended with that for all."""


@dataclass
class Outcome:
    """How a part went; `code` is None for one that did not run."""

    part: Part
    code: int | None = None
    seconds: float = 0.0
    cores: float = 0.0
    """Processors of the machine that were busy meanwhile, on average."""
    ended: str = ""
    """Why it was ended, if it was, or not begun."""
    found: bool = False
    """Whether a test had failed for good before it was ended."""

    @property
    def over(self) -> bool:
        """Whether it took longer than its budget."""
        return self.seconds > self.part.minutes * 60

    @property
    def left_out(self) -> bool:
        """Whether there was no time for it, or not for all of it, and that fails nothing."""
        return self.part.spare and self.ended == TIME_IS_OVER and not self.found

    @property
    def good(self) -> bool:
        """Whether what it found says nothing against the change."""
        return self.left_out or (self.code == 0 and not self.ended)


@dataclass(frozen=True)
class Plan:
    """budgets.toml."""

    stages: list[list[Part]]
    total_minutes: float
    hung_after_minutes: float
    """A part that says nothing for so long is ended."""
    ends_at_minutes: float
    """Whatever runs then is ended: whoever called shows nothing of a run that he ends himself."""


@dataclass(frozen=True)
class Limits:
    """When a part is ended."""

    silent_seconds: float
    at: float
    """By the monotonic clock."""
    pace: float = 1.0
    """How many times its budget a part takes here, by the stages before it; at least 1."""

    def reached(self, heard: float) -> str:
        """Why to end one that was last heard of at `heard`; nothing: it goes on."""
        now = time.monotonic()
        if now > self.at:
            return TIME_IS_OVER
        if now - heard > self.silent_seconds:
            return f"said nothing for {minutes(self.silent_seconds)}"
        return ""


def read_plan(path: Path) -> Plan:
    """Raises ValueError where the budgets of the stages' longest lanes exceed the whole's."""
    data = tomllib.loads(path.read_text())
    stages = [
        [
            Part(
                part["name"],
                tuple(shlex.split(part["command"])),
                part["minutes"],
                part.get("lane", part["name"]),
                part.get("yields", False),
                part.get("spare", False),
            )
            for part in stage["parts"]
        ]
        for stage in data["stage"]
    ]
    names = [part.name for stage in stages for part in stage]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: a name is there twice: {', '.join(names)}")
    needed = sum(budget_of(stage) for stage in stages)
    if needed > data["total_minutes"]:
        raise ValueError(f"{path}: the parts come to {needed:g} of {data['total_minutes']} minutes")
    return Plan(stages, data["total_minutes"], data["hung_after_minutes"], data["ends_at_minutes"])


def lanes(stage: list[Part]) -> list[list[Part]]:
    """A stage's parts by their lanes."""
    found: dict[str, list[Part]] = {}
    for part in stage:
        found.setdefault(part.lane, []).append(part)
    return list(found.values())


def budget_of(stage: list[Part]) -> float:
    """The minutes of its longest lane."""
    return max(sum(part.minutes for part in lane) for lane in lanes(stage))


def choose(plan: Plan, names: list[str]) -> Plan:
    """The parts of these names only; raises ValueError for one that is none."""
    known = [part.name for stage in plan.stages for part in stage]
    for name in names:
        if name not in known:
            raise ValueError(f"no part {name}: there are {', '.join(known)}")
    stages = [[part for part in stage if part.name in names] for stage in plan.stages]
    return replace(plan, stages=[stage for stage in stages if stage])


def run_part(part: Part, outcome: Outcome, logs: Path, limits: Limits, *, shown: bool) -> None:
    """Runs it to its end with its output in a log, and shown as it comes if it is alone."""
    if part.spare and limits.at - time.monotonic() < part.minutes * 60 * limits.pace:
        outcome.ended = TIME_IS_OVER
        return
    began, busy = time.monotonic(), busy_seconds()
    with (logs / f"{part.name}.log").open("wb") as log:
        process = subprocess.Popen(
            (*(("nice", "-n", "19") if part.yields else ()), *part.command),
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        RUNNING.add(process)

        def say(data: bytes) -> None:
            log.write(data)
            log.flush()
            if shown:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()

        outcome.ended = follow(process, limits, say)
        outcome.code = process.wait()
        RUNNING.discard(process)
    if outcome.ended:
        outcome.found = has_failed((logs / f"{part.name}.log").read_text(errors="replace"))
    outcome.seconds = time.monotonic() - began
    outcome.cores = (busy_seconds() - busy) / max(outcome.seconds, 0.01)


def follow(process: subprocess.Popen[bytes], limits: Limits, say: Callable[[bytes], None]) -> str:
    """Passes on what it says until it ends, not until all do that it left behind.

    Returns why we ended it; nothing where it ended by itself.
    """
    assert process.stdout is not None
    ended, heard, killed_at = "", time.monotonic(), 0.0
    coming = select.poll()
    coming.register(process.stdout, select.POLLIN)
    while True:
        gone = process.poll() is not None
        if coming.poll(0 if gone else 200):
            if not (data := os.read(process.stdout.fileno(), 1 << 16)):
                return ended
            say(data)
            heard = time.monotonic()
        elif gone and not (ended and time.monotonic() < killed_at):
            return ended
        if not ended and (ended := limits.reached(heard)):
            say(f"\n== {shlex.join(map(str, process.args))} {ended}\n".encode())
            killed_at = time.monotonic() + DUMP_SECONDS
            send(process, signal.SIGABRT)
        elif ended and time.monotonic() > killed_at:
            send(process, signal.SIGKILL)


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """A signal to a part's processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end_all(number: int, _frame: object) -> None:
    """Somebody ends us: nothing that we started stays."""
    for process in list(RUNNING):
        send(process, signal.SIGKILL)
    sys.exit(128 + number)


def busy_seconds() -> float:
    """What all processors of this machine have worked since it started."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = (
        int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def run_stage(stage: list[Part], logs: Path, limits: Limits) -> list[Outcome]:
    """Runs the parts of a stage beside one another."""
    outcomes = [Outcome(part) for part in stage]
    if len(stage) == 1:
        print(f"== {stage[0].name}", flush=True)
        run_part(stage[0], outcomes[0], logs, limits, shown=True)
        return outcomes
    print(f"== {' beside '.join(part.name for part in stage)}", flush=True)
    lock = threading.Lock()

    def run(lane: list[Part]) -> None:
        for outcome in (each for each in outcomes if each.part in lane):
            run_part(outcome.part, outcome, logs, limits, shown=False)
            if outcome.code is None:
                continue
            with lock:
                print(f"== {outcome.part.name}, after {minutes(outcome.seconds)}", flush=True)
                sys.stdout.buffer.write((logs / f"{outcome.part.name}.log").read_bytes())
                sys.stdout.buffer.flush()

    threads = [threading.Thread(target=run, args=(lane,)) for lane in lanes(stage)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def minutes(seconds: float) -> str:
    """As minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def table(outcomes: list[Outcome], seconds: float, total_minutes: float) -> str:
    """What each part took, beside its budget, and how busy the machine was: waits can overlap."""
    lines = [f"{'part':20} {'took':>7} {'budget':>7} {'cores':>5}  result"]
    for outcome in outcomes:
        budget = minutes(outcome.part.minutes * 60)
        if outcome.code is None:
            why = ": no time was left" if outcome.left_out else ""
            lines.append(f"{outcome.part.name:20} {'-':>7} {budget:>7} {'-':>5}  not run{why}")
            continue
        how = "passed" if outcome.code == 0 else failed(outcome.code)
        how = f"FAILED ({outcome.ended})" if outcome.ended else how
        how = f"not run to its end: {outcome.ended}" if outcome.left_out else how
        over = ", over its budget" if outcome.over else ""
        took = minutes(outcome.seconds)
        cores = f"{outcome.cores:.1f}"
        lines.append(f"{outcome.part.name:20} {took:>7} {budget:>7} {cores:>5}  {how}{over}")
    over = ", over the budget" if seconds > total_minutes * 60 else ""
    lines.append(
        f"{'all':20} {minutes(seconds):>7} {minutes(total_minutes * 60):>7} {'':5}  {over[2:]}"
    )
    return "\n".join(line.rstrip() for line in lines)


def unsteady(logs: Path, outcomes: list[Outcome]) -> list[str]:
    """The tests that failed and then passed, by what pytest says of them."""
    tests = []
    for outcome in (each for each in outcomes if each.code is not None):
        lines = (logs / f"{outcome.part.name}.log").read_text(errors="replace").splitlines()
        said = {how: named(lines, how) for how in ("RERUN", "FAILED", "ERROR")}
        again = [test for test in said["RERUN"] if test not in said["FAILED"] + said["ERROR"]]
        native = native_failures(lines)
        again += [test for test, times in native.items() if times == 1]
        tests += [f"{outcome.part.name}: {test}" for test in again]
    return tests


def has_failed(said: str) -> bool:
    """Whether a part that was ended has a test that failed, and did so again where it was tried."""
    native = native_failures(said.splitlines())
    return bool(PYTEST_PROGRESS.search(said)) or max(native.values(), default=0) > 1


def native_failures(lines: list[str]) -> Counter[str]:
    """How often ctest says of each test that it failed."""
    return Counter(found[1] for line in lines if (found := NATIVE_FAILED.search(line)))


def named(lines: list[str], how: str) -> list[str]:
    """The tests of which pytest's summary says so, each once, without the reason."""
    tests = (line.removeprefix(f"{how} ") for line in lines if line.startswith(f"{how} tests/"))
    return list(dict.fromkeys(test.split(" - ")[0] for test in tests))


def failed(code: int) -> str:
    """In words."""
    return f"FAILED ({signal.Signals(-code).name})" if code < 0 else f"FAILED (status {code})"


def run_plan(plan: Plan, logs: Path) -> tuple[list[Outcome], bool]:
    """Every part's outcome, and whether all ran and passed."""
    logs.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    good = True
    began = time.monotonic()
    limits = Limits(plan.hung_after_minutes * 60, began + plan.ends_at_minutes * 60)
    budgets = 0.0
    for stage in plan.stages:
        ran = run_stage(stage, logs, limits) if good else [Outcome(part) for part in stage]
        outcomes += ran
        budgets += 60 * budget_of(stage)
        pace = (time.monotonic() - began) / budgets if budgets else 1.0
        limits = replace(limits, pace=max(1.0, pace))
        good = good and all(outcome.good for outcome in ran)
    return outcomes, good


def main(words: list[str]) -> int:
    """Runs the plan; the exit status."""
    try:
        plan = read_plan(HERE / "budgets.toml")
        plan = choose(plan, words) if words else plan
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    began = time.monotonic()
    outcomes, good = run_plan(plan, LOGS)
    print("\n" + table(outcomes, time.monotonic() - began, plan.total_minutes), flush=True)
    for test in unsteady(LOGS, outcomes):
        print(f"unsteady, passed the second time: {test}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("PYTEST_FLAGS", RERUN)
    os.environ.setdefault("CTEST_FLAGS", RERUN_NATIVE)
    sys.exit(main(sys.argv[1:]))
