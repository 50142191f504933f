# SPDX-License-Identifier: Apache-2.0
"""Bytes that sessions move, as Prometheus sees them, against a program that knows what it moves.

Whatever the channel, they are what went between guest and node: shared memory too.
"""

from __future__ import annotations

import subprocess
import sys

import copying_program
import pytest
from control_plane import ControlPlane, native_worker, wait_for
from scrapes import scrape

pytestmark = [
    pytest.mark.skipif(native_worker() is None, reason="the native part is not built"),
    pytest.mark.control_plane(metrics={}),
]

BYTES = 5 << 20  # beyond what a command or an answer carries, on each channel
#: What commands and answers may take beside the data.
COMMANDS = 128 << 10


class Copies:
    """The program and what is counted of its channel."""

    def __init__(self, plane: ControlPlane, channel: str) -> None:
        self.plane, self.channel = plane, channel
        self.process = subprocess.Popen(
            [sys.executable, copying_program.__file__],
            env=plane.program_environment(SLUICE_CHANNEL=channel, SLUICE_GMEM="256"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready"
        # over TCP the client has its answer before the server has been told that the worker began
        wait_for(lambda: any(self.counted()))

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def counted(self) -> list[float]:
        """Received and sent."""
        found = scrape(self.plane.metrics_url)
        return [
            found.value(f"sluice_channel_{way}_bytes_total", channel=self.channel) or 0
            for way in ("received", "sent")
        ]

    def do(self, way: str, size: int = BYTES) -> list[int]:
        """Bytes that the program says it moved, to the GPU and back."""
        assert self.process.stdin
        self.process.stdin.write(f"{way} {size}\n")
        self.process.stdin.flush()
        answer = self._read()
        assert not answer.startswith("failed"), f"{way}: {answer}"
        return [int(n) for n in answer.split()]

    def quit(self) -> None:
        """In good order."""
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_bytes_are_those_that_programs_move_whatever_the_channel(
    plane: ControlPlane, channel: str
) -> None:
    copies = Copies(plane, channel)
    copies.do("plain")  # memory is allocated and registered
    for way in copying_program.WAYS:
        before = copies.counted()
        moved = copies.do(way)
        grown = [now - then for now, then in zip(copies.counted(), before, strict=True)]
        for name, bytes_moved, bytes_counted in zip(("to", "back"), moved, grown, strict=True):
            assert bytes_moved <= bytes_counted <= bytes_moved * 1.01 + COMMANDS, (way, name)
    # small ones are in commands and answers
    before = copies.counted()
    for _ in range(64):
        copies.do("plain", 4096)
    grown = [now - then for now, then in zip(copies.counted(), before, strict=True)]
    assert all(64 * 4096 <= g <= 64 * 4096 + COMMANDS for g in grown), grown

    last = copies.counted()
    copies.quit()
    wait_for(lambda: not plane.session_worker_pids())
    assert all(now >= then for now, then in zip(copies.counted(), last, strict=True))
