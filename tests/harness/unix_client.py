# SPDX-License-Identifier: Apache-2.0
"""A client process of the Unix socket: asks for a session, prints each OpenReply as a JSON line.

It holds the session until its standard input ends or it is killed. `uid` and `unshare` in the
request make it another user's process, or one of a container.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import socket
import struct
import sys

CLONE_NEWIPC = 0x08000000


def main() -> None:
    path, request = sys.argv[1], json.loads(sys.argv[2])
    program = request.pop("program", "unix_client")
    folder, path = os.path.split(path)
    os.chdir(folder)  # another user cannot reach it from above
    if request.get("unshare"):
        ctypes.CDLL(None).unshare(CLONE_NEWIPC)
    if "groups" in request:
        os.setgroups(request["groups"])
    if "uid" in request:
        os.setuid(request["uid"])
    open_body = struct.pack(
        "<IHHIIIIiiIIQII64s64s128s",
        0x43494C53,
        1,
        0,
        request.get("vgpu_count", 0),
        request.get("gmem_mib", 0),
        request.get("ratio_percent", 0),
        request.get("flags", 0),
        request.get("priority", 0),
        request.get("wait_seconds", 0),
        0,
        0,
        0,
        13000,
        0,
        b"",
        b"",
        program.encode(),
    )
    text = "".join(f"{line}\n" for line in request.get("request_lines", ())).encode()
    text = text.ljust((len(text) + 7) // 8 * 8, b"\0")
    size = 512 + len(text)
    frame = (struct.pack("<IHHII", size, 1, 0, 0, 0) + open_body).ljust(328, b"\0")
    frame = (frame + request.get("job", "").encode()).ljust(512, b"\0") + text
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.connect(path)
    connected.send(frame)
    while True:
        descriptors = array.array("i")
        packet, ancillary, _, _ = connected.recvmsg(4096, socket.CMSG_SPACE(16))
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        if not packet:
            sys.exit("the server closed the connection")
        *_, status, _, session_id, message = struct.unpack("<IHHIIIIQ480s", packet[:512])
        line = {
            "status": status,
            "session_id": session_id,
            "message": message.split(b"\0", 1)[0].decode(),
            "descriptors": len(descriptors),
        }
        print(json.dumps(line), flush=True)
        if status != 600:
            break
    sys.stdin.read()


if __name__ == "__main__":
    main()
