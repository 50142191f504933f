# SPDX-License-Identifier: Apache-2.0
"""Runs a program of the benchmark and holds its figures against what its client really sent.

A call that is answered without its worker costs nothing, and a figure of it could not fail. So each
program says beside its figures how many of the calls that it measured have to wait for an answer
(`waits`) and how many have to reach the worker without being waited for (`commands`); the client
counts both (SLUICE_STATS), and fewer end the benchmark. Used by bench.py and relayed.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence

TOTALS = re.compile(r"sluice: (\d+) asynchronous commands, (\d+) round trips, ")


class NotMeasuredError(SystemExit):
    """The calls that were to be measured were not made."""


def check(command: Sequence[str], claims: dict[str, float], said: str) -> None:
    """Raises NotMeasuredError where the client (`said`: its statistics) sent less than claimed."""
    found = TOTALS.search(said)
    if not found:
        raise NotMeasuredError(
            f"{' '.join(command)}: the client printed no statistics, so it had no session: {said}"
        )
    for what, wanted, made in (
        ("commands", claims["commands"], int(found[1])),
        ("round trips", claims["waits"], int(found[2])),
    ):
        if made < wanted:
            raise NotMeasuredError(
                f"{' '.join(command)}: {wanted:,.0f} {what} were to be measured, and the client "
                f"made {made:,}: the measured call is answered without its worker"
            )


def run_counted(command: list[str], environment: dict[str, str] | None = None) -> dict[str, float]:
    """The figures of a program that prints one JSON object, its claims checked and left out."""
    environment = {**(environment or os.environ), "SLUICE_STATS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    claims = {name: result.pop(name, 0) for name in ("waits", "commands")}
    check(command, claims, done.stderr)
    return result
