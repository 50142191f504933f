# SPDX-License-Identifier: Apache-2.0
"""Ports of this host that nobody listens on.

None that the kernel gives to outgoing connections: one of those could take it before its server
does. Each is given once on this machine while the process that asked for it lives, however many
tests run: a lock on one file says so.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 20_000, 32_000  # below net.ipv4.ip_local_port_range

LOCKS = Path(tempfile.gettempdir()) / f"sluice-test-ports-{os.getuid()}.lock"

_left: list[int] = []
_locks: list[int] = []  # the descriptor of LOCKS, never closed: the kernel would drop the locks


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
    """Whether no other process has it: a lock on the byte of that number, until this one ends."""
    if not _locks:
        _locks.append(os.open(LOCKS, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        fcntl.lockf(_locks[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True
