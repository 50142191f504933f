# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's MPS for native programs of this user, beside a server that may have daemons of its own.

Used by torch_shares.py. The daemon has a folder of its own, so that only those are its clients that
are told of it (concurrent_probe.py says what MPS does with others).
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
START_SECONDS, END_SECONDS = 10.0, 20.0


class NoMps(Exception):
    """Why there is no daemon."""


def _ask(said: str, environment: Mapping[str, str]) -> bool:
    """Whether the daemon answers."""
    try:
        done = subprocess.run(
            [CONTROL],
            input=said.encode() + b"\n",
            env=dict(environment),
            capture_output=True,
            timeout=END_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def mps_daemon(folder: Path, base: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """While the block runs; yields what clients have in their environments. Raises NoMps.

    Its clients have to end before the block does: the daemon waits for them.
    """
    if shutil.which(CONTROL) is None:
        raise NoMps(f"{CONTROL} is not here")
    folder.mkdir(mode=0o700)
    told = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    environment = {**base, **told}
    with (folder / "out").open("wb") as out:
        daemon = subprocess.Popen(
            [CONTROL, "-f"],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _ask("get_server_list", environment):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise NoMps(f"it does not start: {(folder / 'out').read_text()[-500:]}")
            time.sleep(0.05)
        yield told
    finally:
        if daemon.poll() is None:
            _ask("quit", environment)
        try:
            daemon.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
