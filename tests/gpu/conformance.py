# SPDX-License-Identifier: Apache-2.0
"""The conformance run with PyTorch, part of `make test-gpu`: all that applications do, compared.

    python tests/gpu/conformance.py [--parts operators samples …] [--rounds 10] [--samples FOLDER]
    python tests/gpu/conformance.py --python PYTHON --parts workloads operators

Natively and through Sluice, compared; each part prints its table. Sessions come from the static
server (run.py), confined and as an ordinary user. The machine's own Python must have PyTorch for
CUDA 13, or --python names the interpreter of an environment with PyTorch for CUDA 12: its programs
are started by `sluice run`, its figures begin with `cu12_`, and the node's libraries are those that
the machine has, so CUDA 13's. What is missing is skipped, by name and reason. NVIDIA's cuda-samples
are not part of Sluice: --samples (or CUDA_SAMPLES) is their checkout, or the folder that
build_samples.py made of it. Operator results are kept under --results (build/conformance), so a run
that was cut short goes on; --fresh begins anew. The last line counts parts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import run as gpu  # noqa: E402
from run_workloads import by_sluice_run, own  # noqa: E402

PARTS = ("operators", "features", "samples", "ddp", "footprint", "workloads")
#: What can be run of another interpreter's PyTorch (its features: python -m applications).
OTHER_PARTS = ("operators", "workloads")


def lacking(python: str, environment: dict[str, str]) -> str:
    """What of a Python is missing for any of it, or nothing."""
    check = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"
    done = subprocess.run(
        [python, "-c", check], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode == 3:
        return "this PyTorch sees no GPU natively"
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def gpus() -> list[str]:
    """UUIDs of this machine's GPUs."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return [
        line.split("UUID: ")[1].rstrip(")") for line in listed.stdout.splitlines() if "UUID" in line
    ]


class Conformance:
    """The environments of one run, and its parts."""

    def __init__(self, server: gpu.Server, options: argparse.Namespace) -> None:
        self.options = options
        self.preload = server.preload
        self.native, self.ours = gpu.native_environment(), server.preloading("shm")
        self.driving = {k: v for k, v in self.ours.items() if k != "LD_PRELOAD"}
        #: what starts Python natively, and through Sluice
        self.words, self.our_words = [sys.executable], [sys.executable]
        if options.python:
            self.words, self.our_words = [str(options.python)], by_sluice_run(options.python)
            self.native = own(self.native)
            variables = {**server.under_run("tcp"), **server.under_run("shm")}
            self.ours = {**self.native, **variables, "PYTHONPATH": str(ROOT / "python")}
            self.driving = {**os.environ, **variables}

    def lacks(self, part: str, devices: list[str]) -> str:
        """What this machine lacks for that part, or nothing."""
        if self.options.python and part not in OTHER_PARTS:
            return "it is run with the machine's own PyTorch"
        if part == "ddp" and len(devices) < 2:
            return "it needs two GPUs"
        if part == "samples" and not self.options.samples.is_dir():
            return f"{self.options.samples} is no folder: --samples names a cuda-samples checkout"
        return ""

    def script(self, name: str, *arguments: str) -> bool:
        """Run one of the scripts beside this one; it compares by itself."""
        of = ["--preload", self.preload]
        if self.options.python:
            of = ["--python", str(self.options.python), "--prefix", "cu12_"]
        command = [sys.executable, str(HERE / name), *of, *arguments]
        # The script itself is native: only the processes that it starts get the libraries.
        environment = {**self.driving, "LD_LIBRARY_PATH": self.native.get("LD_LIBRARY_PATH", "")}
        return subprocess.run(command, env=environment, check=False).returncode == 0

    def shard(self, out: Path, number: int, until: float, ours: bool) -> subprocess.Popen[bytes]:
        """Start one process of the operator run."""
        arguments = ["--out", str(out), "--shard", str(number), "--of", str(self.options.jobs)]
        arguments += ["--until", str(until), "--samples", str(self.options.operator_samples)]
        with Path(f"{out}.{number}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(self.our_words if ours else self.words),
                    *(str(HERE / "operators.py"), "run", *arguments),
                ],
                env=self.ours if ours else self.native,
                stdout=log,
                stderr=log,
            )

    def all_operators(self, out: Path, ours: bool) -> None:
        """Run every operator; a shard that died goes on behind the operator that did it."""
        begun = time.monotonic()
        # Twice the time: nothing that ran natively is to be missed for want of it.
        seconds = self.options.seconds * (2 if ours else 1)
        until = begun + seconds
        running = {i: self.shard(out, i, until, ours) for i in range(self.options.jobs)}
        while running:
            for number, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[number]
                if process.returncode != 0 and time.monotonic() < until:
                    running[number] = self.shard(out, number, until, ours)
            time.sleep(0.2)
        results, took = len(list(out.glob("*.pt"))), time.monotonic() - begun
        print(f"{out.name}: {results} results, {took:.0f} s", flush=True)

    def operators(self) -> bool:
        """PyTorch's operator database: twice natively, once through Sluice."""
        folder = self.options.results
        if self.options.fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        places = {n: folder / n for n in ("native", "native-again", "sluice")}
        for name, place in places.items():
            place.mkdir(exist_ok=True)
            self.all_operators(place, ours=name == "sluice")
        both = f"{places['native']},{places['native-again']}"
        command = [*self.words, str(HERE / "operators.py"), "compare", both, str(places["sluice"])]
        if self.options.python:
            command += ["--figure", "cu12_operators", "--threshold", "0.99"]
        commit = {k: v for k, v in os.environ.items() if k == "SLUICE_COMMIT"}
        done = subprocess.run(command, env={**self.native, **commit}, check=False)
        return done.returncode == 0

    def features(self) -> bool:
        """Small programs, over both channels."""
        return self.script("run_features.py", "--channels", "shm", "tcp", "--jobs", "3")

    def workloads(self) -> bool:
        """The figures; they decide nothing."""
        names = ["resnet50_train", "resnet50_infer", "gpt2_generate", "gpt2_train"]
        names = names[:3] if self.options.python else names
        arguments = ["--rounds", str(self.options.rounds), "--channels", "shm", "tcp", "--"]
        return self.script("run_workloads.py", *arguments, *names)

    def samples(self) -> bool:
        """NVIDIA's samples, over both channels."""
        place = self.options.samples
        kind = "--samples" if (place / "Samples").is_dir() else "--binaries"
        return self.script("run_samples.py", kind, str(place), "--channels", "shm", "tcp")

    def footprint(self) -> bool:
        """Memory of an idle session and CPU of launches; reported."""
        return self.script("footprint.py")

    def ddp(self) -> bool:
        """Two ranks over NCCL, sessions of one job; what they compute must be the same."""
        return self.script("run_ddp.py", "--rounds", "1", "--share")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="PyTorch natively and through Sluice.")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=10, help="of the workloads")
    parser.add_argument("--jobs", type=int, default=min(8, max(1, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--python", type=Path, help="with PyTorch for CUDA 12")
    parser.add_argument("--seconds", type=int, default=1800, help="for the operators of one run")
    parser.add_argument(
        "--operator-samples", type=int, default=1000, help="of each operator and dtype, at most"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "conformance")
    parser.add_argument("--fresh", action="store_true", help="forget earlier operator results")
    samples = os.environ.get("CUDA_SAMPLES", str(ROOT / "build" / "samples"))
    parser.add_argument("--samples", type=Path, default=Path(samples), help="cuda-samples 13")
    options = parser.parse_args()
    driver = gpu.find_driver()
    why = "this machine shows no NVIDIA GPU"
    if driver and options.python:
        why = lacking(str(options.python), own(os.environ))
    elif driver:
        why = lacking(sys.executable, dict(os.environ))
    if why:
        print(f"skipped: {why}\n0 passed, 0 failed, {len(options.parts)} skipped")
        return 0
    devices = gpus()
    gpu.SLICE_MIB = 14000  # so that eight sessions fit beside one another
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = gpu.Server(driver, folder, devices)
        try:
            conformance = Conformance(server, options)
            for part in options.parts:
                print(f"\n== {part}", flush=True)
                lacks = conformance.lacks(part, devices)
                if lacks:
                    print(f"skipped: {lacks}")
                    skipped += 1
                    continue
                good = bool(getattr(conformance, part)())
                passed, failed = passed + good, failed + (not good)
        finally:
            server.close()
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
