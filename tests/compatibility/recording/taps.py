# SPDX-License-Identifier: Apache-2.0
"""Stands between a real client and a real worker and writes down what each sends.

A slot is passed on word by word between two regions, a connection frame by frame, one at a time: so
what the worker did because of a frame is known. A recording is a list of steps; each has what the
client did and what had come of it when the client did its next. Used by record_frames.py.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from typing import Any

from .. import slots
from ..slots import Area, Slot
from ..streams import NO_LANE, SIGNAL_WAIT, first_frame

QUIET_SECONDS = 0.002  # after which nothing more is expected of a frame that nobody waits for
ANSWER_SECONDS = 0.25  # then other threads' frames may go before an answer
STUCK_SECONDS = 20.0


class Recording:
    """The steps so far."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def client(self, **did: Any) -> None:
        self.steps.append({**did, "then": {"answers": [], "memory": []}})

    def answer(self, lane: int, sequence: int, status: int, body: bytes) -> None:
        answer = {"lane": lane, "sequence": sequence, "status": status, "body": body}
        self.steps[-1]["then"]["answers"].append(answer)

    def memory(self, at: int, data: bytes) -> None:
        """The last that lay there in this step is what counts."""
        self.steps[-1]["then"]["memory"].append({"at": at, "data": data})


class SlotTap:
    """Two slots, and what goes between them."""

    def __init__(self, client: Slot, worker: Slot) -> None:
        self.client, self.worker = client, worker
        layout = client.layout
        self._areas = [
            Area(slots.MEMORY_USED, slots.MEMORY_USED_BYTES),
            Area(layout.marks, slots.MARKS * 8),
            Area(layout.arena, layout.arena_bytes),
        ]
        for area in self._areas:  # what opening has left there
            list(area.changes(worker))
        self.recording = Recording()
        self.recording.client(open=True)
        self._asked: dict[int, int] = {}  # lane → sequence of the answer that its thread awaits
        self._later: dict[int, int] = {}  # the same of what holds nothing up
        self._since = 0.0

    def run(self, client_lives: Callable[[], bool]) -> None:
        """Until the client has closed its session, or its process has ended."""
        while True:
            self._worker_to_client()
            waits = self._asked and time.monotonic() - self._since < ANSWER_SECONDS
            frame = b"" if waits else self.client.take()
            self._client_to_worker()  # what was written before a frame is there by now
            if frame:
                self._send(frame)
            elif self.client.u32(slots.STATE) == slots.CLOSED or not client_lives():
                self.recording.client(close=True)
                self.worker.close()
                return
            else:
                time.sleep(0.0002)

    def _send(self, frame: bytes) -> None:
        _, function, lane, sequence, _ = struct.unpack_from("<IHHII", frame)
        self.recording.client(frame=frame)
        while not self.worker.push(frame):
            time.sleep(0.0002)
        self._since = time.monotonic()
        if lane != NO_LANE:
            (self._later if function == SIGNAL_WAIT else self._asked)[lane] = sequence
        while not self.worker.is_consumed():
            self.worker.wake_host()
            if time.monotonic() - self._since > STUCK_SECONDS:
                raise SystemExit(f"the worker does not take {frame[:16].hex()}")
        until = time.monotonic() + (QUIET_SECONDS if lane == NO_LANE else 0)
        while True:
            self._worker_to_client()
            if time.monotonic() >= until:
                return

    def _client_to_worker(self) -> None:
        if runs := self._changes(self.client):
            self.recording.client(writes=[{"at": at, "data": data} for at, data in runs])
            for at, data in runs:
                self.worker.write(at, data)

    def _changes(self, slot: Slot) -> list[tuple[int, bytes]]:
        """What one side has written, in an order in which the other may see it appear.

        Looked at until nothing more comes, so that what was written before a word that announces it
        is there too; such words, which are single ones or marks, come last.
        """
        words: dict[int, bytes] = {}
        while found := [run for area in self._areas for run in area.changes(slot)]:
            for at, data in found:
                words |= {at + n: data[n : n + 8] for n in range(0, len(data), 8)}
        marks = range(self.client.layout.marks, self.client.layout.ring)
        return sorted(runs_of(words), key=lambda run: (run[0] in marks, -len(run[1])))

    def _worker_to_client(self) -> None:
        self.worker.wake_host()
        asked = {**self._later, **self._asked}
        done = [lane for lane, wanted in asked.items() if self.worker.answered(lane) == wanted]
        for at, data in self._changes(self.worker):
            self.recording.memory(at, data)
            self.client.write(at, data)
        for lane in done:
            sequence, status, body = self.worker.answer(lane)
            self._asked.pop(lane, None)
            self._later.pop(lane, None)
            self.recording.answer(lane, sequence, status, body)
            self.client.put_answer(lane, sequence, status, body)
        if error := self.worker.u32(slots.STICKY_ERROR):
            self.client.set_u32(slots.STICKY_ERROR, error)
        if (state := self.worker.u32(slots.STATE)) == slots.DEAD:
            self.client.set_u32(slots.STATE, state)


def runs_of(words: dict[int, bytes]) -> list[tuple[int, bytes]]:
    """Words by their addresses as runs of neighbours."""
    runs: list[tuple[int, bytearray]] = []
    for at, word in sorted(words.items()):
        if runs and runs[-1][0] + len(runs[-1][1]) == at:
            runs[-1][1].extend(word)
        else:
            runs.append((at, bytearray(word)))
    return [(at, bytes(data)) for at, data in runs]


class StreamTap:
    """Two connections, and what goes between them."""

    def __init__(self, client: socket.socket, worker: socket.socket) -> None:
        self.client, self.worker = client, worker
        self.recording = Recording()
        self.recording.client(open=True)
        self._asked: dict[int, int] = {}
        self._from_client, self._from_worker = b"", b""

    def run(self) -> None:
        """Until the client has closed its connection."""
        since, is_open = 0.0, True
        while True:
            waits = self._asked and time.monotonic() - since < ANSWER_SECONDS
            if not waits and (frame := self._next_of_client()):
                self.recording.client(frame=frame)
                self.worker.sendall(frame)
                _, function, lane, sequence, _ = struct.unpack_from("<IHHII", frame)
                since = time.monotonic()
                if lane != NO_LANE and function != SIGNAL_WAIT:
                    self._asked[lane] = sequence
                self._pass_back(0 if self._asked else QUIET_SECONDS)
                continue
            if not is_open and not self._asked:
                self.recording.client(close=True)
                self.worker.shutdown(socket.SHUT_WR)
                return
            listened = [self.worker] + ([self.client] if is_open and not waits else [])
            readable, _, _ = select.select(listened, [], [], 0.05)
            if self.worker in readable:
                self._pass_back(0)
            if self.client in readable:
                data = self.client.recv(1 << 20)
                self._from_client += data
                is_open = bool(data)

    def _next_of_client(self) -> bytes:
        frame, self._from_client = first_frame(self._from_client)
        return frame

    def _pass_back(self, seconds: float) -> None:
        while select.select([self.worker], [], [], seconds)[0]:
            data = self.worker.recv(1 << 20)
            if not data:
                self._asked.clear()
                return
            self._from_worker += data
            while True:
                frame, self._from_worker = first_frame(self._from_worker)
                if not frame:
                    break
                _, _, lane, sequence, status = struct.unpack_from("<IHHII", frame)
                self.recording.answer(lane, sequence, status, frame[16:])
                if self._asked.get(lane) == sequence:
                    del self._asked[lane]
                with contextlib.suppress(OSError):
                    self.client.sendall(frame)


def ended(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    """Whether a program still runs."""
    return lambda: process.poll() is None
