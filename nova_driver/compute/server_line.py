# SPDX-License-Identifier: Apache-2.0
"""Asks this host's sluice-server for a VM's channel, before its definition and after it.

Used by driver.py. One line of JSON each way over a Unix socket; blocking, with a limit of time. The
other end is server/listeners/vm_socket.py, and may be of another release.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

from .extra_specs import VgpuSpecs

_MOST_BYTES = 1 << 20
#: What an answer takes besides what it waits for.
_ANSWER_SECONDS = 5
#: Between two attempts to reach a server that starts anew.
_PAUSE_SECONDS = 0.25


class ServerRefused(Exception):
    """There is no channel; the message is for the operator and names the remedy."""


class ServerAway(ServerRefused):
    """Nobody answers there."""


@dataclass(frozen=True)
class Channel:
    """What belongs into the VM's definition, as XML.

    `devices` are of a server of 0.1.0, which does not put them in itself; of a newer one there are
    none, and `make_ready` is to be called once the VM is defined.
    """

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
            "metadata_only": True,
        }
    }
    answer = _ask(path, request, seconds)
    try:
        return Channel(tuple(map(str, answer["devices"])), str(answer["metadata"]))
    except (KeyError, TypeError):
        raise ServerRefused(f"{path}: the answer lacks devices or metadata") from None


def make_ready(path: str, uuid: str, seconds: float) -> None:
    """Has the channel put into the VM's definition, for its next start; again: changes nothing.

    The instance that was there is gone by now, so a server that starts anew is waited for.
    """
    until = time.monotonic() + seconds
    while True:
        left = max(until - time.monotonic(), _PAUSE_SECONDS)
        try:
            answer = _ask(path, {"ready": {"uuid": uuid}}, left)
            break
        except ServerAway:
            if time.monotonic() + _PAUSE_SECONDS > until:
                raise
            time.sleep(_PAUSE_SECONDS)
    if answer.get("ready") is not True:
        raise ServerRefused(f"{path}: the answer lacks ready")


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
        raise ServerAway(
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
        if not found:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
        return found
