# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by test_programs.py: the CUDA test programs, one after the other.

Prints a line of JSON for each: its name, what was wrong with it (empty: nothing) and the seconds
that it took. Names on the command line choose some of them.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.demo.programs import load_programs, run_on_host

#: Of two processes, which are one job.
SHARING = ("shared_pool",)


def main() -> None:
    """All that a network carries and the software GPU has."""
    chosen = set(sys.argv[1:])
    for program in load_programs(milestone_only=False):
        if not (program.tcp and program.softgpu) or (chosen and program.name not in chosen):
            continue
        job = {"SLUICE_JOB": secrets.token_hex(16), "SLUICE_JOB_PROCESSES": "2"}
        run = run_on_host(program, {**os.environ, **(job if program.name in SHARING else {})})
        line = {"name": program.name, "problem": run.problem(), "seconds": round(run.seconds, 2)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
