# SPDX-License-Identifier: Apache-2.0
"""The bytes of OpenSession and OpenReply, as native/wire/open_session.h lays them out.

Called by the doors. Whatever a client sent is checked here once, into an immutable value; a frame
that is wrong raises BadOpen, whose status and message go back to the client as an OpenReply.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from sluice.config.job_token import MOST_PROCESSES, job_of

FRAME_BYTES = 512
MAGIC = 0x43494C53
PROTOCOL_MAJOR = 1
OPEN_FUNCTION = 1
REPLY_FUNCTION = 2
MESSAGE_BYTES = 480
MOST_WISH_BYTES = 3072  # behind the fixed part
CROSS_NODE = 1
HOLD_JOB = 2
PREEMPT = 4
SAME_GPU = 8
RESERVED_ONLY = 16
ON_DEMAND_ONLY = 32
TAKES_RELAY = 64
MOST_LABELS = 16
MOST_VGPUS = 64
_CHANNEL_OFFSET = 68
_KEY_BYTES = 64
_JOB_OFFSET = 328
_TOKEN_BYTES = 64

_HEADER = struct.Struct("<IHHII")
_OPEN = struct.Struct("<IHHIIIIiiIIQII64s64s128s")
_JOB = struct.Struct("<64sII64s")
_MODE_FLAGS = {"reserved": RESERVED_ONLY, "on-demand": ON_DEMAND_ONLY}
_ANY = re.compile(r".*", re.DOTALL)
_WISHES = {
    "project": (
        re.compile(r"[A-Za-z0-9._-]{1,120}"),
        "a name of letters, digits, dot, dash and underscore (SLUICE_PROJECT)",
    ),
    "gpu_model": (
        re.compile(r"[A-Za-z0-9 ._()/-]{1,120}"),
        "words of a model's name (SLUICE_GPU_MODEL)",
    ),
    "gpu_architecture": (
        re.compile(r"[A-Za-z0-9._]{1,32}"),
        "an architecture such as sm_90 (SLUICE_GPU_ARCHITECTURE)",
    ),
    "label": (
        re.compile(r"[A-Za-z0-9._/-]{1,63}=[A-Za-z0-9._/-]{1,63}"),
        "NAME=VALUE, such as rack=r12 (SLUICE_LABELS)",
    ),
}
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
class Wishes:
    """What stands behind the fixed part; "" is nothing in particular.

    The project is the client's wish: accounts.py says whether it is the client's to choose.
    """

    project: str = ""
    gpu_model: str = ""
    gpu_architecture: str = ""
    labels: tuple[tuple[str, str], ...] = ()


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
    raw: bytes = field(repr=False)  # the fixed part, without the job's token
    job: str = ""  # what the token stands for
    job_processes: int = 0
    chosen: tuple[int, ...] = ()  # of the job's vGPUs; none named: all
    wishes: Wishes = Wishes()

    @property
    def preempts(self) -> bool:
        """Whether lower-priority work may be ended for it."""
        return bool(self.flags & PREEMPT)

    @property
    def same_gpu_allowed(self) -> bool:
        """Whether two of its vGPUs may be on one card."""
        return bool(self.flags & SAME_GPU)

    @property
    def takes_relay(self) -> bool:
        """Whether the client knows slots that carry bytes to a worker on another host."""
        return bool(self.flags & TAKES_RELAY)

    @property
    def mode(self) -> str:
        """What it draws on: "reserved", "on-demand", or "auto"."""
        if self.flags & RESERVED_ONLY:
            return "reserved"
        return "on-demand" if self.flags & ON_DEMAND_ONLY else "auto"

    def drawing_on(self, mode: str) -> OpenSession:
        """The same, drawing on what `mode` says; "auto" leaves it to the client."""
        if mode == "auto":
            return self
        flags = self.flags & ~(RESERVED_ONLY | ON_DEMAND_ONLY)
        return replace(self, flags=flags | _MODE_FLAGS[mode])

    @property
    def holds_job(self) -> bool:
        """Whether no session is wanted: the job is to keep its grant while the client lives."""
        return bool(self.flags & HOLD_JOB)

    @property
    def crosses_nodes(self) -> bool:
        """Whether its vGPUs may be on several nodes."""
        return bool(self.flags & CROSS_NODE)


def with_key(wish: OpenSession, key: str) -> bytes:
    """The fixed part of a request as a client over TCP presents it."""
    channel = int(Channel.TCP).to_bytes(4, "little")
    raw = wish.raw
    return (
        raw[:_CHANNEL_OFFSET]
        + channel
        + key.encode().ljust(_KEY_BYTES, b"\0")
        + raw[_CHANNEL_OFFSET + 4 + _KEY_BYTES :]
    )


def check_header(header: bytes, most_wish_bytes: int = 0) -> int:
    """Checks the first 16 bytes of a request before the rest is read; raises BadOpen.

    Returns the size of the whole.
    """
    size, function, *_ = _HEADER.unpack(header)
    fits = FRAME_BYTES <= size <= FRAME_BYTES + most_wish_bytes and size % 8 == 0
    if not fits or function != OPEN_FUNCTION:
        more = f" to {FRAME_BYTES + most_wish_bytes}" if most_wish_bytes else ""
        raise BadOpen(
            Status.INVALID_VALUE,
            f"the first frame has size {size} and function {function}; a session begins with "
            f"OpenSession, size {FRAME_BYTES}{more} and function {OPEN_FUNCTION}",
        )
    return int(size)


def parse_open_session(frame: bytes) -> OpenSession:
    """Reads a frame, wishes included; raises BadOpen."""
    if len(frame) < FRAME_BYTES:
        raise BadOpen(
            Status.INVALID_VALUE,
            f"OpenSession has {len(frame)} bytes; protocol {PROTOCOL_MAJOR} wants {FRAME_BYTES}",
        )
    size = check_header(frame[: _HEADER.size], MOST_WISH_BYTES)
    if size != len(frame):
        raise BadOpen(
            Status.INVALID_VALUE, f"OpenSession has {len(frame)} bytes and says that it has {size}"
        )
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
    # a worker is told the fixed part, which alone it knows
    raw = b"".join(
        (
            FRAME_BYTES.to_bytes(4, "little"),
            frame[4:_JOB_OFFSET],
            bytes(_TOKEN_BYTES),
            frame[_JOB_OFFSET + _TOKEN_BYTES : FRAME_BYTES],
        )
    )
    texts = (_text(key), _text(host), _text(program))
    values: list[Any] = [*numbers, *texts, raw, *_job(frame), _wishes(frame[FRAME_BYTES:])]
    opened = OpenSession(*values)
    if opened.flags & RESERVED_ONLY and opened.flags & ON_DEMAND_ONLY:
        raise BadOpen(
            Status.INVALID_VALUE,
            "both a reservation and none is wanted; set SLUICE_MODE to reserved or on-demand",
        )
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


def _wishes(text: bytes) -> Wishes:
    try:
        lines = text.rstrip(b"\0").decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadOpen(Status.INVALID_VALUE, f"what is wished for is no text: {error}") from None
    found: dict[str, str] = {}
    labels: set[tuple[str, str]] = set()
    for line in lines:
        name, _, value = line.partition("=")
        pattern, wanted = _WISHES.get(name, (_ANY, ""))
        if not pattern.fullmatch(value):
            raise BadOpen(
                Status.INVALID_VALUE,
                f"{_text(name.encode())} is {_text(value.encode())!r:.80}; {wanted} is wanted",
            )
        if name == "label":
            label, _, content = value.partition("=")
            labels.add((label, content))
        elif name in _WISHES:
            found[name] = value
        # what a newer client says besides is not known here
    if len(labels) > MOST_LABELS:
        raise BadOpen(
            Status.INVALID_VALUE, f"{len(labels)} labels are wanted; SLUICE_LABELS has at most 16"
        )
    return Wishes(**found, labels=tuple(sorted(labels)))


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
    wishes: Sequence[str] = (),
    magic: int = MAGIC,
    version: tuple[int, int] = (PROTOCOL_MAJOR, 0),
) -> bytes:
    """Composes a request as a client does; used by diagnostics and tests.

    Wishes are lines such as "project=vision".
    """
    body = _OPEN.pack(
        magic, *version, vgpu_count, gmem_mib, ratio_percent, flags, priority, wait_seconds,
        pid, 0, 0, 13000, channel, key.encode(), host.encode(), program.encode(),
    )  # fmt: skip
    text = "".join(f"{wish}\n" for wish in wishes).encode()
    text = text.ljust((len(text) + 7) // 8 * 8, b"\0")
    header = _HEADER.pack(FRAME_BYTES + len(text), OPEN_FUNCTION, 0, 0, 0)
    part = _JOB.pack(job.encode(), job_processes, len(chosen), bytes(chosen))
    return (header + body + part).ljust(FRAME_BYTES, b"\0") + text


def _text(field: bytes) -> str:
    # a hostile client must not write control characters into logs
    text = field.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(c if c.isprintable() else "�" for c in text)
