# SPDX-License-Identifier: Apache-2.0
"""OpenSession, OpenReply and the session's record as clients of release 0.1.0 and later read them.

The offsets are written down here on purpose (see slots.py). A newer worker's record may be longer,
and its devices' too; what an old client reads must lie where it looks.
"""

from __future__ import annotations

import struct
from typing import Any

OPEN_SESSION = struct.Struct("<16xIHHIIIIiiIIQII64s64s128s64sII64s")
OPEN_SESSION_FIELDS = (
    *("magic", "protocol_major", "protocol_minor", "vgpu_count", "gmem_mib", "ratio_percent"),
    *("flags", "priority", "wait_seconds", "pid", "uid", "start_time", "cuda_version", "channel"),
    *("key", "host", "program", "job_token", "job_processes", "chosen_count", "chosen_places"),
)
OPEN_REPLY = struct.Struct("<IHHIIIIQ480s")
RECORD = struct.Struct("<6I32sII")
DEVICE = struct.Struct("<QQQII16s16s128s32s192iiiQ8QQQ16x64s")
DEVICE_FIELDS = (
    *("window_begin", "window_bytes", "memory_bytes", "compute_percent", "attribute_count"),
    *("uuid", "physical_uuid", "name", "pci_bus_id"),
    *(f"attribute {n}" for n in range(192)),
    *("stream_priority_least", "stream_priority_greatest", "granularity"),
    *(f"limit {n}" for n in range(8)),
    *("peers", "peer_atomics", "peer_rank"),
)
#: May grow: an old client takes what it knows.
MAY_GROW = {"record_bytes", "device_bytes", "attribute_count"}
#: The software GPU's own, which another version of it may say otherwise, and what is the machine's:
#: attribute 16 is the number of multiprocessors, the software GPU's are the machine's cores.
ITS_OWN = {"driver_version", "driver_name", "heartbeat_seconds", "attribute 16"}


def read_request(request: bytes) -> dict[str, Any]:
    """The fields of an OpenSession by their names, texts as such."""
    values = (
        value.split(b"\0", 1)[0].decode() if isinstance(value, bytes) else value
        for value in OPEN_SESSION.unpack_from(request)
    )
    return dict(zip(OPEN_SESSION_FIELDS, values, strict=True))


def read_opening(opening: bytes) -> dict[str, Any]:
    """The fields by their names."""
    size, function, _, _, _, status, _, session, message = OPEN_REPLY.unpack_from(opening)
    found: dict[str, Any] = {"size": size, "function": function, "status": status}
    found |= {"session": session, "message": message.rstrip(b"\0")}
    names = (
        *("record_bytes", "device_bytes", "device_count", "driver_version", "heartbeat_seconds"),
        *("software_gpu", "driver_name", "keeps_code", "shares_memory"),
    )
    record = RECORD.unpack_from(opening, OPEN_REPLY.size)
    found |= dict(zip(names, record, strict=True))
    at = OPEN_REPLY.size + RECORD.size
    for n in range(found["device_count"]):
        values = DEVICE.unpack_from(opening, at + n * found["device_bytes"])
        fields = (f"device {n} {name}" for name in DEVICE_FIELDS)
        found |= dict(zip(fields, values, strict=True))
    return found


def opening_differences(recorded: bytes, now: bytes) -> list[str]:
    """What an old client finds otherwise than it did."""
    then, today = read_opening(recorded), read_opening(now)
    wrong = []
    for name, value in then.items():
        plain = name.split(" ", 2)[2] if name.startswith("device ") else name
        found = today.get(name)
        if plain in ITS_OWN or (plain in MAY_GROW and isinstance(found, int) and found >= value):
            continue
        if found != value:
            wrong.append(f"the session's record has {name} {found}, recorded {value}")
    return wrong
