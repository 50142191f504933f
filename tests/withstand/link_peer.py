# SPDX-License-Identifier: Apache-2.0
"""The worker of another node as one that was taken over: a link to a session, with anything on it.

It has what that node's server would have handed it: a connection that the node's key has proved.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_plane import ControlPlane

from sluice.protocol import frames
from sluice.protocol.frames import LinkMessageKind, ResumeFlags
from sluice.server.listeners.resumption import proof

from .resuming import answered, asked_of, prove


@dataclass(frozen=True)
class Known:
    """What a node's server knows of its session's client on another node."""

    session_id: str
    first_vgpu: int  #: of the client's, there
    key: bytes


def links_of(plane: ControlPlane) -> list[tuple[str, Known]]:
    """Each session of the node, and what its server knows of the others."""
    found = []
    for record in (plane.folder / "run" / "workers").glob("*.json"):
        session: dict[str, Any] = json.loads(Path(record).read_text())["session"] or {}
        for other in session.get("others", ()):
            known = Known(other["session_id"], other["first_vgpu"], bytes.fromhex(other["key"]))
            found.append((session["id"], known))
    return found


class LinkPeer:
    """A link to the session that `plane` serves, from the client's vGPU `known.first_vgpu`."""

    def __init__(self, plane: ControlPlane, epoch: int, received: int, key: bytes = b"") -> None:
        """`received`: bytes that the session's worker has sent over links before."""
        [(session, known)] = links_of(plane)
        self.connected = socket.create_connection(("127.0.0.1", plane.data_port), timeout=20)
        asked = asked_of(session, epoch, ResumeFlags.NODE_LINK, known.first_vgpu)
        self.answer = answered(self.connected, asked)
        said = proof(b"client", key or known.key, asked, self.answer.nonce)
        prove(self.connected, said)
        self.connected.sendall(self._record(0, received))
        self._received = received

    def say(self, kind: int, transfer: int, data: bytes = b"", claimed: int | None = None) -> None:
        """One message, which may claim to have other bytes behind it than it has."""
        length = len(data) if claimed is None else claimed
        said = struct.pack("<IIQ", kind, length, transfer) + data
        self.connected.sendall(self._record(len(said), self._received) + said)

    def was_let_in(self) -> bool:
        """Whether the other worker greets it."""
        return len(self.connected.recv(frames.StreamRecord.BYTES)) == frames.StreamRecord.BYTES

    def is_over(self) -> bool:
        """Whether the other side ends it, whatever it still says before."""
        try:
            while self.connected.recv(1 << 16):
                continue
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        """Leaves."""
        self.connected.close()

    @staticmethod
    def _record(count: int, received: int) -> bytes:
        return frames.StreamRecord(bytes=count, flags=0, received=received).pack()


#: What no worker of ours says when nothing is under way: kind, transfer, data, what it claims.
NONSENSE: dict[str, tuple[int, int, bytes, int | None]] = {
    "bytes of no copy": (LinkMessageKind.DATA, 99, b"x" * 4096, None),
    "more than a piece": (LinkMessageKind.DATA, 99, b"", 0xFFFFFFFF),
    "no bytes of a copy": (LinkMessageKind.DATA, 1, b"", None),
    "an end of nothing": (LinkMessageKind.ARRIVED, 99, b"", None),
    "an event of nobody's": (LinkMessageKind.EVENT, 99, b"", None),
    "a message with bytes": (LinkMessageKind.READY, 99, b"x" * 16, None),
    "no kind": (77, 1, b"", None),
}
