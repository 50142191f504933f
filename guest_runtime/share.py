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
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: The terminal sends them to the program too.
WAITED_OUT = (signal.SIGINT, signal.SIGQUIT)
RETRY_SECONDS = 0.5


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
