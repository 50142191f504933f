#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo`: installs and builds what the demo needs, one step after the other, then runs it.

Runs with the system's Python before anything is installed, so it needs the standard library only.
It says at once what would stop it later, shows which step runs and for how long, keeps each step's
output in build/demo/logs, and names that file and what to do where a step fails. Steps that are
done cost little when they run again. Run by root for another user's checkout (sudo), it leaves what
it made to that user.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")
MIB = 1 << 20
#: What the build, the virtual environment, the CUDA compiler and the guest's kernel take.
DISK_MIB = 3000
#: The guest's region.
SHARED_MEMORY_MIB = 300
#: Seconds between two lines about a step that goes on.
PROGRESS_EVERY = 10.0
#: What a path may have besides letters and digits: it stands in PATH, in a kernel's command line.
PATH_SIGNS = "/._+@~-"
#: What ninja shows: "[12/240] …".
COUNTED = re.compile(r"^\[(\d+)/(\d+)\]", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """One command, what it is for, and what helps where it fails."""

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    advice: str


class StepFailed(Exception):
    """A step ended with an error; the message is for the user."""


def obstacles(checkout: Path, *, guest: bool) -> list[str]:
    """What would stop the demo minutes later, each with what to do."""
    found = []
    signs = sorted(
        {sign for sign in str(checkout) if not sign.isalnum() and sign not in PATH_SIGNS}
    )
    if signs:
        found.append(
            f"the checkout's path, {checkout}, has {' '.join(map(repr, signs))}, which PATH or the "
            f"guest's kernel does not take: move it to a path of letters, digits and {PATH_SIGNS}"
        )
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever `python3` is there
        found.append(
            f"{sys.executable} is Python {sys.version.split()[0]}; 3.11 is needed: "
            "make demo PYTHON=/path/to/python3.11"
        )
    if os.uname().machine != "x86_64":
        found.append(f"this machine is {os.uname().machine}; Sluice's native part is for x86_64")
    if guest and os.geteuid() != 0:
        found.append(
            "the guest's libvirt needs root: `sudo make demo`, or `make demo GUEST=no` for the "
            "host's part alone"
        )
    found += obstacles_of_file_systems(checkout, guest=guest)
    cache = checkout / "build" / "native" / "CMakeCache.txt"
    if (
        cache.exists()
        and f"CMAKE_HOME_DIRECTORY:INTERNAL={checkout}/native\n" not in cache.read_text()
    ):
        found.append(
            f"{checkout}/build is another folder's, moved or copied here: "
            f"rm -rf {checkout}/build {checkout}/.venv"
        )
    return found


def obstacles_of_file_systems(checkout: Path, *, guest: bool) -> list[str]:
    """Where there is no room, or nothing may be run."""
    found = []
    if os.statvfs(checkout).f_flag & os.ST_NOEXEC:
        found.append(
            f"{checkout} is on a file system on which nothing may be run (noexec): "
            "move the checkout to another"
        )
    built = (checkout / "build" / "native" / "bin" / "sluice-worker").exists()
    free = shutil.disk_usage(checkout).free // MIB
    if not built and free < DISK_MIB:
        found.append(f"{checkout} has {free} MiB of room; the first run needs about {DISK_MIB}")
    shared = shutil.disk_usage(SHARED_MEMORY).free // MIB
    if guest and shared < SHARED_MEMORY_MIB:
        found.append(
            f"{SHARED_MEMORY} has {shared} MiB of room; the guest's region needs "
            f"{SHARED_MEMORY_MIB}: mount -o remount,size=1g {SHARED_MEMORY} "
            "(in a container: --shm-size=1g)"
        )
    return found


def steps(checkout: Path, *, guest: bool, jobs: int) -> list[Step]:
    """All of them, in order."""
    python = str(checkout / ".venv" / "bin" / "python")
    native = str(checkout / "build" / "native")
    without_tests = not (checkout / "build" / "native" / "CMakeCache.txt").exists()
    network = "the package index must be reachable (a proxy: https_proxy, PIP_INDEX_URL)"
    all_steps = [
        Step(
            "packages",
            "Debian's packages",
            (("dev/install_debian.sh", "demo" if guest else "demo-host"),),
            "Debian's mirror must be reachable and nothing else use apt now: `apt-get update` as "
            "root says what is wrong. On another distribution install the equivalents of the "
            "packages that dev/install_debian.sh names",
        ),
        Step(
            "python",
            "Python environment in .venv",
            (*python_commands(checkout, python), (python, "dev/python_layout.py")),
            f"{network}; a .venv that does not work: rm -rf {checkout}/.venv",
        ),
        Step(
            "native",
            "native part (client libraries, worker, software GPU)",
            (
                (
                    *(
                        "flock",
                        "build/.native.lock",
                        "cmake",
                        "-S",
                        "native",
                        "-B",
                        native,
                        "-G",
                        "Ninja",
                    ),
                    f"-DSLUICE_PYTHON={python}",
                    *(("-DSLUICE_TESTS=OFF",) if without_tests else ()),
                ),
                (
                    *("flock", "build/.native.lock", "cmake", "--build", native),
                    *("-j", str(jobs), "--target", "sluice_demo"),
                ),
            ),
            "the log's first `error:` says what the compiler missed. `Killed` means that memory is "
            f"short: make demo DEMO_JOBS=1. Left over from another compiler: rm -rf {native}",
        ),
        Step(
            "programs",
            "CUDA programs (NVIDIA's compiler comes from PyPI)",
            (
                (
                    *("flock", "build/.programs.lock", python, "tests/demo/build_programs.py"),
                    str(jobs),
                ),
            ),
            f"{network}; a compiler that came in part: rm -rf {checkout}/build/cuda13",
        ),
    ]
    if guest:
        all_steps += [
            Step(
                "guest",
                "the guest's kernel and first file system",
                (
                    (
                        python,
                        "-m",
                        "tests.rigs.kvm.images",
                        str(checkout / "build" / "rig" / "images"),
                    ),
                ),
                "Debian's mirror must be reachable (`apt-get update`); files that came in part: "
                f"rm -rf {checkout}/build/rig/images",
            ),
            Step(
                "bundle",
                "what is installed in the guest",
                (
                    (
                        *(python, "packaging/guest_bundle.py", "--built", native),
                        *("--dist", str(checkout / "build" / "demo" / "bundle")),
                    ),
                ),
                f"parts of the native build are missing: rm -rf {native}",
            ),
        ]
    return all_steps


def python_commands(checkout: Path, python: str) -> tuple[tuple[str, ...], ...]:
    """What makes the environment, none when it was made for this pyproject.toml."""
    stamp = checkout / ".venv" / "sluice-demo"
    project = checkout / "pyproject.toml"
    base = checkout / "build" / ".base"  # its environment has more
    commands: list[tuple[str, ...]] = []
    if not os.access(python, os.X_OK):
        # one whose Python this user cannot run, or is gone, is made anew
        commands.append((sys.executable, "-m", "venv", "--clear", str(checkout / ".venv")))
    elif any(
        made.exists() and made.stat().st_mtime >= project.stat().st_mtime for made in (stamp, base)
    ):
        return ()
    commands.append((python, "dev/install_requirements.py", "demo"))
    commands.append(("touch", str(stamp)))
    return tuple(commands)


def environment(checkout: Path) -> dict[str, str]:
    """The caller's, without what he may have set for a pool of his own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("SLUICE_RIG", "SLUICE_DEMO_BEGAN") or not name.startswith("SLUICE_")
    }
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV"):
        kept.pop(name, None)
    kept["PYTHONPATH"] = str(checkout / "python")
    kept["PATH"] = os.pathsep.join(
        [str(checkout / ".venv" / "bin"), kept.get("PATH", ""), "/usr/sbin", "/sbin"]
    )
    return kept


def run_step(step: Step, checkout: Path, log: Path, say: Callable[[str], None]) -> None:
    """Runs a step's commands with their output in `log`; StepFailed says what helps."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    for command in step.commands:
        with log.open("ab") as out:
            out.write(f"$ {shlex.join(command)}\n".encode())
            out.flush()
            try:
                process = subprocess.Popen(
                    command,
                    cwd=checkout,
                    env=environment(checkout),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            except OSError as error:
                raise StepFailed(failure(step, f"{command[0]}: {error.strerror}", log)) from error
        code = wait(process, log, say)
        if code:
            raise StepFailed(failure(step, ended(command, code), log))


def ended(command: tuple[str, ...], code: int) -> str:
    """How a command ended, in words."""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return f"{Path(command[0]).name} {' '.join(command[1:3])} {how}"


def wait_for_end(process: subprocess.Popen[bytes], seconds: float | None = None) -> int:
    """Its exit status; an interrupt from the keyboard is the command's too, which tidies up."""
    try:
        return process.wait(seconds)
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):  # a second one is for who does not wait
            process.wait()
        raise


def wait(process: subprocess.Popen[bytes], log: Path, say: Callable[[str], None]) -> int:
    """Waits for a command and says how far it is; its exit status."""
    while True:
        try:
            return wait_for_end(process, PROGRESS_EVERY)
        except subprocess.TimeoutExpired:
            text = log.read_text(errors="replace")
            counted = COUNTED.findall(text)
            if counted:
                say(f"  {counted[-1][0]} of {counted[-1][1]} files")
            else:
                say("  goes on: " + text.replace(f"{CHECKOUT}/", "").splitlines()[-1][:90])


def failure(step: Step, what: str, log: Path) -> str:
    """The message of a failed step: its last lines, the log, the way on."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = "\n".join(f"    {line}" for line in lines[1:][-15:])
    return (
        f"{last}\n\nmake demo stopped: {step.title}: {what}.\n"
        f"  log: {log}\n  what to do: {step.advice}.\n"
        "  Then run `make demo` again: what is done is not done again."
    )


def leave_to_owner(checkout: Path) -> None:
    """What root made in another user's checkout becomes that user's, who could not delete it."""
    owner = checkout.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for folder, folders, files in os.walk(checkout):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118 - a hundred thousand of them
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_uid == 0:
                    os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def main() -> int:
    """Runs all steps and then the demo; its exit status."""
    parser = argparse.ArgumentParser(description="Build and run the demo.")
    parser.add_argument("--without-guest", action="store_true", help="only the host's channels")
    guest = not parser.parse_args().without_guest
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    wrong = obstacles(CHECKOUT, guest=guest)
    if wrong:
        print("make demo cannot run here:\n  " + "\n  ".join(wrong), file=sys.stderr)
        return 2
    jobs = int(os.environ.get("JOBS") or os.cpu_count() or 1)
    wanted = steps(CHECKOUT, guest=guest, jobs=jobs)
    try:
        for number, step in enumerate(wanted, 1):
            log = CHECKOUT / "build" / "demo" / "logs" / f"{number}-{step.name}.log"
            say(f"step {number} of {len(wanted) + 1}: {step.title}")
            run_step(step, CHECKOUT, log, say)
        say(f"step {len(wanted) + 1} of {len(wanted) + 1}: the demo")
        command = [str(CHECKOUT / ".venv" / "bin" / "python"), "tests/demo/demo.py"]
        command += [] if guest else ["--without-guest"]
        demo = dict(environment(CHECKOUT), SLUICE_DEMO_BEGAN=str(began))
        return wait_for_end(subprocess.Popen(command, cwd=CHECKOUT, env=demo))
    except StepFailed as failed:
        print(f"\n{failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("interrupted; `make demo` goes on from here")
        return 130
    finally:
        leave_to_owner(CHECKOUT)


if __name__ == "__main__":
    sys.exit(main())
