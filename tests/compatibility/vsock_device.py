#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands in for vhost-device-vsock where programs of this host play a guest's.

Started by the server with that program's arguments. Whoever connects to the device's socket (with
vsock_to_unix.c preloaded) is a program of the guest, and is passed on to the host's port 9960.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading


def main() -> None:
    """Serves until it is ended."""
    paths = dict(word.partition("=")[::2] for word in ",".join(sys.argv[1:]).split(","))
    device = next(value for name, value in paths.items() if name.endswith("socket"))
    guest = next(value for name, value in paths.items() if name.endswith("uds-path"))
    doors = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for door, path in zip(doors, (device, guest), strict=True):
        door.bind(path)
        door.listen(8)
    while True:
        near, _ = doors[0].accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{guest}_9960")
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=carry, args=(one, other), daemon=True).start()


def carry(one: socket.socket, other: socket.socket) -> None:
    """Passes bytes on until one end is closed; who writes to one that is, is told so."""
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 20):
            try:
                other.sendall(data)
            except OSError:
                one.shutdown(socket.SHUT_RDWR)
                return
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
