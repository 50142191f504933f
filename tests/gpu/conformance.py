# SPDX-License-Identifier: Apache-2.0
"""The conformance run with PyTorch, part of `make test-gpu`: all that applications do, compared.

    python tests/gpu/conformance.py [--parts operators samples …] [--rounds 10] [--samples FOLDER]

Natively and through Sluice, compared; each part prints its table. Sessions come from the static
server (run.py), confined and as an ordinary user. The machine's own Python must have PyTorch for
CUDA 13; what is missing is skipped, by name and reason. NVIDIA's cuda-samples are not part of
Sluice: --samples (or CUDA_SAMPLES) is their checkout, or the folder that build_samples.py made of
it. Operator results are kept under --results (build/conformance), so a run that was cut short goes
on; --fresh begins anew. The last line counts parts.
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

PARTS = ("operators", "features", "samples", "ddp", "footprint", "workloads")


def lacking() -> str:
    """What of this Python is missing for any of it, or nothing."""
    check = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
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
        self.native = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        self.ours = {
            **self.native,
            **server.environments["shm"],
            "SLUICE_CONTROLLER": server.environments["tcp"]["SLUICE_CONTROLLER"],
            "LD_PRELOAD": self.preload,
        }
        del self.ours["SLUICE_STATS"]
        self.driving = {k: v for k, v in self.ours.items() if k != "LD_PRELOAD"}

    def lacks(self, part: str, devices: list[str]) -> str:
        """What this machine lacks for that part, or nothing."""
        if part == "ddp" and len(devices) < 2:
            return "it needs two GPUs"
        if part == "samples" and not self.options.samples.is_dir():
            return f"{self.options.samples} is no folder: --samples names a cuda-samples checkout"
        return ""

    def script(self, name: str, *arguments: str) -> bool:
        """Run one of the scripts beside this one; it compares by itself."""
        command = [sys.executable, str(HERE / name), "--preload", self.preload, *arguments]
        # The script itself is native: only the processes that it starts get the libraries.
        environment = {**self.driving, "LD_LIBRARY_PATH": self.native.get("LD_LIBRARY_PATH", "")}
        return subprocess.run(command, env=environment, check=False).returncode == 0

    def shard(self, out: Path, number: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start one process of the operator run."""
        arguments = ["--out", str(out), "--shard", str(number), "--of", str(self.options.jobs)]
        with Path(f"{out}.{number}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "operators.py"), "run", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def all_operators(self, out: Path, environment: dict[str, str]) -> None:
        """Run every operator; a shard that died goes on behind the operator that did it."""
        begun = time.monotonic()
        running = {i: self.shard(out, i, environment) for i in range(self.options.jobs)}
        while running:
            for number, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[number]
                late = time.monotonic() - begun > self.options.seconds
                if process.returncode != 0 and not late:
                    running[number] = self.shard(out, number, environment)
            time.sleep(0.2)
        print(f"{out.name}: {len(list(out.glob('*.pt')))} results", flush=True)

    def operators(self) -> bool:
        """PyTorch's operator database: twice natively, once through Sluice."""
        folder = self.options.results
        if self.options.fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        places = {n: folder / n for n in ("native", "native-again", "sluice")}
        for name, place in places.items():
            place.mkdir(exist_ok=True)
            self.all_operators(place, self.ours if name == "sluice" else self.native)
        both = f"{places['native']},{places['native-again']}"
        command = [sys.executable, str(HERE / "operators.py"), "compare", both]
        done = subprocess.run([*command, str(places["sluice"])], env=self.native, check=False)
        return done.returncode == 0

    def features(self) -> bool:
        """Small programs, over both channels."""
        return self.script("run_features.py", "--channels", "shm", "tcp", "--jobs", "3")

    def workloads(self) -> bool:
        """The figures; they decide nothing."""
        names = ["resnet50_train", "resnet50_infer", "gpt2_generate", "gpt2_train"]
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
    parser.add_argument("--seconds", type=int, default=1800, help="for the operators of one run")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "conformance")
    parser.add_argument("--fresh", action="store_true", help="forget earlier operator results")
    samples = os.environ.get("CUDA_SAMPLES", str(ROOT / "build" / "samples"))
    parser.add_argument("--samples", type=Path, default=Path(samples), help="cuda-samples 13")
    options = parser.parse_args()
    driver = gpu.find_driver()
    why = lacking() if driver else "this machine shows no NVIDIA GPU"
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
