# SPDX-License-Identifier: Apache-2.0
"""How long the server takes to see which container a process is in, and that its device was given.

Part of bench.py, and run alone with `python tests/bench/container_identity.py`. A process in
namespaces of its own, with a folder mounted, connects to a socket as a client does; what is timed
is all that a connection of a container costs beyond one of the host: cgroups of all hierarchies,
namespaces with their owners, mounts. As root: it makes namespaces.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from figure import Figure, Run, publish

from sluice.server.containers.given_folder import GivenFolder
from sluice.server.containers.identity import ContainerIdentities
from sluice.server.listeners.peers import peer_of

LOOKS = 2000
CLIENT = "import socket, sys; s = socket.socket(1, 5); s.connect(sys.argv[1]); sys.stdin.read()"


def identity_figures() -> list[Figure]:
    """Containers that come: who they are."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, inside = Path(scratch) / "socket", Path(scratch) / "inside"
        folder.mkdir()
        inside.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / "server.sock"))
            listener.listen()
            taken, host = _looks(listener, folder, inside)
    return [
        Figure(
            "container_identity_ms",
            median(taken),
            "ms",
            floor=median(host),
            floor_of="reading one file of the process in /proc",
            limit=1.0,
            spread=(min(taken), sorted(taken)[int(len(taken) * 0.99)]),
        )
    ]


def _looks(listener: socket.socket, folder: Path, inside: Path) -> tuple[list[float], list[float]]:
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    script = f'mount --bind "{folder}" "{inside}" && exec "$@"'
    client = [sys.executable, "-c", CLIENT, str(inside / "server.sock")]
    command = [*namespaces, "sh", "-c", script, "sh", *client]
    identities, given = ContainerIdentities(), GivenFolder(folder)
    taken, floors = [], []
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        connected, _ = listener.accept()
        with connected:
            peer = peer_of(connected)
            path = Path(f"/proc/{peer.pid}/stat")
            for _ in range(LOOKS):
                begin = time.perf_counter()
                container = identities.of(peer)
                is_given = given.is_given_to(peer.pid)
                taken.append((time.perf_counter() - begin) * 1e3)
                if not container or not is_given:
                    raise SystemExit(f"the process is not recognised: {container}, {is_given}")
                begin = time.perf_counter()
                path.read_bytes()
                floors.append((time.perf_counter() - begin) * 1e3)
            os.close(peer.pidfd)
        assert process.stdin
        process.stdin.close()
    return taken, floors


if __name__ == "__main__":
    run = Run("python tests/bench/container_identity.py")
    publish("container-identity", identity_figures(), run)
