# SPDX-License-Identifier: Apache-2.0
"""Ports of this host that nobody listens on.

None that the kernel gives to outgoing connections: one of those could take it before its server
does. Each is given once on this machine while the process that asked for it lives, however many
tests run: a lock on a file of that name says so.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 20_000, 32_000  # below net.ipv4.ip_local_port_range

LOCKS = Path(tempfile.gettempdir()) / f"sluice-test-ports-{os.getuid()}"

_left: list[int] = []


def free_port() -> int:
    """A port that was free just now, on every address."""
    while True:
        if not _left:
            # not the random numbers that hypothesis seeds
            _left.extend(random.SystemRandom().sample(range(FIRST, LAST), LAST - FIRST))
        port = _left.pop()
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if _take(port):
            return port


def _take(port: int) -> bool:
    """Whether no other process has it; the kernel gives it back when this one ends."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(LOCKS / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True
