# SPDX-License-Identifier: Apache-2.0
"""Runs a GPU's checks in a process of their own and says what became of it.

Used by gpus.health and by tests/gpu/acceptance.py. It promises an answer within the time
limit and a few seconds, whatever the GPU does: a process that does not end is killed, and one that
cannot even be killed (it hangs in the driver) is left behind and told of.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from sluice.server.gpus.expectations import expectation_of, shortfalls

log = logging.getLogger("sluice.server")

# by path, without its folder in Python's: nothing of Sluice's is imported there
CHECKS = str(Path(__file__).with_name("checks.py"))
KILLED_SECONDS = 2.0
MOST_OUTPUT = 1 << 20
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TZ")


class Outcome(Enum):
    """What the checks said of a card."""

    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "unchecked"  # they could not be made


@dataclass(frozen=True, slots=True)
class Check:
    """One check as it went."""

    name: str
    ok: bool
    text: str
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All of a card's checks; `text` says in a line what is wrong, or that nothing is."""

    outcome: Outcome
    text: str
    checks: tuple[Check, ...] = ()

    @property
    def figures(self) -> dict[str, float]:
        """What was measured."""
        return {name: value for check in self.checks for name, value in check.figures.items()}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How GPUs are checked."""

    driver: str
    seconds: float
    memory_mib: int
    library_folders: Sequence[Path] = ()
    command: Sequence[str] = (sys.executable, "-P", CHECKS)

    async def check(self, uuid: str, model: str) -> Report:
        """Checks one GPU that nobody uses."""
        with tempfile.TemporaryDirectory(prefix="sluice-check-") as scratch:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.command,
                    "--driver",
                    self.driver,
                    "--memory-mib",
                    str(self.memory_mib),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                    cwd=scratch,
                    env=self._environment(uuid, scratch),
                    limit=MOST_OUTPUT,
                )
            except OSError as error:
                return Report(Outcome.UNCHECKED, f"its checks cannot be started: {error}")
            assert process.stdout
            assert process.stderr
            lines: list[bytes] = []
            complaints: list[bytes] = []
            reading = asyncio.gather(
                _read(process.stdout, lines), _read(process.stderr, complaints), process.wait()
            )
            try:
                await asyncio.wait_for(reading, self.seconds)
            except TimeoutError:
                return await self._overdue(process, _checks(lines)[0])
            except asyncio.CancelledError:
                _kill(process.pid)
                raise
        return judge(model, lines, complaints, process.returncode or 0)

    async def _overdue(
        self, process: asyncio.subprocess.Process, done: tuple[Check, ...]
    ) -> Report:
        _kill(process.pid)
        after = f"after {', '.join(c.name for c in done)}" if done else "before the first was done"
        text = f"its checks did not end within {self.seconds:g} s ({after})"
        try:
            await asyncio.wait_for(process.wait(), KILLED_SECONDS)
        except TimeoutError:
            text += f", and process {process.pid} cannot be killed: it hangs in the driver"
        return Report(Outcome.FAILED, text, done)

    def _environment(self, uuid: str, scratch: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        folders = [*map(str, self.library_folders), kept.get("LD_LIBRARY_PATH", "")]
        return {
            **kept,
            "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
            "CUDA_VISIBLE_DEVICES": uuid,
            "CUDA_CACHE_DISABLE": "1",
            "CUPY_CACHE_DIR": scratch,
            "PYTHONUNBUFFERED": "1",
        }


def judge(model: str, lines: Sequence[bytes], complaints: Sequence[bytes], status: int) -> Report:
    """What the checks' lines mean for a card of this model."""
    checks, unchecked = _checks(lines)
    if bad := [check for check in checks if not check.ok]:
        text = "; ".join(f"{check.name}: {check.text}" for check in bad)
        return Report(Outcome.FAILED, text, checks)
    if status != 0:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        said = b"".join(complaints).decode(errors="replace").strip().splitlines()
        last = f": {said[-1][:200]}" if said else ""
        return Report(Outcome.FAILED, f"its checks ended {how}{last}", checks)
    figures = {name: value for check in checks for name, value in check.figures.items()}
    if slow := shortfalls(model, figures):
        return Report(Outcome.FAILED, "; ".join(slow), checks)
    if unchecked or not checks:
        return Report(Outcome.UNCHECKED, unchecked or "its checks said nothing", checks)
    judged = "" if expectation_of(model) else "; its speed is not judged: the model is not known"
    return Report(Outcome.PASSED, f"{len(checks)} checks passed{judged}", checks)


def _checks(lines: Sequence[bytes]) -> tuple[tuple[Check, ...], str]:
    """The checks that were told of, and why others could not be made."""
    checks: list[Check] = []
    unchecked = ""
    for line in b"".join(lines).split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            said: dict[str, Any] = json.loads(line)
            if "unchecked" in said:
                unchecked = str(said["unchecked"])
                continue
            figures = {str(name): float(value) for name, value in said["figures"].items()}
            checks.append(
                Check(
                    str(said["check"]),
                    bool(said["ok"]),
                    str(said["text"]),
                    figures,
                    float(said.get("seconds", 0.0)),
                )
            )
    return tuple(checks), unchecked


async def _read(stream: asyncio.StreamReader, into: list[bytes]) -> None:
    size = 0
    while part := await stream.read(1 << 16):
        if size < MOST_OUTPUT:
            into.append(part)
            size += len(part)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
