# SPDX-License-Identifier: Apache-2.0
"""Asks this host's sluice-server to prepare a VM's channel.

Used by driver.py. One line of JSON each way over a Unix socket; blocking, with a limit of time. The
other end is server/listeners/vm_socket.py.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any

from .extra_specs import VgpuSpecs

_MOST_BYTES = 1 << 20
#: What an answer takes besides what it waits for.
_ANSWER_SECONDS = 5


class ServerRefused(Exception):
    """There is no channel; the message is for the operator and names the remedy."""


@dataclass(frozen=True)
class Channel:
    """What belongs into the VM's definition, as XML."""

    devices: tuple[str, ...]
    metadata: str


def prepare_channel(path: str, uuid: str, specs: VgpuSpecs, seconds: float) -> Channel:
    """The channel of the VM; asked again for the same VM it is the same one."""
    request = {
        "prepare": {
            "uuid": uuid,
            "count": specs.count,
            "memory_mib": specs.memory_mib,
            "compute": specs.compute,
            "priority": specs.priority,
            # the adapter reserves for the instance; its programs draw on that by themselves
            "mode": "auto" if specs.is_reserved else "on-demand",
        }
    }
    answer = _ask(path, request, seconds)
    try:
        return Channel(tuple(map(str, answer["devices"])), str(answer["metadata"]))
    except (KeyError, TypeError):
        raise ServerRefused(f"{path}: the answer lacks devices or metadata") from None


def programs_using(path: str, uuid: str, seconds: float) -> list[str]:
    """The programs that use the VM's channel now, a line each."""
    answer = _ask(path, {"sessions": {"uuid": uuid}}, seconds)
    found = answer.get("sessions")
    if not isinstance(found, list):
        raise ServerRefused(f"{path}: the answer lacks sessions")
    return [str(each) for each in found]


def unplug_channel(path: str, uuid: str, seconds: int) -> bool:
    """Takes the channel out of the running VM; whether its guest lets it go in so many seconds."""
    asked = {"unplug": {"uuid": uuid, "seconds": seconds}}
    found = _ask(path, asked, seconds + _ANSWER_SECONDS).get("unplugged")
    if not isinstance(found, bool):
        raise ServerRefused(f"{path}: the answer lacks unplugged")
    return found


def plug_channel(path: str, uuid: str, seconds: float) -> list[str]:
    """Has the channel put back; what keeps it away, a line each."""
    found = _ask(path, {"plug": {"uuid": uuid}}, seconds).get("problems")
    if not isinstance(found, list):
        raise ServerRefused(f"{path}: the answer lacks problems")
    return [str(each) for each in found]


def _ask(path: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    try:
        answer = json.loads(_exchange(path, json.dumps(request).encode() + b"\n", seconds))
    except OSError as error:
        raise ServerRefused(
            f"sluice-server does not answer at {path} ({error.strerror or error}): start it on "
            "this host, or set [sluice] server_socket"
        ) from None
    except ValueError:
        raise ServerRefused(f"{path}: the answer is no JSON: is that sluice-server?") from None
    if not isinstance(answer, dict) or "error" in answer:
        said = answer.get("error") if isinstance(answer, dict) else answer
        raise ServerRefused(f"sluice-server refused it: {said}")
    return answer


def _exchange(path: str, line: bytes, seconds: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(line)
        found = b""
        while b"\n" not in found:
            piece = connection.recv(65536)
            if not piece or len(found) > _MOST_BYTES:
                break
            found += piece
        return found
