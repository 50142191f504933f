# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by test_sessions.py: the CUDA test programs, two at a time.

Prints a line of JSON for each: its name, what was wrong with it (empty: nothing) and the seconds
that it took. Names on the command line choose some of them.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.demo.programs import Program, load_programs, run_on_host

#: Of two processes, which are one job.
SHARING = ("shared_pool",)
#: MiB of the largest copies, less than elsewhere as an emulated device carries 60 in a second: all
#: are bulk, and those of two programs take more than one grant, offer and registration.
LARGEST = {"other_streams": "2", "graph_copies": "34"}
AT_ONCE = 2


def run(program: Program) -> dict[str, Any]:
    """How it went."""
    if program.name in LARGEST:
        program = replace(program, arguments=(LARGEST[program.name],))
    job = {"SLUICE_JOB": secrets.token_hex(16), "SLUICE_JOB_PROCESSES": "2"}
    done = run_on_host(program, {**os.environ, **(job if program.name in SHARING else {})})
    return {"name": program.name, "problem": done.problem(), "seconds": round(done.seconds, 2)}


def main() -> None:
    """All that a network carries and the software GPU has."""
    chosen = set(sys.argv[1:])
    programs = [
        program
        for program in load_programs(milestone_only=False)
        if program.tcp and program.softgpu and (not chosen or program.name in chosen)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in pool.map(run, programs):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
