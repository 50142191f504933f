# SPDX-License-Identifier: Apache-2.0
"""Frames of a connection, and how a session is opened. Used by the recorder and the replay."""

from __future__ import annotations

import os
import socket
import struct

from .slots import Slot

NO_LANE = 0xFFFF
#: Answered when a host function of a graph is due, or after a while.
SIGNAL_WAIT = 4054


def first_frame(data: bytes) -> tuple[bytes, bytes]:
    """The first whole frame, and what is behind it."""
    if len(data) < 4:
        return b"", data
    (count,) = struct.unpack_from("<I", data)
    return (data[:count], data[count:]) if len(data) >= count else (b"", data)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes of a connection."""
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError(f"{len(data)} of {count} bytes came")
        data += part
    return data


def read_opening(connection: socket.socket) -> bytes:
    """The OpenReply of a worker on a connection, with the record behind it."""
    reply = receive_exactly(connection, 512)
    record = receive_exactly(connection, 4)
    return reply + record + receive_exactly(connection, int.from_bytes(record, "little") - 4)


def mailbox_opening(slot: Slot) -> bytes:
    """The same of a slot that is ready."""
    head = slot.read(slot.layout.mailbox, 512 + 4)
    return slot.read(slot.layout.mailbox, 512 + int.from_bytes(head[512:], "little"))


def memory_file(count: int) -> int:
    """Memory to be shared by its descriptor."""
    descriptor = os.memfd_create("sluice", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, count)
    return descriptor
