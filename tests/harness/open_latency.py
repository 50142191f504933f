# SPDX-License-Identifier: Apache-2.0
"""Measures OpenSession to its reply on a warm server and prints it; nothing is asserted.

Run it as `python tests/harness/open_latency.py [--fake] [--count N]`. Each round waits until the
next worker is warm, as a client that comes alone finds it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

from control_plane import ControlPlane, receive_reply, running, wait_for

from sluice.server.sessions.open_session import pack_open_session, unpack_open_reply


def one_round(plane: ControlPlane) -> float:
    """Milliseconds from connect to the reply with its descriptor."""
    warm = [r for r in plane.worker_records() if not r["session"]]
    wait_for(lambda: warm or [r for r in plane.worker_records() if not r["session"]])
    time.sleep(0.3)
    frame = pack_open_session(gmem_mib=64, ratio_percent=5, program="open_latency")
    begin = time.perf_counter()
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.connect(str(plane.socket_path))
    connected.send(frame)
    packet, descriptors = receive_reply(connected)
    taken = (time.perf_counter() - begin) * 1e3
    status, session_id, message = unpack_open_reply(packet)
    assert status == 0, message
    for descriptor in descriptors:
        os.close(descriptor)
    connected.close()
    grant = plane.rest.get(f"/sessions/{session_id:016x}").json()["grant_id"]
    plane.rest.delete(f"/grants/{grant}")
    wait_for(lambda: not plane.grants())
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fake", action="store_true", help="use FakeWorker")
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), fake=arguments.fake) as plane,
    ):
        taken = [one_round(plane) for _ in range(arguments.count)]
        workers = "FakeWorker" if plane.fake else "sluice-worker"
        print(
            f"OpenSession to reply, {workers}, {len(taken)} rounds: median "
            f"{statistics.median(taken):.2f} ms, best {min(taken):.2f}, worst {max(taken):.2f}, "
            f"first {taken[0]:.2f}"
        )


if __name__ == "__main__":
    main()
