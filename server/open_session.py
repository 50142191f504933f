# SPDX-License-Identifier: Apache-2.0
"""The bytes of OpenSession and OpenReply, as native/wire/open_session.h lays them out.

Called by the doors. Whatever a client sent is checked here once, into an immutable value; a frame
that is wrong raises BadOpen, whose status and message go back to the client as an OpenReply.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from sluice.config.job_token import MOST_PROCESSES, job_of

FRAME_BYTES = 512
MAGIC = 0x43494C53
PROTOCOL_MAJOR = 1
OPEN_FUNCTION = 1
REPLY_FUNCTION = 2
MESSAGE_BYTES = 480
CROSS_NODE = 1
HOLD_JOB = 2
MOST_VGPUS = 64
_JOB_OFFSET = 328
_TOKEN_BYTES = 64

_HEADER = struct.Struct("<IHHII")
_OPEN = struct.Struct("<IHHIIIIiiIIQII64s64s128s")
_JOB = struct.Struct("<64sII64s")
_REPLY = struct.Struct("<IHHIIIIQ480s")


class Status(IntEnum):
    """The CUresult values that a server answers with."""

    SUCCESS = 0
    INVALID_VALUE = 1
    NO_DEVICE = 100
    DEVICE_UNAVAILABLE = 46
    OPERATING_SYSTEM = 304
    NOT_READY = 600
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    SYSTEM_NOT_READY = 802
    SYSTEM_DRIVER_MISMATCH = 803
    UNKNOWN = 999


class Channel(IntEnum):
    """What a client wishes to speak over."""

    AUTO = 0
    SHM = 1
    IVSHMEM = 2
    TCP = 3
    VSOCK = 4
    RDMA = 5


class RefusalError(Exception):
    """The session will not be opened; status (a CUresult) and text go to the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = int(status)
        self.message = message


class BadOpen(RefusalError):
    """The bytes are not an OpenSession that this server speaks."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """What a client asks for. Memory in MiB, compute in percent, per vGPU; 0 = the default.

    pid, uid, start_time, host and program are the client's own words: shown, never believed.
    """

    vgpu_count: int
    gmem_mib: int
    ratio_percent: int
    flags: int
    priority: int
    wait_seconds: int
    pid: int
    uid: int
    start_time: int
    cuda_version: int
    channel: int
    key: str
    host: str
    program: str
    raw: bytes = field(repr=False)  # without the job's token
    job: str = ""  # what the token stands for
    job_processes: int = 0
    chosen: tuple[int, ...] = ()  # of the job's vGPUs; none named: all

    @property
    def holds_job(self) -> bool:
        """Whether no session is wanted: the job is to keep its grant while the client lives."""
        return bool(self.flags & HOLD_JOB)

    @property
    def crosses_nodes(self) -> bool:
        """Whether its vGPUs may be on several nodes."""
        return bool(self.flags & CROSS_NODE)


def check_header(header: bytes) -> None:
    """Checks the first 16 bytes of a stream before the rest is read; raises BadOpen."""
    size, function, *_ = _HEADER.unpack(header)
    if size != FRAME_BYTES or function != OPEN_FUNCTION:
        raise BadOpen(
            Status.INVALID_VALUE,
            f"the first frame has size {size} and function {function}; a session begins with "
            f"OpenSession, size {FRAME_BYTES} and function {OPEN_FUNCTION}",
        )


def parse_open_session(frame: bytes) -> OpenSession:
    """Reads a frame; raises BadOpen."""
    if len(frame) != FRAME_BYTES:
        raise BadOpen(
            Status.INVALID_VALUE,
            f"OpenSession has {len(frame)} bytes; protocol {PROTOCOL_MAJOR} wants {FRAME_BYTES}",
        )
    check_header(frame[: _HEADER.size])
    magic, major, minor, *numbers, key, host, program = _OPEN.unpack_from(frame, _HEADER.size)
    if magic != MAGIC:
        raise BadOpen(
            Status.INVALID_VALUE,
            f"OpenSession begins with {magic:#010x} instead of {MAGIC:#010x}: not a Sluice client",
        )
    if major != PROTOCOL_MAJOR:
        raise BadOpen(
            Status.SYSTEM_DRIVER_MISMATCH,
            f"the client speaks protocol {major}.{minor}; this server speaks version "
            f"{PROTOCOL_MAJOR} (any minor): install the client that belongs to this server",
        )
    raw = frame[:_JOB_OFFSET] + bytes(_TOKEN_BYTES) + frame[_JOB_OFFSET + _TOKEN_BYTES :]
    values: list[Any] = [*numbers, _text(key), _text(host), _text(program), raw, *_job(frame)]
    opened = OpenSession(*values)
    if opened.holds_job and not opened.job:
        raise BadOpen(Status.INVALID_VALUE, "a job is to be held, but none is named")
    if opened.wait_seconds < -1:
        raise BadOpen(
            Status.INVALID_VALUE,
            f"SLUICE_WAIT is {opened.wait_seconds}; give seconds, 0 to fail at once, -1 for ever",
        )
    if opened.vgpu_count > 64 or opened.ratio_percent > 100 or opened.gmem_mib > 1 << 30:
        raise BadOpen(
            Status.INVALID_VALUE,
            f"wanted {opened.vgpu_count} vGPUs of {opened.gmem_mib} MiB and "
            f"{opened.ratio_percent} %; at most 64 vGPUs of 100 % can be asked for",
        )
    return opened


def _job(frame: bytes) -> tuple[str, int, tuple[int, ...]]:
    token, processes, count, choice = _JOB.unpack_from(frame, _JOB_OFFSET)
    if not token.strip(b"\0"):
        return "", 0, ()
    try:
        job = job_of(_text(token))
    except ValueError as error:
        raise BadOpen(Status.INVALID_VALUE, str(error)) from None
    chosen = tuple(choice[:count])
    if count > MOST_VGPUS or len(set(chosen)) < count or processes > MOST_PROCESSES:
        raise BadOpen(
            Status.INVALID_VALUE,
            f"a job's session names {count} of its vGPUs and {processes} processes; at most "
            f"{MOST_VGPUS} vGPUs, each once, and {MOST_PROCESSES} processes can be named",
        )
    return job, processes, chosen


def pack_open_reply(status: int, session_id: int, message: str) -> bytes:
    """Composes the server's answer; the message is cut where it does not fit."""
    text = message.encode()[: MESSAGE_BYTES - 1].decode(errors="ignore").encode()
    return _REPLY.pack(FRAME_BYTES, REPLY_FUNCTION, 0, 0, 0, status, 0, session_id, text)


def unpack_open_reply(frame: bytes) -> tuple[int, int, str]:
    """Reads an OpenReply: status, session id, message."""
    *_, status, _reserved, session_id, text = _REPLY.unpack(frame[:FRAME_BYTES])
    return status, session_id, text.split(b"\0", 1)[0].decode(errors="replace")


def pack_open_session(
    *,
    vgpu_count: int = 0,
    gmem_mib: int = 0,
    ratio_percent: int = 0,
    priority: int = 0,
    wait_seconds: int = 0,
    pid: int = 0,
    key: str = "",
    host: str = "",
    program: str = "",
    channel: Channel = Channel.AUTO,
    flags: int = 0,
    job: str = "",
    job_processes: int = 0,
    chosen: tuple[int, ...] = (),
    magic: int = MAGIC,
    version: tuple[int, int] = (PROTOCOL_MAJOR, 0),
) -> bytes:
    """Composes a request as a client does; used by diagnostics and tests."""
    body = _OPEN.pack(
        magic, *version, vgpu_count, gmem_mib, ratio_percent, flags, priority, wait_seconds,
        pid, 0, 0, 13000, channel, key.encode(), host.encode(), program.encode(),
    )  # fmt: skip
    header = _HEADER.pack(FRAME_BYTES, OPEN_FUNCTION, 0, 0, 0)
    part = _JOB.pack(job.encode(), job_processes, len(chosen), bytes(chosen))
    return (header + body + part).ljust(FRAME_BYTES, b"\0")


def _text(field: bytes) -> str:
    # a hostile client must not write control characters into logs
    text = field.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(c if c.isprintable() else "�" for c in text)
