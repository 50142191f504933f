# SPDX-License-Identifier: Apache-2.0
"""Hostile commands to real workers with NVIDIA's libraries, part of `make test-gpu`.

    python tests/gpu/hostile_libraries.py [--parts cases sweep] [--libraries FOLDERS]

Each case is a process of its own with a session of its own (hostile_*.cc, built by `make
native`): a command that is well formed and that NVIDIA's library would follow beyond its memory. A
worker must answer it with the library's status or end the session with a reason; it must not end by
a signal. What is honest must still give the right result. The sweep then calls every function of
every library with small arguments, and with each of its pointers NULL in turn; there only a signal
is a failure. Prints a line for each case and `N passed, N failed`; without a GPU it says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import run as gpu  # noqa: E402

LIBRARIES = ("cublas", "cublaslt", "cudnn", "cufft", "curand", "cusolver", "cusparse", "nccl")
BY_SIGNAL = "ended without a word (killed or crashed)"
ENDED = "session ended"
ENDING_SECONDS = 10.0

EXPECTED = {
    "scalar_on_device_in_host_mode": ENDED,
    "scalar_on_host_in_device_mode": ENDED,
    "scalar_missing": "status 7",
    "pointer_mode_of_none": "status 7",
    "attribute_38": "status 15",
    "attribute_of_another_size": "status 7",
    "forged_algorithm": "status 15",
    "algorithm_of_nothing_known": "status 15",
    "workspace_too_small": "status 3",
    "solve_column_beyond": "status 3",
    "solve_column_before": "status 3",
    "solve_offsets_beyond": "status 3",
    "solve_offsets_fall": "status 3",
    "solve_cholesky_beyond": "status 3",
    "analysis_beyond": "status 3",
    "factor_without_analysis": "status 3",
    "refactor_beyond": "status 3",
    "prune_without_count": "status 3",
    "stride_of_zero": "status 4",
    "embedding_of_zero": "status 4",
    "configuration_39": ENDED,
    "configuration_55": ENDED,
    "destroyed_twice": "status 5",
    "loss_of_another_batch": ENDED,
    "loss_of_another_alphabet": "status 2000",
    "value_on_the_device": ENDED,
}
"""What comes back; honest ones say `ok`, or no more than that the library did not crash."""


class Runner:
    """Runs the program and watches the workers' log."""

    def __init__(self, server: gpu.Server) -> None:
        self.program = gpu.built("hostile_libraries")
        self.environment = {**os.environ, **server.environments["shm"], "SLUICE_GMEM": "4096"}
        self.environment["SLUICE_STATS"] = "0"
        self.log = server.log

    def run(self, *arguments: str, seconds: int = 120) -> list[str]:
        """The program's lines."""
        try:
            done = subprocess.run(
                [str(self.program), *arguments],
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as late:
            out = late.stdout or b""
            text = out.decode() if isinstance(out, bytes) else out
            return [*text.splitlines(), f"nothing for {seconds} s"]
        if done.returncode < 0:
            return [*done.stdout.splitlines(), f"the program ended by signal {-done.returncode}"]
        if done.returncode and not done.stdout:
            return [done.stderr.strip()[-300:]]
        return done.stdout.splitlines()

    def logged(self) -> list[str]:
        """What was logged since the last time, once every session so far has ended."""
        until = time.monotonic() + ENDING_SECONDS
        while self.log.ended() < len(self.log) and time.monotonic() < until:
            time.sleep(0.05)
        return self.log.new_lines()


def judge(name: str, got: str, reason: str, signals: list[str]) -> bool:
    """Say what came of a case."""
    wanted = "ok" if name.startswith("honest_") else EXPECTED.get(name, "")
    if name == "honest_transform":
        wanted = "status 0"
    good = not signals and (got == wanted if wanted else got.startswith("status"))
    good = good and (got != ENDED or reason != "")
    print(
        f"{name:30} {'yes' if good else 'NO':4} {got[:60]:30} {reason[:90]}"
        + "".join(f"\n    {line}" for line in signals),
        flush=True,
    )
    return good


def run_cases(runner: Runner) -> tuple[int, int]:
    """Every case."""
    passed = failed = 0
    for name in runner.run("--list"):
        lines = runner.run(name)
        logged = runner.logged()
        reasons = [line.split("bad command: ")[1] for line in logged if "bad command: " in line]
        signals = [line for line in logged if BY_SIGNAL in line]
        good = judge(name, ["nothing", *lines][-1], [*reasons, ""][0], signals)
        passed, failed = passed + good, failed + (not good)
    return passed, failed


def sweep(runner: Runner, library: str, until: float) -> tuple[int, list[str]]:
    """Every function with ordinary arguments and each pointer NULL; how many, and the culprits."""
    at, culprits = 0, []
    runner.logged()
    while time.monotonic() < until:
        lines = runner.run("sweep", library, str(at), seconds=60)
        calls = [line.split() for line in lines if line[:1].isdigit()]
        if not calls:
            culprits.append(f"{library}: {lines[-1] if lines else 'nothing'}")
            break
        at = int(calls[-1][0])
        if lines[-1].startswith("swept"):
            break
        signals = [line for line in runner.logged() if BY_SIGNAL in line]
        call = " ".join(calls[-1][1:])
        print(f"    {call}: {(signals or lines)[-1][-70:]}", flush=True)
        if signals:
            culprits.append(call)
    else:
        culprits.append(f"{library}: no time left at {at}")
    return at, culprits


def main() -> int:
    """Cases, then the sweep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=["cases", "sweep"])
    parser.add_argument("--sweep", nargs="*", default=LIBRARIES, help="the libraries of the sweep")
    parser.add_argument("--sweep-seconds", type=int, default=240)
    parser.add_argument("--libraries", default=None, help="folders with NVIDIA's libraries")
    parser.add_argument("--driver", help="a libcuda.so.1 (default: NVIDIA's, where there is a GPU)")
    options = parser.parse_args()
    driver = options.driver or gpu.find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = gpu.Server(driver, folder, libraries=options.libraries, memory_mib=4096)
        runner = Runner(server)
        try:
            if "cases" in options.parts:
                passed, failed = run_cases(runner)
            until = time.monotonic() + options.sweep_seconds
            for library in options.sweep if "sweep" in options.parts else ():
                calls, culprits = sweep(runner, library, until)
                print(f"sweep of {library}: {calls} calls, {len(culprits)} faults", flush=True)
                passed, failed = passed + (not culprits), failed + bool(culprits)
        finally:
            server.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
