# SPDX-License-Identifier: Apache-2.0
"""Builds the CUDA programs that the demo runs, and no others: `build_programs.py JOBS`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from programs import load_programs  # noqa: E402

#: What is killed in the guest.
VICTIM = "hold_vgpu"


def main() -> int:
    names = [program.name for program in load_programs()]
    build = [sys.executable, str(ROOT / "tests" / "programs" / "build.py"), "--jobs", sys.argv[1]]
    return subprocess.run([*build, *names, VICTIM], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
