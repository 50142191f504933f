# SPDX-License-Identifier: Apache-2.0
"""`sluice run --share`: a program and all that it starts are one job, and share one grant.

Used by run.py. It makes the job's token, which the program's processes inherit (SLUICE_JOB), and
stays beside the program: as long as it lives the job keeps its vGPUs, also between two processes.
The job is held by the client library (sluice_job_hold), over the same channel as the sessions. When
this process ends, in whatever way, the job lasts as long as its sessions.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import configuration

#: Options of `sluice run`, what they set for the program, and their least and largest value.
OPTIONS = {
    "--vgpu": ("SLUICE_VGPU", 1, 64),
    "--gmem": ("SLUICE_GMEM", 1, 1 << 30),
    "--ratio": ("SLUICE_RATIO", 1, 100),
    "--processes": ("SLUICE_JOB_PROCESSES", 1, 256),
    "--priority": ("SLUICE_PRIORITY", -1000, 1000),
    "--wait": ("SLUICE_WAIT", -1, 1 << 30),
}
#: Those that take text: what they set, and what is wanted.
TEXTS = {
    "--project": ("SLUICE_PROJECT", *configuration.PROJECT),
    "--gpu-model": ("SLUICE_GPU_MODEL", *configuration.MODEL),
    "--gpu-architecture": ("SLUICE_GPU_ARCHITECTURE", *configuration.ARCHITECTURE),
    "--mode": ("SLUICE_MODE", *configuration.MODE),
    "--label": ("SLUICE_LABELS", *configuration.LABELS),  # may be given several times
}
#: Those that say yes.
FLAGS = {
    "--cross-node": "SLUICE_CROSS_NODE",
    "--preempt": "SLUICE_PREEMPT",
    "--same-gpu": "SLUICE_SAME_GPU",
}
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: The terminal sends them to the program too.
WAITED_OUT = (signal.SIGINT, signal.SIGQUIT)
RETRY_SECONDS = 0.5


class WrongUsage(Exception):
    """Options that `sluice run` does not have; the text says which."""


@dataclass(frozen=True)
class Wish:
    """What stands before the program on the command line."""

    share: bool
    variables: Mapping[str, str]
    command: Sequence[str]


def parse(words: Sequence[str]) -> Wish:
    """Reads `[--share] [--vgpu N] … [--] CMD…`; raises WrongUsage."""
    rest = list(words)
    share = False
    variables: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equal, value = word.partition("=")
        if word == "--":
            break
        if word == "--share":
            share = True
        elif word in FLAGS:
            variables[FLAGS[word]] = "1"
        elif name in OPTIONS or name in TEXTS:
            if not equal:
                value = rest.pop(0) if rest else ""
            variable, value = _checked(name, value)
            if name == "--label" and variable in variables:
                value = f"{variables[variable]},{value}"
            variables[variable] = value
        else:
            known = ", ".join(("--share", *FLAGS, *OPTIONS, *TEXTS))
            raise WrongUsage(
                f"there is no option {word}; {known} are known (-- before a program whose name "
                "begins so)"
            )
    if not share and "SLUICE_JOB_PROCESSES" in variables:
        raise WrongUsage("--processes belongs to --share")
    return Wish(share, variables, rest)


def _checked(name: str, value: str) -> tuple[str, str]:
    """The variable that an option sets, and its value; raises WrongUsage."""
    if name in TEXTS:
        variable, pattern, wanted = TEXTS[name]
        if not re.fullmatch(pattern, value):
            raise WrongUsage(f"{name} wants {wanted}")
        return variable, value
    variable, low, high = OPTIONS[name]
    if not re.fullmatch("-?[0-9]{1,18}", value) or not low <= int(value) <= high:
        raise WrongUsage(f"{name} wants a whole number from {low} to {high}")
    return variable, value


def run_shared(command: Sequence[str], environment: Mapping[str, str], library: Path | None) -> int:
    """Starts `command` as a job and waits for it; its exit status. Raises OSError."""
    token = secrets.token_hex(16)
    os.environ.update({**environment, "SLUICE_JOB": token})
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _: object) -> None:
        for child in children:
            child.send_signal(number)
        if not children:
            early.append(number)

    # before there is a program, and not ignored: exec makes them the default again
    for number in WAITED_OUT:
        signal.signal(number, lambda *_: None)
    for number in FORWARDED:
        signal.signal(number, forward)
    process = subprocess.Popen(list(command), env=dict(os.environ))
    children.append(process)
    for received in early:
        process.send_signal(received)
    if library is not None:
        threading.Thread(target=_hold, args=(library,), daemon=True).start()
    status = process.wait()
    return status if status >= 0 else 128 - status


def _hold(library: Path) -> None:
    """For as long as this process lives; whoever does not answer is asked again."""
    try:
        hold = ctypes.CDLL(str(library)).sluice_job_hold
    except (OSError, AttributeError) as error:
        print(
            f"sluice run: the job keeps its vGPUs only while it has processes: {error}; bring "
            "client and launcher to one release",
            file=sys.stderr,
        )
        return
    why = ctypes.create_string_buffer(512)
    while True:
        hold(why, ctypes.c_size_t(len(why)))
        if os.environ.get("SLUICE_DEBUG"):
            print(f"sluice run: the job is not held: {why.value.decode()}", file=sys.stderr)
        time.sleep(RETRY_SECONDS)
