# SPDX-License-Identifier: Apache-2.0
"""Ports of this host that nobody listens on.

None that the kernel gives to outgoing connections: one of those could take it before its server
does. Each is given once by a process, in an order of its own, so that two test runs on one machine
do not meet.
"""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000  # below net.ipv4.ip_local_port_range

_left: list[int] = []


def free_port() -> int:
    """A port that was free just now, on every address."""
    while True:
        if not _left:
            # not the random numbers that hypothesis seeds
            _left.extend(random.SystemRandom().sample(range(FIRST, LAST), LAST - FIRST))
        with socket.socket() as probe:
            try:
                probe.bind(("", port := _left.pop()))
            except OSError:
                continue
            return port
