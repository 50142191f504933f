# SPDX-License-Identifier: Apache-2.0
"""What opens a session: its bytes in Python, and protocol.yaml is checked when it is read.

The golden bytes are C++'s too (tests/native/channel/protocol_test.cc), and every recorded session
of an earlier release is read and written again.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest
from imported import RegistryError
from protocol import load_protocol

from sluice.protocol import frames
from sluice.protocol.cuda_status import CudaStatus

CHECKOUT = Path(__file__).resolve().parents[2]
GOLDEN = dict(
    line.split() for line in (CHECKOUT / "tests/native/channel/golden.txt").read_text().splitlines()
)
HEADER = frames.FrameHeader(
    size=512, function=frames.ControlFunction.OPEN_SESSION, lane=frames.NO_LANE,
    sequence=0x01020304, context=7,
)  # fmt: skip
STRUCTS: dict[str, Any] = {
    "open_session": frames.OpenSession(
        header=HEADER,
        magic=frames.OPEN_MAGIC,
        protocol_major=1,
        protocol_minor=2,
        vgpu_count=3,
        gmem_mib=40960,
        ratio_percent=55,
        flags=frames.OpenFlags.PREEMPT | frames.OpenFlags.TAKES_RELAY,
        priority=-6,
        wait_seconds=-1,
        pid=70001,
        uid=1000,
        start_time=0x1122334455667788,
        cuda_version=13000,
        channel=frames.ChannelKind.VSOCK,
        key=b"a key",
        host=b"guest-3",
        program=b"python train.py",
        job=b"0123456789abcdef0123456789abcdef",
        job_processes=8,
        chosen_count=2,
        chosen=bytes((5, 63)),
        reserved=b"later",
    ),
    "open_reply": frames.OpenReply(
        header=HEADER,
        status=CudaStatus.NOT_READY,
        network_grace_seconds=9,
        session_id=0xFEDCBA9876543210,
        message=b"waits for 2 vGPUs",
    ),
    "stream_record": frames.StreamRecord(
        bytes=70000, flags=frames.StreamFlags.WANTS_ACKNOWLEDGEMENT, received=0x1122334455667788
    ),
    "link_message": frames.LinkMessage(
        kind=frames.LinkMessageKind.DATA, bytes=70000, transfer=0x1122334455667788
    ),
    "resume_session": frames.ResumeSession(
        header=HEADER,
        magic=frames.OPEN_MAGIC,
        protocol_major=1,
        protocol_minor=2,
        session_id=0xFEDCBA9876543210,
        epoch=4,
        flags=5,
        nonce=bytes(range(64, 96)),
        subflow=6,
        reserved=tuple(range(7, 13)),
    ),
    "resume_reply": frames.ResumeReply(
        header=HEADER,
        status=CudaStatus.NOT_READY,
        epoch=4,
        nonce=bytes(range(96, 128)),
        proof=bytes(range(128, 160)),
        message=b"in a moment",
    ),
    "resume_proof": frames.ResumeProof(header=HEADER, proof=bytes(range(160, 192))),
    "rdma_terms": frames.RdmaTerms(
        header=HEADER,
        status=100,
        queue_pair=17,
        first_packet=0xABCDEF,
        path_mtu=3,
        gid=bytes(range(200, 216)),
        area=0x7F0011223344,
        area_key=0x1A2B3C4D,
        ring_bytes=1 << 20,
        receives=256,
        lid=5,
        abilities=6,
        reserved=tuple(range(7, 10)),
        message=b"no port is up",
    ),
    "device_record": frames.DeviceRecord(
        window_begin=0x200000000000,
        window_bytes=8 << 40,
        memory_bytes=40 << 30,
        compute_percent=25,
        attribute_count=151,
        uuid=bytes(range(16, 32)),
        physical_uuid=bytes(range(32, 48)),
        name=b"NVIDIA H200",
        pci_bus_id=b"0000:01:00.0",
        attributes=tuple(range(-3, 189)),
        stream_priority_least=0,
        stream_priority_greatest=-5,
        granularity=2 << 20,
        limits=tuple(range(1000, 1008)),
        peers=6,
        peer_atomics=2,
        thread_bytes=512,
        abilities=11,
        peer_rank=bytes(range(100, 164)),
    ),
    "session_record": frames.SessionRecord(
        record_bytes=1232,
        device_bytes=1168,
        device_count=1,
        driver_version=13000,
        heartbeat_seconds=5,
        software_gpu=1,
        driver_name=b"580.65.06",
        keeps_code=1,
        shares_memory=1,
    ),
}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_has_the_golden_bytes(name: str) -> None:
    said = STRUCTS[name]
    assert said.pack().hex() == GOLDEN[name]
    assert len(said.pack()) == said.BYTES


@pytest.mark.parametrize("name", STRUCTS)
def test_golden_bytes_are_read_and_written_again(name: str) -> None:
    read = type(STRUCTS[name]).unpack(bytes.fromhex(GOLDEN[name]))
    assert read.pack().hex() == GOLDEN[name]
    padded = {
        field.name: value.ljust(read.SIZES[field.name], b"\0")
        if isinstance(value := getattr(STRUCTS[name], field.name), bytes)
        else value
        for field in dataclasses.fields(read)
    }
    assert dataclasses.asdict(read) == dataclasses.asdict(type(read)(**padded))


def test_every_struct_of_the_registry_is_held_against_golden_bytes() -> None:
    said = load_protocol(CHECKOUT / "native" / "api")
    assert {s.name for s in said.structs} == {*STRUCTS, "frame_header"} == {*GOLDEN, "frame_header"}


def test_what_is_too_short_or_too_large_is_refused() -> None:
    with pytest.raises(struct.error):
        frames.OpenSession.unpack(bytes(511))
    with pytest.raises(struct.error):
        frames.OpenSession(vgpu_count=1 << 32).pack()


def test_cuda_statuses_are_the_headers() -> None:
    assert (CudaStatus.SUCCESS, CudaStatus.INVALID_VALUE, CudaStatus.UNKNOWN) == (0, 1, 999)
    assert CudaStatus(100).name == "NO_DEVICE"


def test_the_page_has_the_registry_s_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "dev"))
    import protocol_reference

    assert protocol_reference.PAGE.read_text() == protocol_reference.current(), "run `make docs`"


GOOD = """
limits:
  most: {type: u32, value: 4, about: of them}
enumerations:
  kind: {type: u32, values: {small: 0, large: 1}}
  marks: {type: u32, flags: true, values: {one: 1, two: {value: 2, about: the second}}}
structs:
  head: {bytes: 8, fields: {size: {type: u32}, kind: {type: kind}}}
  whole:
    bytes: 32
    fields:
      head: {type: head}
      number: {type: u64}
      bytes: {type: "u8[most]"}
      text: {type: "char[12]"}
"""


def test_a_good_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "protocol.yaml").write_text(GOOD)
    said = load_protocol(tmp_path)
    whole = said.structs[1]
    assert [(f.name, f.offset, f.bytes) for f in whole.fields] == [
        ("head", 0, 8), ("number", 8, 8), ("bytes", 16, 4), ("text", 20, 12),
    ]  # fmt: skip
    assert whole.format == "IIQ4s12s"
    assert struct.calcsize("<" + whole.format) == whole.bytes


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("value: 4", "value: four", "limits: most: the value 'four' is no number"),
        ("{type: u32, value: 4", "{type: text, value: 4", "limits: most: type 'text' is none of"),
        ("most: {", "Most: {", "limits: Most: a name has small letters"),
        ("large: 1", "large: 0", "enumerations: kind: two values are the same"),
        ("{value: 2", "{value: 3", "enumerations: marks: a flag is one bit"),
        ("bytes: 32", "bytes: 40", "structs: whole: the fields come to 32 bytes"),
        ("u8[most]", "u8[least]", "whole: bytes: 'least' is neither a number nor a limit"),
        ("u8[most]", "u8[5]", "the fields come to 33 bytes"),
        ("{type: u64}", "{type: u128}", "whole: number: the type 'u128' is no number"),
        ("{type: head}", "{type: tail}", "whole: head: the type 'tail' is no number"),
        ("head: {type: head}", "odd: {type: u8}", "number: lies at 1, which is no multiple of 8"),
        ("{type: u64}", "{type: u64, size: 8}", "whole: number: unknown key 'size'"),
        ("{type: kind}", "{}", "head: kind: type is missing"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    (tmp_path / "protocol.yaml").write_text(GOOD.replace(was, becomes, 1))
    with pytest.raises(RegistryError) as error:
        load_protocol(tmp_path)
    assert str(error.value).startswith("protocol.yaml: ")
    assert said in str(error.value)
