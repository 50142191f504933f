# SPDX-License-Identifier: Apache-2.0
"""`make test-gpu`: every program natively and through Sluice on an NVIDIA GPU, and the timings.

Needs an NVIDIA driver, a built native part (SLUICE_NATIVE_DIR, else build/native), built programs
(build/programs, build/bench/calls: `make programs` and `make bench` build them) and what
sluice-server imports; `make gpu-host` packs all of it for a machine that has only a Python, and no
network. Sessions come from tests/harness/static_server.py, with the sandbox on and the worker as
an ordinary user. Prints the programs' table, the timings' table
and `N passed, N failed`, and writes build/measurements/calls.jsonl (dev/measurements.py keeps it
for the documents); exit status 0 only without a failure. Without a GPU it says so and counts
everything as skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "demo"), str(ROOT / "tests" / "harness"), str(ROOT / "dev")]

import programs as cuda  # noqa: E402
from bare_sockets import socket_gib_s  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from session_logs import SessionLogs  # noqa: E402

#: Whose processes open each other's memory: where a server does not know their user, as a job.
SHARING = ("ipc", "shared_allocations", "shared_pool")
NATIVE = Path(os.environ.get("SLUICE_NATIVE_DIR", ROOT / "build" / "native"))
CALLS = ROOT / "build" / "bench" / "calls"
MANAGED = ROOT / "build" / "bench" / "managed"
SLICE_MIB = 16384
NOBODY = 65534
UNIT = {"_us": "us", "_gib_s": "GiB/s", "_ms": "ms"}


def find_driver() -> str:
    """NVIDIA's libcuda.so.1, as the loader finds it; "" where there is none that shows a GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    count = ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return ""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcuda.so" in line:
            return line.split()[-1]
    return "libcuda.so.1"


def find_runtime(version: int = 13) -> Path | None:
    """A folder with NVIDIA's own libcudart of that major version, for the native runs."""
    if version == 12:
        place = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime" / "lib"
        return place if (place / "libcudart.so.12").exists() else None
    places = [Path("/usr/local/cuda/lib64"), ROOT / "build" / "cuda13" / "nvidia" / "cu13" / "lib"]
    places += [Path(p) / "nvidia" / "cu13" / "lib" for p in sys.path if p]
    return next((p for p in places if (p / "libcudart.so.13").exists()), None)


def built(name: str) -> Path:
    """A native file, in a build folder or beside the others."""
    for place in (NATIVE / "bin" / name, NATIVE / "lib" / name, NATIVE / name):
        if place.exists():
            return place
    raise SystemExit(f"{name} is not built in {NATIVE}: run `make native`")


def libraries_of(folder: Path) -> list[Path]:
    """Sluice's libraries for CUDA 13 in a folder, by their SONAMEs.

    Those of CUDA 12 alone are in its folder cuda12, too: with both in it a program is of neither.
    """
    found = sorted(folder.glob("lib*.so.[0-9]*"))
    others = folder / "cuda12"
    return [p for p in found if not (p.name.startswith("libsluice") or (others / p.name).exists())]


def preload_of(folder: Path) -> str:
    """LD_PRELOAD, for a program that brings NVIDIA's: PyTorch's wheels name their own folders."""
    return ":".join(map(str, libraries_of(folder)))


def native_environment() -> dict[str, str]:
    """The environment of a program that uses the GPU itself: this process's, nothing of Sluice."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}


class Server:
    """The static server on the GPU."""

    def __init__(
        self,
        driver: str,
        folder: Path,
        devices: Sequence[str] = (),
        libraries: str | None = None,
        memory_mib: int = SLICE_MIB,
        uid: int | None = NOBODY,
        options: Sequence[str] = (),
        http_port: int = 19123,
    ) -> None:
        """`uid`: whose all workers are; None: each grant's, or project's, own.

        `options`: of static_server.py besides.
        """
        self.folder = folder
        self.socket = folder / "server.sock"
        self.log = SessionLogs(folder / "log")
        library = folder / "lib"
        library.mkdir()
        for name in ("libcuda.so.1", "libcudart.so.13"):
            (library / name).symlink_to(built(name).resolve())
        # the forwarding libraries: libcublas.so.13 and so on
        place = built("libcuda.so.1").parent.resolve()
        for path in libraries_of(place):
            if not (library / path.name).exists():
                (library / path.name).symlink_to(path.resolve())
        (library / "cuda12").symlink_to(place / "cuda12")
        self.preload = preload_of(library)
        self.environments = {
            "shm": {"SLUICE_CHANNEL": "shm"},
            "tcp": {"SLUICE_CHANNEL": "tcp", "SLUICE_CONTROLLER": f"127.0.0.1:{http_port}"},
            # shared memory as far as the relay, and the data port behind it
            "relay": {"SLUICE_CHANNEL": "shm"},
        }
        for channel, environment in self.environments.items():
            environment |= {
                "LD_LIBRARY_PATH": str(library),
                "SLUICE_SERVER_SOCKET": f"{self.socket}{'.relay' if channel == 'relay' else ''}",
                "SLUICE_STATS": "1",
                "SLUICE_GMEM": str(memory_mib),
                "HOME": str(folder),
            }
        command = [sys.executable, str(ROOT / "tests" / "harness" / "static_server.py")]
        command += ["--socket", str(self.socket), "--log-dir", str(folder / "log")]
        command += ["--driver", driver, "--memory-mib", str(memory_mib), "--arena-mib", "4096"]
        command += ["--http-port", str(http_port), "--relay"]
        command += ["--run-together"]  # as is the default
        command += ["--bulk-connections", "8", *options]
        if uid is not None:
            command += ["--uid", str(uid)]
        if libraries is not None:
            command += ["--libraries", libraries]
        if len(devices) > 1:
            command += ["--vgpus", str(len(devices)), "--visible-devices", ",".join(devices)]
            for environment in self.environments.values():
                environment["SLUICE_VGPU"] = str(len(devices))
        self.process = subprocess.Popen(
            command, env={**os.environ, "SLUICE_NATIVE_DIR": str(NATIVE.resolve())}
        )
        deadline = time.monotonic() + 60
        while not self.socket.exists():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the server does not start:\n{self.server_log()}")
            time.sleep(0.05)

    def preloading(self, channel: str, http_port: int | None = None) -> dict[str, str]:
        """The environment of a program that brings NVIDIA's libraries, as PyTorch's wheels do.

        It is native_environment() with Sluice's libraries loaded first. What it starts may choose
        another channel. `http_port`: the controller's on another network (`--way`).
        """
        found = {**native_environment(), **self.environments["tcp"], **self.environments[channel]}
        del found["SLUICE_STATS"]  # nobody asks for what it prints
        if http_port is not None:
            found["SLUICE_CONTROLLER"] = f"127.0.0.1:{http_port}"
        return {**found, "LD_PRELOAD": self.preload}

    def under_run(self, channel: str) -> dict[str, str]:
        """The variables of a program that `sluice run` starts, which finds libraries by itself."""
        found = dict(self.environments[channel])
        del found["LD_LIBRARY_PATH"]
        del found["SLUICE_STATS"]  # among errors they would stand before the reasons
        return {**found, "SLUICE_LIBRARIES": str(built("libcuda.so.1").parent)}

    def server_log(self) -> str:
        """What the server says of itself."""
        path = self.folder / "log" / "server.log"
        return path.read_text() if path.exists() else "it says nothing"

    def close(self) -> None:
        """Ends the server and its warm worker."""
        self.process.terminate()
        self.process.wait()


def listed_programs(version: int, only: Sequence[str]) -> list[cuda.Program]:
    """Those of tests/demo for a version of CUDA, by the names of what was built.

    For CUDA 12 none is linked with the device runtime, and not all are there.
    """
    listed = [
        one
        for one in cuda.load_programs(milestone_only=False)
        if (not only or one.name in only) and not (version == 12 and (one.linked or not one.cuda12))
    ]
    if version == 12:
        return [replace(one, name=f"cuda12/{one.name}") for one in listed]
    return [replace(one, name=f"{one.name}_linked") if one.linked else one for one in listed]


def run_natively(native: dict[str, str], programs: list[cuda.Program]) -> dict[str, cuda.Run]:
    """Every program on the GPU itself, which nobody else may use: some say what memory is free."""
    runs = {}
    for program in programs:
        runs[program.name] = cuda.run_on_host(program, native)
        time.sleep(0.5)  # a process is gone before its memory is free
    return runs


def run_programs(
    server: Server, programs: list[cuda.Program], natively: dict[str, cuda.Run]
) -> tuple[int, int]:
    """Every program over every channel; what it printed has to be the same as natively."""
    passed = failed = 0
    print(
        f"{'program':26} {'channel':8} {'result':40} {'round trips':>11} "
        f"{'native s':>9} {'ours s':>7}"
    )
    for program in programs:
        here = natively[program.name]
        for channel, environment in server.environments.items():
            if channel in ("tcp", "relay") and not program.tcp:
                continue
            if program.name.startswith("cuda12/"):
                folder = environment["LD_LIBRARY_PATH"]
                environment = {**environment, "LD_LIBRARY_PATH": f"{folder}:{folder}/cuda12"}
            if channel in ("tcp", "relay") and Path(program.name).name in SHARING:
                environment = {**environment, "SLUICE_JOB": secrets.token_hex(16)}
            run = cuda.run_on_host(program, environment)
            problem = run.problem(here.out)
            known = "is not supported yet" in run.err
            result = (
                "same as native" if not problem else ("not supported yet" if known else problem)
            )
            print(
                f"{program.name:26} {channel:8} {result[:40]:40} {run.round_trips or 0:11} "
                f"{here.seconds:9.2f} {run.seconds:7.2f}",
                flush=True,
            )
            if not problem:
                passed += 1
            elif not known:
                failed += 1
                print(f"    {problem}", flush=True)
    return passed, failed


def residue(server: Server) -> bool:
    """Whether a session finds nothing of the session before it in 4 GiB of fresh device memory."""
    program = next(p for p in cuda.load_programs(milestone_only=False) if p.name == "residue")
    codes = []
    for arguments in (("write", "4096"), ("read", "4096")):
        time.sleep(1)  # the card's memory is given back when the last process has gone
        run = cuda.run_on_host(replace(program, arguments=arguments), server.environments["shm"])
        codes.append(run.code)
    print(f"\nnothing of another session in fresh memory: {'yes' if codes == [0, 0] else 'NO'}")
    return codes == [0, 0]


def spread(ratios: Sequence[float]) -> str:
    """The median, and from where to where."""
    return f"{median(ratios):7.2f} {min(ratios):6.2f}-{max(ratios):<6.2f}"


def unit_of(key: str) -> str:
    """The unit that a figure's name ends with."""
    return next(unit for end, unit in UNIT.items() if key.endswith(end))


def timings(server: Server, native: dict[str, str], pairs: int) -> None:
    """Native and ours in turn; medians and the paired ratios with their spread."""
    run_of = Run("python tests/gpu/run.py --parts timings", rounds=pairs, gpu=True)
    measured: list[Measurement] = []

    def once(environment: dict[str, str], mib: int) -> dict[str, float]:
        time.sleep(0.7)  # the next worker warms up meanwhile
        done = subprocess.run(
            [str(CALLS), "gpu", str(mib)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"calls gpu: {done.stderr}")
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    runs: dict[str, list[dict[str, float]]] = {"native": [], "shm": [], "tcp": []}
    sockets: dict[str, list[float]] = {"": [], "to_device": [], "to_host": []}
    for _ in range(pairs):
        runs["native"].append(once(native, 1024))
        runs["shm"].append(once(server.environments["shm"], 1024))
        sockets[""].append(socket_gib_s(1024))
        sockets["to_device"].append(socket_gib_s(1024, from_mib=1024))
        sockets["to_host"].append(socket_gib_s(1024, to_mib=1024))
        runs["tcp"].append(once(server.environments["tcp"], 1024))
    print(
        f"\n{'figure':28} {'native':>10} {'ours, shm':>10} {'ratio':>7} {'spread':>13} "
        f"{'ours, tcp':>10} {'ratio':>7} {'spread':>13}  {'of the socket':>13}"
    )
    for key in runs["native"][0]:
        values = {name: [run[key] for run in of] for name, of in runs.items()}
        middle = {name: median(of) for name, of in values.items()}
        ratios = {
            name: [ours / own for own, ours in zip(values["native"], values[name], strict=True)]
            for name in ("shm", "tcp")
        }
        for name, of_pairs in ratios.items():
            measured.append(
                run_of.record(
                    key,
                    middle[name],
                    unit_of(key),
                    channel=name,
                    floor=middle["native"],
                    floor_of="native",
                    values=values[name],
                    pairs=of_pairs,
                )
            )
        line = f"{key:28} {middle['native']:10.3f} {middle['shm']:10.3f} {spread(ratios['shm'])} "
        line += f"{middle['tcp']:10.3f} {spread(ratios['tcp'])}"
        if key.endswith("gib_s"):
            floors = sockets["to_device" if "to_device" in key else "to_host"]
            of_socket = [o / s for o, s in zip(values["tcp"], floors, strict=True)]
            line += "  " + spread(of_socket)
            measured.append(
                run_of.record(
                    f"{key}_of_socket",
                    middle["tcp"],
                    "GiB/s",
                    channel="tcp",
                    floor=median(floors),
                    floor_of="a bare socket with the same memory",
                    values=values["tcp"],
                    pairs=of_socket,
                )
            )
        print(line)
    for name, text in (
        ("", "from cache to cache"),
        ("to_device", "sending 1 GiB of memory"),
        ("to_host", "receiving 1 GiB of memory"),
    ):
        print(f"bare socket, {text:26} {median(sockets[name]):6.2f} GiB/s")
    print(f"figures: {write_measured('calls', measured)}")


def managed(server: Server, native: dict[str, str], rounds: int) -> None:
    """Managed memory: what was prefetched beside native, first touches beside a pageable copy."""
    run_of = Run("python tests/gpu/run.py --parts managed", rounds=rounds, gpu=True)

    def once(environment: dict[str, str]) -> dict[str, float]:
        time.sleep(0.7)  # the next worker warms up meanwhile
        command = [str(MANAGED), "256"]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    runs = [(once(native), once(server.environments["shm"])) for _ in range(rounds)]
    names = {
        "managed_prefetched": ("prefetched_gib_s", "native", lambda a, b: a["prefetched_gib_s"]),
        "managed_faulted": (
            "faulted_gib_s",
            "a pageable copy to the host, ours",
            lambda a, b: b["copied_gib_s"],
        ),
        "managed_faulted_of_native": (
            "faulted_gib_s",
            "native",
            lambda a, b: a["faulted_gib_s"],
        ),
    }
    measured = []
    for name, (key, floor_of, floor) in names.items():
        values, floors = [b[key] for _, b in runs], [floor(a, b) for a, b in runs]
        pairs = [v / f for v, f in zip(values, floors, strict=True)]
        print(
            f"{name:28} {median(values):8.2f} GiB/s, {floor_of} {median(floors):8.2f} "
            f"{spread(pairs)}"
        )
        measured.append(
            run_of.record(
                name,
                median(values),
                "GiB/s",
                channel="shm",
                floor=median(floors),
                floor_of=floor_of,
                values=values,
                pairs=pairs,
            )
        )
    print(f"figures: {write_measured('managed', measured)}")


def main() -> int:
    """Programs, then timings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pairs", type=int, default=10, help="alternating native/Sluice pairs of the timings"
    )
    parser.add_argument("--parts", nargs="*", default=["programs", "timings", "managed"])
    parser.add_argument("--cuda", type=int, choices=(12, 13), default=13, help="of the programs")
    parser.add_argument("--only", nargs="*", default=[], help="these programs")
    options = parser.parse_args()
    driver, runtime = find_driver(), find_runtime(options.cuda)
    if not driver:
        count = len(cuda.load_programs(milestone_only=False)) * 2
        print(
            "skipped: this machine shows no NVIDIA GPU (libcuda.so.1 is missing or has no device)"
        )
        print(f"0 passed, 0 failed, {count} skipped")
        return 0
    if runtime is None:
        raise SystemExit(
            f"NVIDIA's libcudart.so.{options.cuda} was not found: there is nothing to compare with"
        )
    programs = listed_programs(options.cuda, options.only)
    native = {"LD_LIBRARY_PATH": str(runtime), "SLUICE_GMEM": str(SLICE_MIB)}
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        natively = run_natively(native, programs) if "programs" in options.parts else {}
        server = Server(driver, folder)
        try:
            passed = failed = 0
            if natively:
                passed, failed = run_programs(server, programs, natively)
                if not options.only:
                    clean = residue(server)
                    passed, failed = passed + clean, failed + (not clean)
            if "timings" in options.parts and CALLS.exists():
                timings(server, native, options.pairs)
            if "managed" in options.parts and MANAGED.exists():
                managed(server, native, rounds=5)
        finally:
            server.close()
            bad = [
                line
                for line in server.log.read_text().splitlines()
                if " ERROR " in line or "bad command" in line
            ]
            print("\n".join(bad[-20:]))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
