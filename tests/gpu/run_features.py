# SPDX-License-Identifier: Apache-2.0
"""Every feature of features.py natively and through Sluice; what they print must be the same.

    python tests/gpu/run_features.py --preload LIB:LIB [--channels shm tcp] [NAME ...]

A feature that fails natively (a package that the machine lacks) is skipped, by name and reason; so
is one whose package carries NVIDIA's static runtime and got the message that says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATIC_RUNTIME = "statically linked CUDA runtime"
"""What the client says then (docs/applications.md)."""


def once(name: str, environment: dict[str, str], seconds: int) -> tuple[int, str, str, float]:
    """One process: exit status, what it printed, the end of its errors, seconds."""
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "features.py"), name],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        text = (error.stderr or b"").decode(errors="replace")
        return 124, "", f"took more than {seconds} s {text[-300:]}", float(seconds)
    return done.returncode, done.stdout, done.stderr, time.perf_counter() - begun


def reason(errors: str) -> str:
    """Return the line of a traceback that says most."""
    lines = [line for line in errors.splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line or "sluice:" in line]
    return " | ".join((said or lines)[-3:])[-300:]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Features, natively and through Sluice.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--preload", required=True)
    parser.add_argument("--channels", nargs="*", default=["shm"])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from features import FEATURES

    native = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    ours = {**os.environ, "LD_PRELOAD": options.preload}
    passed = failed = skipped = 0

    def run(name: str) -> list[tuple[str, str, str]]:
        code, wanted, errors, seconds = once(name, native, options.seconds)
        if code != 0:
            return [(name, "skipped", f"fails natively: {reason(errors)}")]
        rows = []
        for channel in options.channels:
            environment = {**ours, "SLUICE_CHANNEL": channel}
            code, got, errors, took = once(name, environment, options.seconds)
            if code == 0 and got == wanted:
                rows.append((f"{name} {channel}", "same", f"{seconds:.1f} s, ours {took:.1f} s"))
            elif STATIC_RUNTIME in errors:
                rows.append(
                    (f"{name} {channel}", "skipped", "its package links the runtime statically")
                )
            elif code == 0:
                rows.append((f"{name} {channel}", "DIFFERENT", f"{wanted!r} / {got!r}"[:600]))
            else:
                rows.append((f"{name} {channel}", "FAILED", f"status {code}: {reason(errors)}"))
        return rows

    with ThreadPoolExecutor(options.jobs) as pool:
        for rows in pool.map(run, options.names or list(FEATURES)):
            for name, verdict, text in rows:
                print(f"{name:28} {verdict:10} {text}", flush=True)
                passed += verdict == "same"
                skipped += verdict == "skipped"
                failed += verdict in ("DIFFERENT", "FAILED")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
