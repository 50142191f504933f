#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""FakeMpsControl: what of nvidia-cuda-mps-control can be without a GPU of NVIDIA's.

`-f` is the daemon: it listens where clients look for one (the software GPU connects there, and its
connection is its life as a client), and writes every command that it is given, with who of its
clients lives then, into commands.log. Without arguments it passes one command on, as the real one
does. It runs no kernels and ends nobody: `terminate_client` says that it was asked. Runs as
accounts that have nothing, so it stands alone.
"""

import json
import os
import selectors
import socket
import struct
import sys
from pathlib import Path

FOLDER = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
LOGS = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"])


def listening(name: str) -> socket.socket:
    """A socket of the daemon's folder."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(FOLDER / name))
    made.listen(64)
    return made


def daemon() -> None:
    """Serves clients and commands until it is told to quit."""
    clients: dict[socket.socket, int] = {}
    selector = selectors.DefaultSelector()
    control, commands = listening("control"), listening("commands")
    selector.register(control, selectors.EVENT_READ)
    selector.register(commands, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is control:
                client, _ = control.accept()
                who = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                clients[client] = struct.unpack("3i", who)[0]
                selector.register(client, selectors.EVENT_READ)
            elif key.fileobj is commands:
                asked, _ = commands.accept()
                command = asked.recv(4096).decode().split()
                line = {"command": command, "clients": sorted(clients.values())}
                with (LOGS / "commands.log").open("a") as out:
                    out.write(json.dumps(line) + "\n")
                if command == ["get_server_list"] and clients:
                    asked.sendall(f"{os.getpid()}\n".encode())
                asked.close()
                if command == ["quit"]:
                    return
            else:
                selector.unregister(key.fileobj)
                gone = key.fileobj
                assert isinstance(gone, socket.socket)
                del clients[gone]
                gone.close()


def pass_on() -> None:
    """One command for the daemon; its answer is this process's."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asking.connect(str(FOLDER / "commands"))
    asking.sendall(sys.stdin.buffer.read(4096))
    while part := asking.recv(4096):
        sys.stdout.buffer.write(part)


if __name__ == "__main__":
    daemon() if sys.argv[1:] == ["-f"] else pass_on()
