# SPDX-License-Identifier: Apache-2.0
"""Which programs of a domain use its channel now: asked of sluice-server, else read off the region.

Called by moving.py; blocking. The server's word counts. Where none runs, the slots in the region
say it, words that the guest may have written: who lies there is asked to end what it does not do,
or loses what it hid.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import REGION_HEADER_BYTES, slot_bytes_of

SOCKET_NAME = "vms.sock"
_ANSWER_SECONDS = 5.0
_MOST_BYTES = 1 << 20
#: native/channel/slot.h
_STATE_OFFSET = 128
_IN_USE = {2: "opens a session", 3: "has a session"}


def sessions_of(files: RegionFiles, uuid: str, slots: int) -> list[str]:
    """A line for each program of the domain that has a session or waits for one."""
    path = files.run_folder / SOCKET_NAME
    try:
        return _asked(path, uuid)
    except (FileNotFoundError, ConnectionRefusedError):
        return _read(files.path(uuid), slots)
    except (OSError, ValueError) as error:
        raise HypervisorError(
            f"sluice-server at {path} does not say which programs use the channel: {error}"
        ) from error


def _asked(path: Path, uuid: str) -> list[str]:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_ANSWER_SECONDS)
        line.connect(str(path))
        line.sendall(json.dumps({"sessions": {"uuid": uuid}}).encode() + b"\n")
        found = b""
        while not found.endswith(b"\n") and len(found) < _MOST_BYTES:
            piece = line.recv(65536)
            if not piece:
                raise ValueError("it closed the line")
            found += piece
    answer = json.loads(found)
    if not isinstance(answer, dict) or not isinstance(answer.get("sessions"), list):
        raise ValueError(str(answer.get("error", answer) if isinstance(answer, dict) else answer))
    return [str(each) for each in answer["sessions"]]


def _read(path: Path, slots: int) -> list[str]:
    """No server runs: what its workers still serve stands in the slots."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HypervisorError(f"{path}: {error.strerror}") from error
    try:
        slot_bytes = slot_bytes_of(os.fstat(descriptor).st_size, slots)
        found = []
        for slot in range(slots):
            where = REGION_HEADER_BYTES + slot * slot_bytes + _STATE_OFFSET
            word = os.pread(descriptor, 4, where)
            state = struct.unpack("<I", word)[0] if len(word) == 4 else 0
            if state in _IN_USE:
                found.append(f"a program in slot {slot} {_IN_USE[state]} (no sluice-server runs)")
        return found
    finally:
        os.close(descriptor)
