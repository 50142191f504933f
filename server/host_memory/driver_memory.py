# SPDX-License-Identifier: Apache-2.0
"""Host memory that the GPUs' driver makes, by a process of its own (driver_process.py).

Used by sessions.swap_memory, from threads: everything here blocks. A worker maps such memory twice
as fast as it registers shared memory. The driver empties it when it makes it, and it is gone with
the last descriptor; nobody's limit counts it but [suspend] swap_mib. The process that asks for it
has the GPUs open, so it is there only while more is wanted: `let_go` ends it. It promises that no
process outlives the server, and that a driver which hangs or crashes does so alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from sluice.server.host_memory import driver_process
from sluice.server.host_memory.pieces import HostPiece, NoSwapMemory

log = logging.getLogger("sluice.server")

HELPER = str(Path(driver_process.__file__).resolve())
START_SECONDS = 30.0  # the driver's own, on a host with many GPUs
END_SECONDS = 10.0
#: For a GiB, which takes a third of a second; a host whose memory is in pieces takes longer.
SECONDS_PER_GIB = 10.0
MOST_PIECES = 32  # of an answer
MIB_PER_GIB = 1024
OUT_OF_MEMORY = "out_of_memory"


class Unavailable(Exception):
    """This host's driver makes none; the text says why."""


class Failed(Exception):
    """The process for it was killed, crashed or hung; another one may do better."""


class DriverMemory:
    """What one driver makes."""

    def __init__(self, driver: str, environment: Mapping[str, str] | None = None) -> None:
        """`driver`: the path of its library."""
        self._command = [sys.executable, "-P", HELPER, "--driver", driver]
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def make(self, count: int, mib: int) -> list[HostPiece]:
        """Pieces of so many MiB each. Raises Unavailable, Failed, NoSwapMemory, and has none."""
        found: list[HostPiece] = []
        try:
            with self._lock:
                while len(found) < count:
                    found += self._make(min(MOST_PIECES, count - len(found)), mib)
        except BaseException:
            for piece in found:
                piece.close()
            raise
        return found

    def let_go(self) -> None:
        """Ends the process, which has the GPUs open; what it made stays."""
        with self._lock:
            self._end()

    def _make(self, count: int, mib: int) -> list[HostPiece]:
        asked = json.dumps({"pieces": count, "mib": mib}).encode()
        seconds = START_SECONDS + SECONDS_PER_GIB * count * mib / MIB_PER_GIB
        try:
            asker = self._socket or self._start()
            asker.settimeout(seconds)
            asker.send(asked)
            told, descriptors = self._hear(asker)
        except (OSError, ValueError, EOFError) as error:
            self._end(at_once=True)
            raise Failed(f"the process that asks the driver for it failed ({error})") from None
        except Unavailable:
            self._end()
            raise
        if len(descriptors) == count:
            return [HostPiece(each, mib, of_driver=True) for each in descriptors]
        for descriptor in descriptors:
            os.close(descriptor)
        status = str(told.get("status", "too few pieces"))
        if status == OUT_OF_MEMORY:
            raise NoSwapMemory(
                f"the host has no {count * mib} MiB of memory left for the GPUs' driver: lower "
                "[suspend] ready_mib, or free some"
            )
        self._end()
        raise Unavailable(f"cuMemCreate: {status}")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*self._command, "--socket", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                    env=self._environment,
                )
            except OSError as error:
                ours.close()
                raise Failed(f"the process for it cannot be started: {error}") from None
        self._socket = ours
        ours.settimeout(START_SECONDS)
        told, _ = self._hear(ours)
        if "missing" in told:
            raise Unavailable(str(told["missing"]))
        return ours

    def _hear(self, asker: socket.socket) -> tuple[dict[str, object], list[int]]:
        """Its next message; raises OSError, ValueError, EOFError."""
        text, descriptors, _, _ = socket.recv_fds(asker, driver_process.MOST_BYTES, MOST_PIECES)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if not text:
            raise EOFError("it said nothing")
        try:
            told = json.loads(text)
            if not isinstance(told, dict):
                raise ValueError("it said what is no object")
        except ValueError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return told, descriptors

    def _end(self, at_once: bool = False) -> None:
        asker, process = self._socket, self._process
        self._socket = self._process = None
        if asker:
            asker.close()
        if not process:
            return
        if at_once:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
            return
        process.kill()
        log.warning("process %d hangs in the driver, which was to make host memory", process.pid)
