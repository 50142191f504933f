# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's cuda-samples natively and through Sluice: a table, and `N passed, N failed, N skipped`.

    python tests/gpu/run_samples.py --samples CUDA_SAMPLES --libraries LIB --worker sluice-worker
    python tests/gpu/run_samples.py --binaries FOLDER --preload LIB:LIB

The first builds the samples where it runs (build_samples.py; needs nvcc 13 and the extracted
sources), the second takes what build_samples.py made elsewhere. Sluice's libraries come in by
LD_LIBRARY_PATH (--libraries, a folder) or LD_PRELOAD (--preload). With --worker it starts a server
of its own, whose Python needs what sluice-server imports, else SLUICE_SERVER_SOCKET names one. A
sample passes that ends with the same status as natively and says the same of its success; what it
prints besides is compared without numbers and in any order, and noted. What fails natively is
skipped, as is what build_samples.py left out. With --out, results are kept and a later run goes on
with what is missing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "harness"))

from session_logs import SessionLogs  # noqa: E402

WAIVED = 2
"""What samples end with that the machine cannot run."""
VERDICT = re.compile(r"pass|fail|error|success|assert|mismatch|waiv", re.IGNORECASE)
NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass(frozen=True)
class Run:
    """How one process ended."""

    status: int
    text: str
    seconds: float

    def lines(self) -> Counter[str]:
        """What it said, without what depends on the moment."""
        kept = (NUMBER.sub("#", line.strip()) for line in self.text.splitlines())
        return Counter(line for line in kept if line and not line.startswith("sluice:"))


@dataclass(frozen=True)
class Result:
    """A line of the table."""

    sample: str
    channel: str
    verdict: str
    native: str
    ours: str
    native_seconds: float
    seconds: float
    note: str


def once(folder: Path, name: str, environment: dict[str, str], seconds: int) -> Run:
    """Run the sample in its folder."""
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            [str(folder / name)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace")
        return Run(124, f"{text}\nnot done after {seconds} s", float(seconds))
    except OSError as error:
        return Run(126, str(error), 0.0)
    text = done.stdout.decode(errors="replace")
    return Run(done.returncode, text, time.perf_counter() - begun)


def last_words(run: Run) -> str:
    """Return the lines that say why."""
    lines = [line.strip() for line in run.text.splitlines() if line.strip()]
    said = [line for line in lines if "rror" in line or line.startswith("sluice:")]
    return " | ".join((said or lines)[-2:])[-220:]


def compare(name: str, channel: str, native: Run, ours: Run) -> Result:
    """Judge our run by the native one."""
    missing, added = native.lines() - ours.lines(), ours.lines() - native.lines()
    lost = [line for line in (*missing, *added) if VERDICT.search(line)]
    verdict, note = "same", ""
    if ours.status != native.status:
        verdict, note = "FAILED", last_words(ours)
    elif lost:
        verdict, note = (
            "DIFFERENT",
            f"only {'natively' if lost[0] in missing else 'ours'}: {lost[0]}",
        )
    elif missing or added:
        where, line = ("natively", next(iter(missing))) if missing else ("ours", next(iter(added)))
        note = f"text, only {where}: {line}"
    return Result(
        name,
        channel,
        verdict,
        f"status {native.status}",
        f"status {ours.status}",
        round(native.seconds, 2),
        round(ours.seconds, 2),
        note[:220],
    )


def find_driver() -> str:
    """NVIDIA's libcuda.so.1 as the loader finds it."""
    ctypes.CDLL("libcuda.so.1")
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcuda.so" in line:
            return line.split()[-1]
    return "libcuda.so.1"


class Server:
    """tests/harness/static_server.py with this GPU, for as long as the samples run."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        script = HERE.parent / "harness" / "static_server.py"
        self.socket = folder / "server.sock"
        self.log = SessionLogs(folder / "log")
        command = [sys.executable, str(script), "--socket", str(self.socket)]
        command += ["--driver", options.driver or find_driver(), "--log-dir", str(folder / "log")]
        command += ["--memory-mib", str(options.memory_mib), "--http-port", "19123"]
        if options.uid:
            command += ["--uid", str(options.uid)]
        programs = str(options.worker.resolve().parent)
        self.process = subprocess.Popen(command, env={**os.environ, "SLUICE_NATIVE_DIR": programs})
        deadline = time.monotonic() + 60
        while not self.socket.exists():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit("the server does not start")
            time.sleep(0.05)

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()
        lines = self.log.read_text().splitlines()
        print("\n".join([line for line in lines if " ERROR " in line][-20:]))


def native_environment(options: argparse.Namespace) -> dict[str, str]:
    """Without Sluice; with NVIDIA's runtime, wherever it is."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    folders = [str(path) for path in options.cuda_libraries]
    environment["LD_LIBRARY_PATH"] = ":".join(
        [*folders, *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    )
    return environment


def our_environment(
    options: argparse.Namespace, channel: str, socket: Path | None
) -> dict[str, str]:
    """Sluice's libraries first; NVIDIA's others (NVRTC) behind them."""
    environment = {**native_environment(options)}
    environment |= {k: v for k, v in os.environ.items() if k.startswith("SLUICE_")}
    if options.libraries:
        path = environment["LD_LIBRARY_PATH"]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(options.libraries), path]))
    if options.preload:
        environment["LD_PRELOAD"] = options.preload
    environment["SLUICE_CHANNEL"] = channel
    if socket:
        environment |= {
            "SLUICE_SERVER_SOCKET": str(socket),
            "SLUICE_CONTROLLER": "127.0.0.1:19123",
            "SLUICE_GMEM": str(options.memory_mib),
        }
    return environment


def run_all(options: argparse.Namespace, socket: Path | None) -> list[Result]:
    """Every sample that was built, natively and over each channel."""
    results: list[Result] = []
    if options.out and options.out.exists():
        results = [Result(**json.loads(line)) for line in options.out.read_text().splitlines()]

    def add(result: Result) -> None:
        results.append(result)
        show(result)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    record = options.binaries / "skipped.json"
    left_out = json.loads(record.read_text()) if record.exists() else {}
    built = sorted(p.name for p in options.binaries.iterdir() if (p / p.name).is_file())
    print(
        f"{'sample':29} {'channel':8} {'verdict':10} {'native':>10} {'s':>6} {'ours':>10} {'s':>6}"
    )
    known = {(result.sample, result.channel) for result in results}
    for result in results:
        show(result)
    for name in sorted({*built, *left_out}):
        if options.names and name not in options.names:
            continue
        folder = options.binaries / name
        wanted = [c for c in options.channels if not {(name, c), (name, "")} & known]
        if not wanted:
            continue
        if name in left_out:
            reason = left_out[name].splitlines()[0]
            add(Result(name, "", "skipped", "", "", 0.0, 0.0, reason[:220]))
            continue
        native = once(folder, name, native_environment(options), options.seconds)
        if native.status == WAIVED or (native.status and name not in options.expect_failure):
            why = "waived" if native.status == WAIVED else f"fails with {native.status}"
            note = f"{why} natively: {last_words(native)}"
            took = round(native.seconds, 2)
            add(Result(name, "", "skipped", f"status {native.status}", "", took, 0.0, note))
            continue
        for channel in wanted:
            ours = once(folder, name, our_environment(options, channel, socket), options.seconds)
            result = compare(name, channel, native, ours)
            add(result)
            if options.logs and result.verdict not in ("same", "skipped"):
                options.logs.mkdir(parents=True, exist_ok=True)
                (options.logs / f"{name}.native.txt").write_text(native.text)
                (options.logs / f"{name}.{channel}.txt").write_text(ours.text)
    return results


def show(result: Result) -> None:
    """Print one line."""
    print(
        f"{result.sample:29} {result.channel:8} {result.verdict:10} {result.native:>10} "
        f"{result.native_seconds:6.2f} {result.ours:>10} {result.seconds:6.2f}  {result.note}",
        flush=True,
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=Path, help="extracted cuda-samples, to be built here")
    parser.add_argument("--binaries", type=Path, help="what build_samples.py made")
    parser.add_argument("--libraries", type=Path, help="folder with Sluice's client libraries")
    parser.add_argument("--preload", help="Sluice's client libraries, LIB:LIB")
    parser.add_argument("--cuda-libraries", type=Path, nargs="*", default=default_cuda_libraries())
    parser.add_argument("--worker", type=Path, help="start a server with this sluice-worker")
    parser.add_argument("--driver", help="the worker's driver; default: NVIDIA's")
    parser.add_argument("--memory-mib", type=int, default=16384)
    parser.add_argument("--uid", type=int, default=0, help="the worker's user")
    parser.add_argument("--channels", nargs="*", default=["shm"])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--out", type=Path, help="results, a line of JSON each")
    parser.add_argument("--logs", type=Path, help="folder for the output of what differs")
    parser.add_argument(
        "--expect-failure",
        nargs="*",
        default=["simpleAssert", "simpleAssert_nvrtc"],
        help="samples whose status need not be 0 natively",
    )
    options = parser.parse_intermixed_args()
    if options.samples:
        options.binaries = options.binaries or HERE.parents[1] / "build" / "samples"
        command = [sys.executable, str(HERE / "build_samples.py"), str(options.samples)]
        subprocess.run([*command, "--out", str(options.binaries)], check=True)
    if not options.binaries:
        parser.error("--samples or --binaries is needed")
    options.binaries = options.binaries.resolve()
    with tempfile.TemporaryDirectory(prefix="sluice-samples-") as name:
        Path(name).chmod(0o755)
        server = Server(options, Path(name)) if options.worker else None
        try:
            results = run_all(options, server.socket if server else None)
        finally:
            if server:
                server.close()
    count = Counter(result.verdict for result in results)
    failed = count["FAILED"] + count["DIFFERENT"]
    print(f"{count['same']} passed, {failed} failed, {count['skipped']} skipped")
    return 1 if failed else 0


def default_cuda_libraries() -> list[Path]:
    """Where NVIDIA's runtime lies on a machine with the toolkit."""
    return [path for path in (Path("/usr/local/cuda/lib64"),) if path.exists()]


if __name__ == "__main__":
    sys.exit(main())
