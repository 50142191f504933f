# SPDX-License-Identifier: Apache-2.0
"""Runs test-backend-ops and prints how many of its cases passed: `python counted.py PROGRAM ...`.

Its own lines have the errors of random numbers and times in them; what two runs have in common are
the numbers of cases, and which of them failed or are not supported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

VERDICT = re.compile(r"(OK|FAIL|not supported)(\x1b\[0m)?( \[.*\])?$")


def main() -> int:
    """Its status."""
    done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=False)
    counted: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        if match := VERDICT.search(line.strip()):
            counted[match[1]] += 1
            if match[1] == "FAIL":
                print("FAIL", line.strip()[:160])
    print(dict(sorted(counted.items())))
    if not counted:
        print("error: no case was run", (done.stdout + done.stderr)[-300:], file=sys.stderr)
        return 1
    if done.returncode:
        print(f"error: status {done.returncode}: {done.stderr[-300:]}", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
