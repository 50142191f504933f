# SPDX-License-Identifier: Apache-2.0
"""The main job, shown: a guest without a GPU runs CUDA programs on the pool, and so does the host.

The last step of `make demo` (prepare.py has those before). Boots a guest under libvirt, gives it
a vGPU while it runs (`sluice vm attach`), installs the guest bundle in it, runs every program there
over ivshmem and here over shared memory and TCP, kills one in the guest and shows that its vGPU
came back. Ends with a table; exit status 0 only if all is right. `--without-guest` leaves the guest
out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "tests" / "harness")]
sys.path.insert(0, str(ROOT))

import programs as cuda  # noqa: E402
from build_programs import VICTIM  # noqa: E402
from pool import Pool  # noqa: E402

FOLDER = ROOT / "build" / "demo" / "pool"
BUNDLE = ROOT / "build" / "demo" / "bundle" / "sluice-guest-x86_64.tar.gz"
VGPU = {"SLUICE_VGPU": "1", "SLUICE_GMEM": "1024", "SLUICE_STATS": "1"}
#: When `make demo` began; the monotonic clock is the machine's, so prepare.py's is good here.
BEGAN = float(os.environ.get("SLUICE_DEMO_BEGAN") or time.monotonic())
SHARED_MEMORY = Path("/dev/shm")
#: Seconds; two are enough on an idle machine.
GUEST_BOOTS_WITHIN = 300


@dataclass
class Row:
    """A line of the closing table."""

    program: str
    channel: str
    problem: str
    round_trips: int | None
    commands: int | None
    seconds: float


def say(text: str) -> None:
    """Progress, with the time since the start."""
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", file=sys.stderr, flush=True)


def client_libraries() -> Path:
    """A folder with our libcuda.so.1 and libcudart.so.13 alone."""
    folder = FOLDER / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda.so.1", "libcudart.so.13"):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / "build" / "native" / "lib" / name)
    return folder


def run_host_channels(pool: Pool, rows: list[Row]) -> None:
    """Every program over shared memory and TCP."""
    common = {
        **VGPU,
        "LD_LIBRARY_PATH": str(client_libraries()),
        "SLUICE_CONTROLLER": pool.rest,
        "SLUICE_SERVER_SOCKET": str(pool.socket),
    }
    for channel in ("shm", "tcp"):
        for program in cuda.load_programs():
            run = cuda.run_on_host(program, {**common, "SLUICE_CHANNEL": channel})
            note(rows, run, channel)


def note(rows: list[Row], run: cuda.Run, channel: str) -> None:
    """Keeps and shows a result."""
    problem = run.problem()
    rows.append(Row(run.program.name, channel, problem, run.round_trips, run.commands, run.seconds))
    say(f"{run.program.name} over {channel}: {problem or 'right'} ({run.seconds:.2f} s)")


def sluice(*words: str, uri: str) -> str:
    """The `sluice` command of this checkout."""
    command = [sys.executable, "-m", "sluice.cli", *words, "--connect", uri]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def run_guest(pool: Pool, guest: Any, uri: str, rows: list[Row]) -> None:
    """Every program in the guest over ivshmem, then one that is killed."""
    say("sluice vm attach, while the guest runs:")
    answer = sluice(
        "vm",
        "attach",
        guest.name,
        "--memory-mib",
        "1024",
        "--compute",
        "25",
        "--region-mib",
        "256",
        "--slots",
        "4",
        uri=uri,
    )
    say("  " + (answer.splitlines() or ["done"])[-1])
    guest.put(BUNDLE, "/root/sluice-guest.tar.gz")
    guest.check(
        "cd /root && tar xzf sluice-guest.tar.gz && cd sluice-guest && ./install.sh", timeout=60
    )
    say("guest bundle installed")
    inside = Path("/root/programs")
    guest.put(cuda.PROGRAMS, str(inside))
    say(
        guest.run(f"sluice check {inside}/vector_add", timeout=60)[1]
        .strip()
        .replace("\n", "\n          ")
    )
    for program in cuda.load_programs():
        began = time.monotonic()
        code, out, err = guest.run(cuda.shell(program, inside), timeout=180, environment=VGPU)
        seconds = time.monotonic() - began
        note(rows, cuda.Run(program, code, out, err, seconds), "ivshmem")
    kill_in_guest(pool, guest, inside, rows)


def kill_in_guest(pool: Pool, guest: Any, inside: Path, rows: list[Row]) -> None:
    """SIGKILL: nobody in the guest says goodbye, and the vGPU comes back all the same."""
    pool.wait_empty()
    victim = guest.spawn(f"{inside}/{VICTIM} 600", VGPU)
    deadline = time.monotonic() + 30
    while not pool.grants():
        if time.monotonic() > deadline:
            raise RuntimeError("the program that is to be killed got no vGPU")
        time.sleep(0.05)
    held = pool.grants()[0]
    say(f"a program in the guest holds grant {held['id']}; killing it with SIGKILL")
    began = time.monotonic()
    victim.kill()
    problem = ""
    try:
        pool.wait_empty(5)
    except RuntimeError as error:
        problem = str(error)
    seconds = time.monotonic() - began
    rows.append(Row("SIGKILL, vGPU back", "ivshmem", problem, None, None, seconds))
    say(problem or f"its vGPU came back after {seconds:.2f} s")


def show(rows: list[Row], backend: str) -> bool:
    """The closing table; True when all is right."""
    table = Table(title=f"CUDA programs on the pool ({backend})")
    for column in ("program", "channel", "result"):
        table.add_column(column)
    for column in ("round trips", "async commands", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.program,
            row.channel,
            "[green]right[/]" if not row.problem else f"[red]{row.problem}[/]",
            "-" if row.round_trips is None else str(row.round_trips),
            "-" if row.commands is None else str(row.commands),
            f"{row.seconds:.2f}",
        )
    Console(width=max(100, shutil.get_terminal_size().columns)).print(table)
    return all(not row.problem for row in rows)


def regions_of(uuid: str, folder: Path = SHARED_MEMORY) -> list[str]:
    """What that guest has in shared memory; other guests' regions are not the demo's business."""
    return sorted(str(path) for path in folder.rglob(f"*{uuid}*"))


def main() -> int:
    """Runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without-guest", action="store_true", help="only the host's channels")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    rows: list[Row] = []
    try:
        return run_all(options.without_guest, rows)
    except KeyboardInterrupt:
        return 130  # guest, server and controller are ended
    except (RuntimeError, OSError) as error:
        rig = Path(os.environ.get("SLUICE_RIG", ROOT / "build" / "rig")) / "demo"
        print(
            f"\n    {error}\n\nthe demo stopped after {len(rows)} results.\n"
            f"  controller, server and workers: {FOLDER}/*.out, {FOLDER}/log\n"
            + (
                ""
                if options.without_guest
                else f"  the guest: {rig}/console-demo-guest.log, {rig}/log\n"
            )
            + "  what to do: see whether the machine was busy or short of memory (the guest has\n"
            "  512 MiB), then `make demo` again: nothing is built again.",
            file=sys.stderr,
        )
        return 1


def run_all(without_guest: bool, rows: list[Row]) -> int:
    """Everything, into `rows`; the exit status."""
    if without_guest:
        with Pool(FOLDER) as pool:
            backend = pool.get("/v1/gpus")["gpus"][0]["model"]
            run_host_channels(pool, rows)
            pool.wait_empty()
    else:
        from tests.rigs.kvm.rig import Rig

        with Rig("demo", progress=say) as rig:
            guest = rig.define_guest("demo-guest", mem_mib=512)
            say("the guest boots; its console: " + str(guest.console))
            guest.start()
            with Pool(FOLDER, libvirt_uri=rig.uri) as pool:
                backend = pool.get("/v1/gpus")["gpus"][0]["model"]
                say(f"controller and server run; the pool's GPU: {backend}")
                run_host_channels(pool, rows)
                guest.wait_ready(GUEST_BOOTS_WITHIN)
                run_guest(pool, guest, rig.uri, rows)
                sluice("vm", "detach", guest.name, uri=rig.uri)
                pool.wait_empty()
            left = regions_of(guest.uuid)
        rows.append(Row("nothing left in /dev/shm", "-", ", ".join(left), None, None, 0))
    return 0 if show(rows, backend) else 1


if __name__ == "__main__":
    sys.exit(main())
