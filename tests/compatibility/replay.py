# SPDX-License-Identifier: Apache-2.0
"""Plays the client of a recorded session again, against a worker of today, and says what differs.

A step of the client is played when everything that came of the one before has come again: the same
answers on the same lanes, and the same words where client and worker share memory. What may differ
is in `same_answer`, with the reason, and in openings.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import lzma
import os
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import slots, workers
from .openings import opening_differences
from .slots import Slot, format_region
from .streams import (
    NO_LANE,
    SIGNAL_WAIT,
    first_frame,
    mailbox_opening,
    memory_file,
    read_opening,
    receive_exactly,
)
from .workers import REGION_BYTES, Host, LoneProcess

SECONDS = 20.0  # for what a worker does at once
A_MOMENT = 0.00005
GLOBAL_GET, EVENT_ELAPSED = 22, 34
QUERIES = {27, 33, 4040}  # of a stream, of an event, of one that is shared
SUCCESS, NOT_READY = 0, 600
OUTPUT_WAITING = 1 << 31


def load(path: Path) -> dict[str, Any]:
    """A recording."""
    found: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return found


def data_of(text: str | None) -> bytes:
    """Bytes as recordings have them."""
    return base64.b64decode(text or "")


def text_of(data: bytes) -> str:
    """The other way round."""
    return base64.b64encode(data).decode()


class Player(ABC):
    """A client's end of a channel."""

    def __init__(self) -> None:
        self.opening = b""
        self.answers: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.notices: list[tuple[int, bytes]] = []

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Sends a frame."""

    @abstractmethod
    def look(self, wanted: set[tuple[int, int]]) -> None:
        """Collects answers that have come, at least those that are wanted (lane, sequence)."""

    @abstractmethod
    def close(self) -> None:
        """Ends the session as a client does."""

    def write(self, at: int, data: bytes) -> None:
        """Writes into shared memory."""
        raise NotImplementedError("nothing is shared over this channel")

    def read(self, at: int, count: int) -> bytes:
        """Reads shared memory."""
        raise NotImplementedError("nothing is shared over this channel")


class SlotPlayer(Player):
    """Frames in a slot."""

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self.slot = slot
        self.opening = mailbox_opening(slot)

    def send(self, frame: bytes) -> None:
        until = time.monotonic() + SECONDS
        while not self.slot.push(frame) and time.monotonic() < until:
            time.sleep(0.0001)
        while not self.slot.is_consumed() and time.monotonic() < until:
            self.slot.wake_host()
            time.sleep(A_MOMENT)

    def look(self, wanted: set[tuple[int, int]]) -> None:
        self.slot.wake_host()
        for lane, sequence in wanted:
            if self.slot.answered(lane) == sequence:
                _, status, body = self.slot.answer(lane)
                self.answers[lane, sequence] = (status, body)

    def write(self, at: int, data: bytes) -> None:
        self.slot.write(at, data)

    def read(self, at: int, count: int) -> bytes:
        return self.slot.read(at, count)

    def close(self) -> None:
        self.slot.close()


class StreamPlayer(Player):
    """Frames of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self._come = b""

    def _take(self, data: bytes) -> None:
        self._come += data
        while True:
            frame, self._come = first_frame(self._come)
            if not frame:
                return
            _, _, lane, sequence, status = struct.unpack_from("<IHHII", frame)
            if lane == NO_LANE:
                self.notices.append((status, frame[16:]))
            else:
                self.answers[lane, sequence] = (status, frame[16:])


class SocketPlayer(StreamPlayer):
    """… of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self.connection = connection
        self.opening = read_opening(connection)

    def send(self, frame: bytes) -> None:
        self.connection.sendall(frame)

    def look(self, wanted: set[tuple[int, int]]) -> None:
        while select.select([self.connection], [], [], 0)[0]:
            data = self.connection.recv(1 << 20)
            if not data:
                return
            self._take(data)

    def close(self) -> None:
        self.connection.shutdown(socket.SHUT_WR)


class SlotBytesPlayer(StreamPlayer):
    """… of a slot that a relay carries on."""

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        assert slot.u32(slots.DIALECT) == slots.BYTES
        self.slot = slot
        self.opening = mailbox_opening(slot)

    def send(self, frame: bytes) -> None:
        until = time.monotonic() + SECONDS
        while not self.slot.push(frame) and time.monotonic() < until:
            time.sleep(0.0001)

    def look(self, wanted: set[tuple[int, int]]) -> None:
        self._take(self.slot.take_back())

    def close(self) -> None:
        self.slot.close()


@contextlib.contextmanager
def opened(host: Host, recorded: dict[str, Any]) -> Iterator[tuple[Player, LoneProcess]]:
    """A session with a fresh worker, over the channel that was recorded."""
    channel = recorded["channel"]
    with host.worker() as worker:
        if channel in ("shm", "ivshmem"):
            region = memory_file(REGION_BYTES)
            named = [("region", region), ("client_pidfd", workers.own_pidfd())]
            if channel == "ivshmem":
                format_region(region, REGION_BYTES, slots.OPENING)
                slot = Slot(region)
                slot.write(slot.layout.mailbox, data_of(recorded["request"]))
            workers.start_session(worker, channel, named, slot=0)
            yield SlotPlayer(Slot(region)), worker
            os.close(region)
        elif channel == "relay":
            with relayed(host, worker, recorded) as slot:
                yield SlotBytesPlayer(slot), worker
        else:
            ours, theirs = workers.connection_pair(channel)
            workers.start_session(worker, channel, [("socket", theirs.fileno())])
            theirs.close()
            with ours:
                yield SocketPlayer(ours), worker


@contextlib.contextmanager
def relayed(host: Host, worker: LoneProcess, recorded: dict[str, Any]) -> Iterator[Slot]:
    """The slot of a session that a relay of today carries to a worker."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.create_server(("127.0.0.1", 0)) as network, near:
        network.settimeout(SECONDS)
        near.settimeout(SECONDS)
        near.send(data_of(recorded["request"]))
        with host.relay(far, network.getsockname()[1]) as relay:
            connection, _ = network.accept()
            with connection:
                receive_exactly(connection, 512)
                workers.start_session(worker, "tcp", [("socket", connection.fileno())])
            relay.answer()
            _, descriptors, _, _ = socket.recv_fds(near, 512, 2)
            yield Slot(descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)


class Addresses:
    """Where variables of modules lie now, whose addresses are the driver's own.

    A client says them again, in commands and as parameters of kernels.
    """

    def __init__(self) -> None:
        self._moved: list[tuple[int, int, int]] = []

    def learn(self, recorded: bytes, now: bytes) -> None:
        """From the answers to GlobalGet: address and size."""
        then, size = struct.unpack("<QQ", recorded)
        (today,) = struct.unpack_from("<Q", now)
        self._moved.append((then, size, today))

    def today(self, data: bytes) -> bytes:
        """The same bytes with today's addresses."""
        if not self._moved or len(data) % 8:
            return data
        words = struct.unpack(f"<{len(data) // 8}Q", data)
        return struct.pack(f"<{len(words)}Q", *map(self._address, words))

    def _address(self, word: int) -> int:
        for then, size, today in self._moved:
            if then <= word < then + size:
                return today + word - then
        return word


def replay(host: Host, recorded: dict[str, Any]) -> list[str]:
    """Plays a session; what differs from the recording, in words."""
    with opened(host, recorded) as (player, worker):
        wrong = opening_differences(data_of(recorded["opening"]), player.opening)
        functions: dict[tuple[int, int], int] = {}
        addresses = Addresses()
        last = 0  # function of the frame before
        for number, step in enumerate(recorded["steps"]):
            if "frame" in step:
                frame = addresses.today(data_of(step["frame"]))
                _, last, lane, sequence, _ = struct.unpack_from("<IHHII", frame)
                functions[lane, sequence] = last
                player.answers.pop((lane, sequence), None)
                player.send(frame)
            for run in step.get("writes", ()):
                player.write(run["at"], addresses.today(data_of(run["data"])))
            if "close" in step:
                player.close()
            if complaint := wait_for_rest(player, step.get("then", {}), functions, addresses):
                where = f"step {number}, after function {last}"
                return [*wrong, f"{where}: {complaint}", host.log()]
        return [*wrong, *end_differences(worker, host)]


def wait_for_rest(
    player: Player,
    then: dict[str, Any],
    functions: dict[tuple[int, int], int],
    addresses: Addresses,
) -> str:
    """Waits for what came of a step; what is missing or wrong when it does not come."""
    # All notices have one lane and number, and how many come meanwhile is a matter of time.
    notices = [
        (each["status"], data_of(each.get("body")))
        for each in then.get("answers", ())
        if each["lane"] == NO_LANE
    ]
    answers = {
        (each["lane"], each["sequence"]): each
        for each in then.get("answers", ())
        if each["lane"] != NO_LANE
        and not (
            functions.get((each["lane"], each["sequence"])) == SIGNAL_WAIT and not each.get("body")
        )
    }
    memory = [(run["at"], addresses.today(data_of(run["data"]))) for run in then.get("memory", ())]
    until = time.monotonic() + SECONDS
    while True:
        player.look(answers.keys() - player.answers.keys())
        missing = answers.keys() - player.answers.keys()
        unsaid = [each for each in notices if each not in player.notices]
        wrong = [run for run in memory if player.read(run[0], len(run[1])) != run[1]]
        if not missing and not unsaid and not wrong:
            break
        time.sleep(A_MOMENT)  # where there are few cores, the worker has to get one
        if time.monotonic() > until:
            lacks = [
                f"no answer on lane {lane} to {functions.get((lane, n))}" for lane, n in missing
            ]
            lacks += [f"no notice {status} {body.hex()}" for status, body in unsaid]
            return "; ".join([*lacks, *(memory_difference(player, *run) for run in wrong)])
    for key, answer in answers.items():
        (status, body), function = player.answers[key], functions.get(key, 0)
        recorded = data_of(answer.get("body"))
        if function == GLOBAL_GET and len(recorded) == 16 <= len(body):
            addresses.learn(recorded, body)
            body = body[:16]  # whoever knows no more of it reads no further
        recorded = addresses.today(recorded)
        # whether work is done, and a kernel has printed, is seen sooner or later; so elapsed times
        before, now = answer["status"] & ~OUTPUT_WAITING, status & ~OUTPUT_WAITING
        same_status = before == now or (
            function in QUERIES and {before, now} == {SUCCESS, NOT_READY}
        )
        same_body = len(body) == len(recorded) and (function == EVENT_ELAPSED or body == recorded)
        if not same_status or not same_body:
            found = f"answered {status} {body.hex()}"
            return f"function {function} is {found}, recorded {answer['status']} {recorded.hex()}"
    return ""


def memory_difference(player: Player, at: int, wanted: bytes) -> str:
    """Where shared memory is not as it was."""
    found = player.read(at, len(wanted))
    first = next(n for n in range(len(wanted)) if wanted[n] != found[n]) // 8 * 8
    here, there = found[first : first + 8].hex(), wanted[first : first + 8].hex()
    return f"at {at + first} of the slot lies {here} and not {there}"


def end_differences(worker: LoneProcess, host: Host) -> list[str]:
    """A session that was closed ends in good order."""
    worker.control.settimeout(SECONDS)
    try:
        while packet := worker.control.recv(65536):
            if packet.startswith(b"ended"):
                good = b"closed its session" in packet
                return [] if good else [f"the worker says: {packet.decode()}", host.log()]
    except TimeoutError:
        pass
    return [f"the worker does not end: {host.log()}"]
