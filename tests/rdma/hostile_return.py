# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by test_sessions.py: nonsense where a client asks to come back to RDMA.

A program works over RDMA meanwhile. Prints JSON: what each attempt heard, the CUresults of the
program's work after each, and how its session's channel is shown at the end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from disturbed import shown_channels
from holder import Holder

from sluice.protocol import frames
from sluice.protocol.frames import ControlFunction, ResumeFlags
from sluice.server.listeners.resumption import proof
from tests.withstand.resuming import answered, asked_of, prove

TERMS = frames.RdmaTerms.BYTES
EPOCH, TRIES = 50, 10


def main() -> None:
    """Each attempt is another kind of nonsense."""
    holder = Holder(dict(os.environ))
    found: dict[str, Any] = {"worked": [holder.work()]}
    session, key = newest_session()
    port = data_port(session)
    asked = (session, key, port)

    found["another's key"] = offered(ask(asked[0], bytes(32), port))
    holder_after(holder, found)
    with ask(*asked) as waiting:  # agrees, and says nothing more
        found["silent"] = offered(waiting)
        with ask(*asked) as second:
            found["two at a time"] = offered(second)
        holder_after(holder, found)
    for what, said in {
        "rubbish": b"\xff" * TERMS,
        "no ring": answer(ring_bytes=0),
        "not there": answer(ring_bytes=1 << 20, receives=256, path_mtu=5, gid=b"\xfd" + bytes(15)),
    }.items():
        for _ in range(TRIES):  # until the worker has seen the end of the one before
            connected = ask(*asked)
            found[what] = offered(connected)
            if found[what] is not None:
                break
            connected.close()
            time.sleep(0.5)
        with connected:
            connected.sendall(said)
            connected.settimeout(30)
            heard = b""
            while part := connected.recv(TERMS):
                heard += part
            found[f"{what}: verdict"] = bool(heard) and frames.RdmaTerms.unpack(heard).status != 0
        holder_after(holder, found)
    found["shown"] = shown_channels().get("rdma")
    found["said"] = holder.kill()
    print(json.dumps(found))


def holder_after(holder: Holder, found: dict[str, Any]) -> None:
    """The program is not disturbed."""
    found["worked"].append(holder.work())


def newest_session() -> tuple[str, bytes]:
    """Its id and key, from the record of its worker."""
    records = sorted(Path("/tmp").glob("sluice-*/workers/*.json"), key=lambda p: p.stat().st_mtime)
    sessions = [s for r in records if (s := json.loads(r.read_text())["session"])]
    session = max(sessions, key=lambda s: float(s["started"]))
    return session["id"], bytes.fromhex(session["resume_key"])


def data_port(session: str) -> int:
    """Where the session's server listens: the one of the two that knows it."""
    log = Path(os.environ["SERVER_LOG"]).read_text()
    ports = [int(p.split()[0]) for p in log.split("data port: 127.0.0.1:")[1:]]
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), 10) as connected:
            if answered(connected, asked_of(session, EPOCH, ResumeFlags.OVER_RDMA)).status == 0:
                return port
    raise SystemExit(f"no server of {ports} knows session {session}")


def ask(session: str, key: bytes, port: int) -> socket.socket:
    """A connection on which it has been asked and, by that key, proved."""
    connected = socket.create_connection(("127.0.0.1", port), 10)
    asked = asked_of(session, EPOCH, ResumeFlags.OVER_RDMA)
    reply = answered(connected, asked)
    prove(connected, proof(b"client", key, asked, reply.nonce))
    return connected


def offered(connected: socket.socket) -> bool | None:
    """Whether the worker offers RDMA; None: it closed the connection without a word."""
    connected.settimeout(15)
    heard = b""
    while len(heard) < TERMS:
        part = connected.recv(TERMS - len(heard))
        if not part:
            return None
        heard += part
    terms = frames.RdmaTerms.unpack(heard)
    return terms.header.function == ControlFunction.RDMA_OFFER.value and terms.status == 0


def answer(**terms: Any) -> bytes:
    """An RdmaAnswer with these terms."""
    header = frames.FrameHeader(size=TERMS, function=ControlFunction.RDMA_ANSWER)
    return frames.RdmaTerms(header=header, **terms).pack()


if __name__ == "__main__":
    main()
