# SPDX-License-Identifier: Apache-2.0
"""The figures of `make bench`: what a CUDA call costs through Sluice, beside this machine's floor.

Uses the software GPU (with launches dropped where the launch itself is measured), the real worker
and channels; client start is taken with the real server and controller. Prints a table and writes
build/measurements/bench.jsonl (dev/measurements.py says what a record has, and takes it into the
documents). Timing decides nothing here: the exit status is 0 whenever everything could be measured.

    python tests/bench/bench.py [PART ...]         # calls, copies, relay …: PARTS below
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
NATIVE = ROOT / "build" / "native"
BENCH = ROOT / "build" / "bench"
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("demo", "programs", "harness")]

from console_load import console_figures  # noqa: E402
from container_identity import identity_figures  # noqa: E402
from counted import run_counted  # noqa: E402
from diverting import diverting_figures  # noqa: E402
from extender import extender_figures  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402
from free_ports import free_port  # noqa: E402
from grant_rates import store_figures  # noqa: E402
from managed_memory import managed_figures  # noqa: E402
from merging import merging_figures  # noqa: E402
from placement import decision_figures  # noqa: E402
from pool import Pool  # noqa: E402
from queue_wakeup import queue_figures  # noqa: E402
from relayed import relayed_calls, relayed_copies  # noqa: E402
from restart import restart_figures  # noqa: E402
from resumable import resumable_calls, resumable_copies  # noqa: E402

import build as programs_build  # noqa: E402

ROUNDS = 3


def compile_parts() -> None:
    """The benchmark's own programs."""
    failures = programs_build.build([HERE / "calls.cu", HERE / "managed.cu"], BENCH)
    if failures:
        raise SystemExit("\n".join(failures))
    generated = NATIVE / "generated"
    soft = NATIVE / "lib" / "libsluice-softgpu.so.1"
    commands = [
        [
            "g++",
            "-O2",
            "-std=c++20",
            "-pthread",
            str(HERE / "floors.cc"),
            "-o",
            str(BENCH / "floors"),
        ],
        [
            *("g++", "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{generated}"),
            str(HERE / "nullgpu.cc"),
            "-o",
            str(BENCH / "libnullgpu.so"),
            "-Wl,--no-as-needed",
            str(soft),
            f"-Wl,-rpath,{soft.parent}",
        ],
        [
            *("g++", "-O2", "-std=c++20"),
            str(HERE / "library_calls.cc"),
            "-o",
            str(BENCH / "library_calls"),
            *(str(NATIVE / "lib" / name) for name in ("libcublas.so.13", "libcuda.so.1")),
        ],
    ]
    for command in commands:
        subprocess.run(command, check=True)
    folder = BENCH / "lib"
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so.1", "libcudart.so.13", "libcublas.so.13"):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(NATIVE / "lib" / name)


class StaticServer:
    """tests/harness/static_server.py with one driver; environments for its clients."""

    def __init__(self, driver: Path, *more: str) -> None:
        self.socket = BENCH / f"static-{os.getpid()}{'-'.join(more)}.sock"
        self.http = free_port()
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "tests" / "harness" / "static_server.py")),
                *("--socket", str(self.socket), "--driver", str(driver), "--memory-mib", "2048"),
                *("--log-dir", str(BENCH / "log"), "--http-port", str(self.http), "--relay"),
                *("--libraries", str(NATIVE / "tests" / "fakelibs")),
                *("--prestart", "0"),  # none begins beside a session that is measured
                # so that a worker may read this checkout, wherever it lies
                *("--uid", str(os.geteuid())),
                *more,
            ],
            env={**os.environ, "SLUICE_NATIVE_DIR": str(NATIVE)},
        )
        deadline = time.monotonic() + 30
        while not self.socket.exists():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the static server does not start: see {BENCH / 'log'}")
            time.sleep(0.02)
        time.sleep(0.3)

    def environment(self, channel: str) -> dict[str, str]:
        """What a client needs to come here."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(BENCH / "lib"),
            "SLUICE_SERVER_SOCKET": f"{self.socket}{'.relay' if channel == 'relay' else ''}",
            "SLUICE_CONTROLLER": f"127.0.0.1:{self.http}",
            "SLUICE_CHANNEL": "shm" if channel == "relay" else channel,
        }

    def calls(self, channel: str, *words: str) -> dict[str, float]:
        """One run of the program `calls`."""
        return run_counted([str(BENCH / "calls"), *words], self.environment(channel))

    def close(self) -> None:
        """Ends it and its warm worker."""
        self.process.terminate()
        self.process.wait()


@contextmanager
def static_server(driver: Path, *more: str) -> Any:
    """A StaticServer for the time of a block; `more` are options of it."""
    server = StaticServer(driver, *more)
    try:
        yield server
    finally:
        server.close()


def run_json(command: list[str], environment: dict[str, str] | None = None) -> dict[str, float]:
    """A program that prints one JSON object, without a session."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def medians(run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Each figure's median over some runs."""
    runs = [run() for _ in range(ROUNDS)]
    return {key: median(r[key] for r in runs) for key in runs[0]}


def paired(
    floor: Callable[[], dict[str, float]], ours: Callable[[], dict[str, float]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Floor and figure in turn, so that a machine that drifts drifts for both."""
    floors, figures = [], []
    for _ in range(ROUNDS):
        floors.append(floor())
        figures.append(ours())
    return (
        {key: median(r[key] for r in floors) for key in floors[0]},
        {key: median(r[key] for r in figures) for key in figures[0]},
    )


def call_figures() -> list[Figure]:
    """Calls into a back end that does nothing."""
    with static_server(BENCH / "libnullgpu.so") as server:
        floor, shm = paired(
            lambda: run_json([str(BENCH / "floors")]), lambda: server.calls("shm", "calls")
        )
        tcp = medians(lambda: server.calls("tcp", "calls"))
        library = medians(
            lambda: run_counted([str(BENCH / "library_calls")], server.environment("shm"))
        )
    ping, tcp_ping = floor["shm_ping_pong_us"], floor["tcp_ping_pong_us"]
    return [
        Figure("async_call_us", shm["async_call_us"], "us", limit=0.3),
        Figure("async_calls_per_s", shm["async_calls_per_s"], "1/s", limit=1_500_000),
        # a cublasSgemm that is known to be valid, into a stand-in that does nothing
        Figure("library_call_us", library["library_call_us"], "us", limit=0.5),
        Figure("library_call_drained_us", library["library_call_drained_us"], "us"),
        Figure(
            "sync_call_shm_us",
            shm["round_trip_us"],
            "us",
            floor=ping,
            floor_of="bare ping-pong",
            limit=1.5 * ping + 1,
        ),
        Figure(
            "sync_call_tcp_us",
            tcp["round_trip_us"],
            "us",
            floor=tcp_ping,
            floor_of="bare TCP ping-pong",
            limit=1.15 * tcp_ping,
        ),
    ]


def copy_figures() -> list[Figure]:
    """Pageable copies to and from the software GPU."""
    soft = NATIVE / "lib" / "libsluice-softgpu.so.1"
    with static_server(soft) as server:
        floor, copy = paired(
            lambda: run_json([str(BENCH / "floors")]), lambda: server.calls("shm", "copy", "256")
        )
    ideal = floor["pipeline_gib_s"]
    rows = (
        ("pageable_copy_gib_s", "pageable_to_device_gib_s"),
        ("pageable_copy_back_gib_s", "pageable_to_host_gib_s"),
    )
    return [
        Figure(
            name,
            copy[key],
            "GiB/s",
            floor=ideal,
            floor_of="two memcpy in a pipeline",
            limit=0.85 * ideal if not i else None,
        )
        for i, (name, key) in enumerate(rows)
    ]


def managed_memory_figures() -> list[Figure]:
    """Managed memory on the software GPU, over shared memory."""
    with static_server(NATIVE / "lib" / "libsluice-softgpu.so.1") as server:
        command, environment = [str(BENCH / "managed"), "128"], server.environment("shm")
        return managed_figures(lambda: medians(lambda: run_json(command, environment)))


def relay_figures() -> list[Figure]:
    """Calls and copies whose worker a relay stands before."""
    with static_server(BENCH / "libnullgpu.so") as server:
        figures = relayed_calls(lambda: run_json([str(BENCH / "floors")]), server, ROUNDS)
    with static_server(NATIVE / "lib" / "libsluice-softgpu.so.1") as server:
        return figures + relayed_copies(server, ROUNDS)


def resumption_figures() -> list[Figure]:
    """What sessions cost that outlive their connections, beside those that do not."""
    figures, none = [], ("--network-grace-seconds", "0")
    null, soft = BENCH / "libnullgpu.so", NATIVE / "lib" / "libsluice-softgpu.so.1"
    with static_server(null) as resumable, static_server(null, *none) as plain:
        figures += resumable_calls(resumable, plain, ROUNDS)
    with static_server(soft) as resumable, static_server(soft, *none) as plain:
        return figures + resumable_copies(resumable, plain, ROUNDS)


def merge_figures() -> list[Figure]:
    """Launches of a program that never repeats, with merging and without."""
    with static_server(BENCH / "libnullgpu.so") as server:

        def run(how: str) -> dict[str, float]:
            environment = {**server.environment("shm"), "SLUICE_MERGE": how}
            return run_counted([str(BENCH / "calls"), "never"], environment)

        return merging_figures(run)


def divert_figures() -> list[Figure]:
    """What loading costs where runtimes inside of programs are diverted."""
    return diverting_figures(NATIVE / "lib", BENCH, ROUNDS)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def control_plane_figures() -> list[Figure]:
    """Start and idle cost with the real server and controller."""
    with Pool(BENCH / "pool", server={"driver": "softgpu"}) as pool:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(BENCH / "lib"),
            "SLUICE_SERVER_SOCKET": str(pool.socket),
            "SLUICE_CHANNEL": "shm",
        }
        starts = []
        for _ in range(9):
            time.sleep(1.0)  # the next worker is warm again
            starts.append(
                run_counted([str(BENCH / "calls"), "start"], environment)["client_start_ms"]
            )
        idle = idle_percent(pool, environment)
    return [
        Figure("client_start_ms", median(starts), "ms", limit=15),
        Figure("idle_cpu_percent", idle, "%", limit=0.5),
    ]


def worker_pid(pool: Pool) -> int:
    """The worker that has a session."""
    records = [
        json.loads(path.read_text()) for path in (pool.folder / "run" / "workers").glob("*.json")
    ]
    return int(next(record["pid"] for record in records if record["session"]))


def idle_percent(pool: Pool, environment: dict[str, str], seconds: int = 10) -> float:
    """CPU of an idle session: the busier of the application and its worker."""
    client = subprocess.Popen(
        [str(BENCH / "calls"), "idle", str(seconds + 5)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    client.stdout.readline()
    time.sleep(1)
    pids = [client.pid, worker_pid(pool)]
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    after = [cpu_seconds(pid) for pid in pids]
    if worker_pid(pool) != pids[1] or client.wait():
        raise SystemExit("the idle session ended while it was measured")
    return max(b - a for a, b in zip(before, after, strict=True)) / seconds * 100


PARTS: dict[str, Callable[[], list[Figure]]] = {
    "calls": call_figures,
    "copies": copy_figures,
    "managed": managed_memory_figures,
    "relay": relay_figures,
    "resumption": resumption_figures,
    "merging": merge_figures,
    "divert": divert_figures,
    "start": control_plane_figures,
    "grants": store_figures,
    "placement": decision_figures,
    "containers": identity_figures,
    "extender": extender_figures,
    "restart": restart_figures,
    "queue": queue_figures,
    "console": console_figures,
}
#: Those whose figures are medians over ROUNDS.
IN_ROUNDS = ("calls", "copies", "managed", "relay", "resumption", "divert")


def main() -> int:
    """Measures what is named, or everything; prints, writes."""
    wanted = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        raise SystemExit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    BENCH.mkdir(parents=True, exist_ok=True)
    compile_parts()
    run = Run("make bench")
    figures = []
    for name in wanted:
        part = PARTS[name]
        print(f"measuring: {(part.__doc__ or '').splitlines()[0]}", file=sys.stderr, flush=True)
        rounds = ROUNDS if name in IN_ROUNDS else None
        figures += [replace(figure, rounds=rounds) for figure in part()]
    publish("bench", figures, run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
