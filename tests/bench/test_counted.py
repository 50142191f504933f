# SPDX-License-Identifier: Apache-2.0
"""A figure of calls that did not reach the worker ends the benchmark instead of looking good."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from counted import NotMeasuredError, run_counted

SAYS = "sluice: 120 asynchronous commands, 3000 round trips, 9 bytes out, 9 bytes in, 0 cache hits"


def program(figures: str, says: str = SAYS) -> list[str]:
    """Prints what a program of the benchmark and its client print."""
    text = f"import os, sys; assert os.environ['SLUICE_STATS'] == '1'; print('''{figures}'''); "
    return [sys.executable, "-c", text + f"print('''{says}''', file=sys.stderr)"]


def test_figures_whose_calls_were_made_come_without_their_claims() -> None:
    found = run_counted(program('{"round_trip_us": 4.5, "waits": 2500, "commands": 100}'))
    assert found == {"round_trip_us": 4.5}


@pytest.mark.parametrize(
    ("figures", "missing"),
    [
        ('{"call_us": 0.04, "waits": 3001}', "round trips"),
        ('{"call_us": 1, "commands": 121}', "commands"),
    ],
)
def test_calls_that_were_answered_without_the_worker_are_no_figure(
    figures: str, missing: str
) -> None:
    with pytest.raises(NotMeasuredError, match=f"{missing} were to be measured"):
        run_counted(program(figures))


def test_a_program_without_a_session_has_no_figures() -> None:
    with pytest.raises(NotMeasuredError, match="no session"):
        run_counted(program('{"client_start_ms": 0.1}', "nothing of Sluice"))
