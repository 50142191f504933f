# SPDX-License-Identifier: Apache-2.0
"""Runs one of cuda-samples in its folder and prints what it says of its success, without numbers.

`python sample.py PROGRAM`. By the rules of tests/gpu/run_samples.py: lines with a verdict are what
two runs have in common; status 2 is that of a sample which the machine cannot run. Libraries of
the toolkit (CUDA_HOME) are found where nothing stands before them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from run_samples import NUMBER, VERDICT


def main() -> int:
    """Its status; 0 is the only good one."""
    program = Path(sys.argv[1])
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    folders = [os.environ.get("LD_LIBRARY_PATH"), toolkit / "lib64", toolkit / "lib"]
    paths = ":".join(str(folder) for folder in folders if folder)
    done = subprocess.run(
        [program],
        cwd=program.parent,
        env={**os.environ, "LD_LIBRARY_PATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = done.stdout.decode(errors="replace")
    lines = {NUMBER.sub("#", line.strip()) for line in text.splitlines() if VERDICT.search(line)}
    print("\n".join(sorted(line for line in lines if not line.startswith("sluice:"))))
    if done.returncode:
        print(f"error: status {done.returncode}: {text[-300:]}", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
