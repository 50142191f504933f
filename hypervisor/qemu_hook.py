#!/usr/bin/python3 -IS
# SPDX-License-Identifier: Apache-2.0
"""libvirt's qemu hook of Sluice: tells sluice-server what becomes of a domain that has a channel.

A copy of this file is what `sluice vm hook install` puts into /etc/libvirt/hooks/qemu.d, and
libvirtd runs it as `50-sluice NAME OPERATION SUB-OPERATION EXTRA` with the domain's XML on standard
input; it needs nothing but Python. It prints nothing, waits for nobody, and ends with 0 whatever
happens: no start fails because of it. Where no server hears that a domain has ended, it blanks the
domain's region, so that nothing of the guest stays in this host's memory, and leaves a mark by
which the next server ends what was the guest's.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import stat
import sys
from pathlib import Path

# What the installer writes for another server, a line each:
RUN_FOLDER = "/run/sluice"
REGION_FOLDER = "/dev/shm"

NAMESPACE = b"https://sluice.dev/xmlns/libvirt/1"
SECONDS = 2
_SOCKET_SECONDS = 0.5
_UUID = re.compile(rb"<uuid>([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})</uuid>")
_KEEP_SIZE_AND_PUNCH_HOLE = 3


def main() -> int:
    """Always 0."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(SECONDS)
    try:
        document = sys.stdin.buffer.read()
        name, operation, sub, extra = (*sys.argv[1:5], "", "", "", "")[:4]
        found = _UUID.search(document)
        if found is not None:
            uuid = found[1].decode()
            if NAMESPACE in document or b"sluice-" + found[1] in document:
                act(uuid, name, operation, sub, extra)
    except Exception:  # no start fails because of us
        return 0
    return 0


def act(uuid: str, name: str, operation: str, sub: str, extra: str) -> None:
    """Tells the server; without one, the end of a domain is cleaned up here."""
    said = {"uuid": uuid, "name": name, "operation": operation, "sub": sub, "extra": extra}
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_SOCKET_SECONDS)
            line.connect(RUN_FOLDER + "/vms.sock")
            line.sendall(json.dumps({"hook": said}).encode() + b"\n")
            line.shutdown(socket.SHUT_WR)
    except OSError:
        if (operation, sub) == ("release", "end"):
            blank(uuid)
            mark(uuid)


def blank(uuid: str) -> None:
    """Gives the region's memory back; what still maps it reads zeros."""
    try:
        where = os.open(f"{REGION_FOLDER}/sluice-{uuid}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        found = os.fstat(where)
        if stat.S_ISREG(found.st_mode):
            size = ctypes.c_int64(found.st_size)
            fallocate = ctypes.CDLL(None).fallocate
            fallocate(where, _KEEP_SIZE_AND_PUNCH_HOLE, ctypes.c_int64(0), size)
    finally:
        os.close(where)


def mark(uuid: str) -> None:
    """For the next server: RegionFiles.ended_since."""
    folder = Path(RUN_FOLDER, "ended")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / uuid).touch()


if __name__ == "__main__":
    sys.exit(main())
