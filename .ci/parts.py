# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of budgets.toml and says what each took: `parts.py [NAME…]`, all without a name.

Called by .ci/run. The output of a part that runs alone is shown as it comes; that of parts beside
one another when each ends, so that nothing is mixed; all of it is kept in build/ci/NAME.log. Once
a part has failed the rest of its stage ends by itself and no further stage begins: the parts behind
it build on it, and a failure is wanted soon. The exit status is 1 then, and the table names what
did not run. Time fails nothing: a part over its budget is only named.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
LOGS = CHECKOUT / "build" / "ci"


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


@dataclass
class Outcome:
    """How a part went; `code` is None for one that did not run."""

    part: Part
    code: int | None = None
    seconds: float = 0.0
    cores: float = 0.0
    """Processors of the machine that were busy meanwhile, on average."""

    @property
    def over(self) -> bool:
        """Whether it took longer than its budget."""
        return self.seconds > self.part.minutes * 60


@dataclass(frozen=True)
class Plan:
    """budgets.toml."""

    stages: list[list[Part]]
    total_minutes: float


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
            )
            for part in stage["parts"]
        ]
        for stage in data["stage"]
    ]
    names = [part.name for stage in stages for part in stage]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: a name is there twice: {', '.join(names)}")
    needed = sum(
        max(sum(part.minutes for part in lane) for lane in lanes(stage)) for stage in stages
    )
    if needed > data["total_minutes"]:
        raise ValueError(f"{path}: the parts come to {needed:g} of {data['total_minutes']} minutes")
    return Plan(stages, data["total_minutes"])


def lanes(stage: list[Part]) -> list[list[Part]]:
    """A stage's parts by their lanes."""
    found: dict[str, list[Part]] = {}
    for part in stage:
        found.setdefault(part.lane, []).append(part)
    return list(found.values())


def choose(plan: Plan, names: list[str]) -> Plan:
    """The parts of these names only; raises ValueError for one that is none."""
    known = [part.name for stage in plan.stages for part in stage]
    for name in names:
        if name not in known:
            raise ValueError(f"no part {name}: there are {', '.join(known)}")
    stages = [[part for part in stage if part.name in names] for stage in plan.stages]
    return Plan([stage for stage in stages if stage], plan.total_minutes)


def run_part(part: Part, outcome: Outcome, logs: Path, *, shown: bool) -> None:
    """Runs it to its end with its output in a log, and shown as it comes if it is alone."""
    began, busy = time.monotonic(), busy_seconds()
    with (logs / f"{part.name}.log").open("wb") as log:
        process = subprocess.Popen(
            (*(("nice", "-n", "19") if part.yields else ()), *part.command),
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            if shown:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
        outcome.code = process.wait()
    outcome.seconds = time.monotonic() - began
    outcome.cores = (busy_seconds() - busy) / max(outcome.seconds, 0.01)


def busy_seconds() -> float:
    """What all processors of this machine have worked since it started."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = (
        int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def run_stage(stage: list[Part], logs: Path) -> list[Outcome]:
    """Runs the parts of a stage beside one another."""
    outcomes = [Outcome(part) for part in stage]
    if len(stage) == 1:
        print(f"== {stage[0].name}", flush=True)
        run_part(stage[0], outcomes[0], logs, shown=True)
        return outcomes
    print(f"== {' beside '.join(part.name for part in stage)}", flush=True)
    lock = threading.Lock()

    def run(lane: list[Part]) -> None:
        for outcome in (each for each in outcomes if each.part in lane):
            run_part(outcome.part, outcome, logs, shown=False)
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
            lines.append(f"{outcome.part.name:20} {'-':>7} {budget:>7} {'-':>5}  not run")
            continue
        how = "passed" if outcome.code == 0 else failed(outcome.code)
        over = ", over its budget" if outcome.over else ""
        took = minutes(outcome.seconds)
        cores = f"{outcome.cores:.1f}"
        lines.append(f"{outcome.part.name:20} {took:>7} {budget:>7} {cores:>5}  {how}{over}")
    over = ", over the budget" if seconds > total_minutes * 60 else ""
    lines.append(
        f"{'all':20} {minutes(seconds):>7} {minutes(total_minutes * 60):>7} {'':5}  {over[2:]}"
    )
    return "\n".join(line.rstrip() for line in lines)


def failed(code: int) -> str:
    """In words."""
    return f"FAILED ({signal.Signals(-code).name})" if code < 0 else f"FAILED (status {code})"


def run_plan(plan: Plan, logs: Path) -> tuple[list[Outcome], bool]:
    """Every part's outcome, and whether all ran and passed."""
    logs.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    good = True
    for stage in plan.stages:
        ran = run_stage(stage, logs) if good else [Outcome(part) for part in stage]
        outcomes += ran
        good = good and all(outcome.code == 0 for outcome in ran)
    return outcomes, good


def main(words: list[str]) -> int:
    """Runs the plan; the exit status."""
    try:
        plan = read_plan(HERE / "budgets.toml")
        plan = choose(plan, words) if words else plan
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()
    outcomes, good = run_plan(plan, LOGS)
    print("\n" + table(outcomes, time.monotonic() - began, plan.total_minutes), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(sys.argv[1:]))
