# SPDX-License-Identifier: Apache-2.0
"""What a client asks for and is answered: OpenSession and OpenReply (native/api/protocol.yaml).

Called by the listeners. Whatever a client sent is checked here once, into an immutable value; a
frame that is wrong raises BadOpen, whose status and message go back to the client as an OpenReply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sluice.config.job_token import job_of
from sluice.protocol import frames
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import ChannelKind, ControlFunction, OpenFlags
from sluice.resources.request_forms import read_session_lines
from sluice.resources.vgpu_request import (
    COMPUTE_PERCENT,
    COUNT,
    MEMORY_MIB,
    WAIT_SECONDS,
    Mode,
    RequestError,
    VgpuRequest,
)

FRAME_BYTES = frames.OpenSession.BYTES

_MODES = {OpenFlags.RESERVED_ONLY: Mode.RESERVED, OpenFlags.ON_DEMAND_ONLY: Mode.ON_DEMAND}


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
    """What a client asks for, and what it says of itself.

    A count of 0 in `request` is a job's whole grant, else 1. Its project is what the client says:
    accounts.py decides whether that is the client's to choose. pid, uid, start_time, host and
    program are the client's own words: shown, never believed.
    """

    request: VgpuRequest
    flags: int
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
    job_domain: str = ""  # who presents it, where that is not the requester's user
    job_processes: int = 0
    chosen: tuple[int, ...] = ()  # of the job's vGPUs; none named: all

    @property
    def is_resumable(self) -> bool:
        """Whether the client can go on over another connection when one breaks."""
        return bool(self.flags & OpenFlags.RESUMABLE)

    @property
    def takes_rdma(self) -> bool:
        """Whether the client has an RDMA device and knows the offer of a connection over it."""
        return bool(self.flags & OpenFlags.TAKES_RDMA)

    @property
    def takes_relay(self) -> bool:
        """Whether the client knows slots that carry bytes to a worker on another host."""
        return bool(self.flags & OpenFlags.TAKES_RELAY)

    def drawing_on(self, mode: Mode) -> OpenSession:
        """The same, drawing on what `mode` says; AUTO leaves it to the client."""
        if mode is Mode.AUTO:
            return self
        return replace(self, request=replace(self.request, mode=mode))

    @property
    def holds_job(self) -> bool:
        """Whether no session is wanted: the job is to keep its grant while the client lives."""
        return bool(self.flags & OpenFlags.HOLD_JOB) and not self.looks

    @property
    def looks(self) -> bool:
        """Whether no session is wanted, but to be shown what there is (sessions.views)."""
        return bool(self.flags & OpenFlags.VIEW)


def without_key(asked: OpenSession) -> OpenSession:
    """The same, its `raw` without the key: a worker gets no secret."""
    said = frames.OpenSession.unpack(asked.raw)
    return replace(asked, raw=replace(said, key=b"").pack())


def with_key(asked: OpenSession, key: str, *, resumable: bool = True) -> bytes:
    """The fixed part of a request as a client over TCP presents it.

    `resumable`: the session may outlive its connection, where the client can say so.
    """
    said = frames.OpenSession.unpack(asked.raw)
    flags = said.flags if resumable else said.flags & ~OpenFlags.RESUMABLE
    return replace(said, channel=ChannelKind.TCP, key=key.encode(), flags=flags).pack()


def check_header(header: bytes, most_option_bytes: int = 0) -> int:
    """Checks the first 16 bytes of a request before the rest is read; raises BadOpen.

    Returns the size of the whole.
    """
    said = frames.FrameHeader.unpack(header)
    fits = FRAME_BYTES <= said.size <= FRAME_BYTES + most_option_bytes and said.size % 8 == 0
    if not fits or said.function != ControlFunction.OPEN_SESSION.value:
        more = f" to {FRAME_BYTES + most_option_bytes}" if most_option_bytes else ""
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            f"the first frame has size {said.size} and function {said.function}; a session begins "
            f"with OpenSession, size {FRAME_BYTES}{more} and function "
            f"{ControlFunction.OPEN_SESSION.value}",
        )
    return said.size


def parse_open_session(frame: bytes) -> OpenSession:
    """Reads a frame and the lines behind it; raises BadOpen."""
    if len(frame) < FRAME_BYTES:
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            f"OpenSession has {len(frame)} bytes; protocol {frames.PROTOCOL_MAJOR} wants "
            f"{FRAME_BYTES}",
        )
    size = check_header(frame[: frames.FrameHeader.BYTES], frames.MAX_REQUEST_OPTION_BYTES)
    if size != len(frame):
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            f"OpenSession has {len(frame)} bytes and says that it has {size}",
        )
    said = frames.OpenSession.unpack(frame)
    if said.magic != frames.OPEN_MAGIC:
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            f"OpenSession begins with {said.magic:#010x} instead of {frames.OPEN_MAGIC:#010x}: not "
            "a Sluice client",
        )
    if said.protocol_major != frames.PROTOCOL_MAJOR:
        raise BadOpen(
            CudaStatus.SYSTEM_DRIVER_MISMATCH,
            f"the client speaks protocol {said.protocol_major}.{said.protocol_minor}; this server "
            f"speaks version {frames.PROTOCOL_MAJOR} (any minor): install the client that belongs "
            "to this server",
        )
    job, chosen = _job(said)
    # a worker is told the fixed part, which alone it knows, and not the job's secret
    fixed = replace(said, header=replace(said.header, size=FRAME_BYTES), job=b"")
    opened = OpenSession(
        request=_request(said, frame[FRAME_BYTES:]),
        flags=said.flags,
        pid=said.pid,
        uid=said.uid,
        start_time=said.start_time,
        cuda_version=said.cuda_version,
        channel=said.channel,
        key=_text(said.key),
        host=_text(said.host),
        program=_text(said.program),
        raw=fixed.pack(),
        job=job,
        job_processes=said.job_processes if job else 0,
        chosen=chosen,
    )
    if opened.holds_job and not opened.job:
        raise BadOpen(CudaStatus.INVALID_VALUE, "a job is to be held, but none is named")
    return opened


def _job(said: frames.OpenSession) -> tuple[str, tuple[int, ...]]:
    """The job's name and which of its vGPUs are meant; nothing where there is no job."""
    if not said.job.strip(b"\0"):
        return "", ()
    try:
        job = job_of(_text(said.job))
    except ValueError as error:
        raise BadOpen(CudaStatus.INVALID_VALUE, str(error)) from None
    count, processes = said.chosen_count, said.job_processes
    chosen = tuple(said.chosen[:count])
    most, most_processes = frames.MAX_DEVICES, frames.MAX_JOB_PROCESSES
    if count > most or len(set(chosen)) < count or processes > most_processes:
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            f"a job's session names {count} of its vGPUs and {processes} processes; at most "
            f"{most} vGPUs, each once, and {most_processes} processes can be named",
        )
    return job, chosen


def _request(said: frames.OpenSession, lines: bytes) -> VgpuRequest:
    flags = OpenFlags(said.flags)
    if flags & OpenFlags.RESERVED_ONLY and flags & OpenFlags.ON_DEMAND_ONLY:
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            "both a reservation and none is wanted; set SLUICE_MODE to reserved or on-demand",
        )
    if said.wait_seconds < WAIT_SECONDS.low:
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            f"SLUICE_WAIT is {said.wait_seconds}; give seconds, 0 to fail at once, -1 for ever",
        )
    if (
        said.vgpu_count > COUNT.high
        or said.ratio_percent > COMPUTE_PERCENT.high
        or said.gmem_mib > MEMORY_MIB.high
    ):
        raise BadOpen(
            CudaStatus.INVALID_VALUE,
            f"wanted {said.vgpu_count} vGPUs of {said.gmem_mib} MiB and {said.ratio_percent} %; at "
            f"most {COUNT.high} vGPUs of {COMPUTE_PERCENT.high} % can be asked for",
        )
    fixed = VgpuRequest(
        count=said.vgpu_count,
        memory_mib=said.gmem_mib,
        compute_percent=said.ratio_percent,
        mode=next((mode for flag, mode in _MODES.items() if flags & flag), Mode.AUTO),
        priority=said.priority,
        wait_seconds=said.wait_seconds,
        preempt=bool(flags & OpenFlags.PREEMPT),
        same_gpu=bool(flags & OpenFlags.SAME_GPU),
        cross_node=bool(flags & OpenFlags.CROSS_NODE),
    )
    try:
        return read_session_lines(lines, fixed)
    except RequestError as error:
        raise BadOpen(CudaStatus.INVALID_VALUE, str(error)) from None


def pack_open_reply(status: int, session_id: int, message: str) -> bytes:
    """Composes the server's answer; the message is cut where it does not fit."""
    most = frames.OpenReply.SIZES["message"] - 1
    text = message.encode()[:most].decode(errors="ignore").encode()
    header = frames.FrameHeader(size=frames.OpenReply.BYTES, function=ControlFunction.OPEN_REPLY)
    return frames.OpenReply(
        header=header, status=status, session_id=session_id, message=text
    ).pack()


def pack_view(text: str) -> bytes:
    """Composes the answer to who looks: an OpenReply with the text behind it."""
    behind = text.encode()
    if len(behind) > frames.MAX_VIEW_BYTES:
        raise ValueError(f"a view of {len(behind)} bytes; at most {frames.MAX_VIEW_BYTES} go")
    behind = behind.ljust((len(behind) + 7) // 8 * 8, b"\0")
    size = frames.OpenReply.BYTES + len(behind)
    header = frames.FrameHeader(size=size, function=ControlFunction.OPEN_REPLY)
    return frames.OpenReply(header=header).pack() + behind


def unpack_open_reply(frame: bytes) -> tuple[int, int, str]:
    """Reads an OpenReply: status, session id, message."""
    said = frames.OpenReply.unpack(frame)
    text = said.message.split(b"\0", 1)[0].decode(errors="replace")
    return said.status, said.session_id, text


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
    channel: ChannelKind = ChannelKind.AUTO,
    flags: int = 0,
    job: str = "",
    job_processes: int = 0,
    chosen: tuple[int, ...] = (),
    request_lines: Sequence[str] = (),
    magic: int = frames.OPEN_MAGIC,
    version: tuple[int, int] = (frames.PROTOCOL_MAJOR, frames.PROTOCOL_MINOR),
) -> bytes:
    """Composes a request as a client does; used by diagnostics and tests.

    Lines of the request are such as "project=vision".
    """
    text = "".join(f"{line}\n" for line in request_lines).encode()
    text = text.ljust((len(text) + 7) // 8 * 8, b"\0")
    header = frames.FrameHeader(size=FRAME_BYTES + len(text), function=ControlFunction.OPEN_SESSION)
    fixed = frames.OpenSession(
        header=header,
        magic=magic,
        protocol_major=version[0],
        protocol_minor=version[1],
        vgpu_count=vgpu_count,
        gmem_mib=gmem_mib,
        ratio_percent=ratio_percent,
        flags=flags,
        priority=priority,
        wait_seconds=wait_seconds,
        pid=pid,
        cuda_version=13000,
        channel=channel,
        key=key.encode(),
        host=host.encode(),
        program=program.encode(),
        job=job.encode(),
        job_processes=job_processes,
        chosen_count=len(chosen),
        chosen=bytes(chosen),
    )
    return fixed.pack() + text


def _text(field: bytes) -> str:
    # a hostile client must not write control characters into logs
    text = field.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(c if c.isprintable() else "�" for c in text)
