# SPDX-License-Identifier: Apache-2.0
"""The CUDA test programs as the demo and the GPU tests run them.

A program is right when it ends with the code that its manifest names and prints what every right
device prints; lines that begin with "# " describe the machine and do not count.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build" / "programs"
MANIFEST = ROOT / "tests" / "programs" / "programs.yaml"
STATISTICS = re.compile(r"sluice: (\d+) asynchronous commands, (\d+) round trips")


@dataclass(frozen=True)
class Program:
    """One line of the manifest."""

    name: str
    arguments: tuple[str, ...]
    exit_code: int
    seconds: float
    expected: str | None
    tcp: bool = True
    """Whether it may run over a network."""
    softgpu: bool = True
    """Whether the software GPU has what it shows."""
    linked: bool = False
    """Whether a real GPU runs another build of it, linked with the device runtime."""
    cuda12: bool = True
    """Whether there is one for CUDA 12."""

    def command(self, folder: Path = PROGRAMS) -> list[str]:
        """What runs it from a folder."""
        return [str(folder / self.name), *self.arguments]


@dataclass(frozen=True)
class Run:
    """How a run ended."""

    program: Program
    code: int
    out: str
    err: str
    seconds: float

    @property
    def round_trips(self) -> int | None:
        """What the client counted, when it was asked to."""
        found = STATISTICS.search(self.err)
        return int(found.group(2)) if found else None

    @property
    def commands(self) -> int | None:
        """Commands that nobody waited for."""
        found = STATISTICS.search(self.err)
        return int(found.group(1)) if found else None

    def problem(self, native: str | None = None) -> str:
        """What is wrong with it, "" when nothing is."""
        if self.code != self.program.exit_code:
            said = (self.err or self.out).strip().splitlines()
            return f"exit {self.code}" + (f": {said[-1]}" if said else "")
        expected = native if native is not None else self.program.expected
        if expected is not None and facts(self.out) != facts(expected):
            wanted, got = facts(expected).splitlines(), facts(self.out).splitlines()
            for a, b in zip(wanted, got, strict=False):
                if a != b:
                    return f"printed {b!r}, not {a!r}"
            return f"printed {len(got)} lines, not {len(wanted)}"
        return ""


def facts(text: str) -> str:
    """The lines that do not depend on the machine."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("# "))


def natively_with(program: Program, major: int) -> str:
    """What it prints by a CUDA version's runtime: as by 13's but for the version, or as recorded
    natively with 12.9.
    """
    assert program.expected is not None
    if major == 13:
        return program.expected
    recorded = MANIFEST.parent / "expected" / f"cuda{major}" / f"{program.name}.out"
    if recorded.exists():
        return recorded.read_text()
    return program.expected.replace("runtime 13.0,", "runtime 12.9,")


def load_programs(*, milestone_only: bool = True, devices: int = 1) -> list[Program]:
    """The manifest's programs that need no more devices than these."""
    programs = []
    for entry in yaml.safe_load(MANIFEST.read_text())["programs"]:
        if milestone_only and not entry.get("milestone"):
            continue
        if entry.get("devices", 1) > devices:
            continue
        expected = entry.get("expected")
        programs.append(
            Program(
                entry["name"],
                tuple(str(a) for a in entry.get("arguments", [])),
                entry.get("exit", 0),
                entry.get("seconds", 10),
                (MANIFEST.parent / expected).read_text() if expected else None,
                entry.get("tcp", True),
                entry.get("softgpu", True),
                entry.get("linked", False),
                entry.get("cuda12", True),
            )
        )
    return programs


def run_on_host(program: Program, environment: dict[str, str], timeout: float = 120) -> Run:
    """Runs it here with these variables set."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            program.command(),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
        return Run(program, -1, out, f"not done after {timeout} s", timeout)
    return Run(program, done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def shell(program: Program, folder: Path) -> str:
    """The same as a line for a shell."""
    return shlex.join(program.command(folder))
