# SPDX-License-Identifier: Apache-2.0
"""FakeWorker: speaks sluice-worker's control protocol and runs nothing.

It stands in for native/worker in tests of the control plane on a machine where the native part is
not built. It shows one GPU (SLUICE_FAKE_WORKER_GPUS sets more, SLUICE_FAKE_WORKER_MIB their
memory), ends with its client, and obeys `end`; SLUICE_FAKE_WORKER_MODE=stubborn ignores it, =broken
refuses sessions.
"""

from __future__ import annotations

import argparse
import array
import os
import selectors
import socket
import struct
import sys


class FakeWorker:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.mode = os.environ.get("SLUICE_FAKE_WORKER_MODE", "")
        count = int(os.environ.get("SLUICE_FAKE_WORKER_GPUS", "1"))
        self.memory_mib = int(os.environ.get("SLUICE_FAKE_WORKER_MIB", "8192"))
        everything = [f"GPU-fake-{index}" for index in range(count)]
        visible = [v for v in arguments.visible_devices.split(",") if v]
        self.devices = [uuid for uuid in everything if not visible or uuid in visible]
        self.listener = socket.socket(fileno=arguments.control)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.server: socket.socket | None = None
        self.session: dict[str, str] = {}
        self.held: list[int] = []

    def run(self) -> None:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def accept(self) -> None:
        if self.server:
            self.selector.unregister(self.server)
            self.server.close()
        self.server, _ = self.listener.accept()
        self.selector.register(self.server, selectors.EVENT_READ, self.receive)
        fields = {}
        for index, uuid in enumerate(self.devices):
            fields[f"device.{index}.uuid"] = uuid
            fields[f"device.{index}.name"] = "FakeWorker GPU"
            fields[f"device.{index}.memory_mib"] = str(self.memory_mib)
        self.send("ready", fields)

    def receive(self) -> None:
        assert self.server
        descriptors = array.array("i")
        packet, ancillary, _, _ = self.server.recvmsg(1 << 17, socket.CMSG_SPACE(32))
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        if not packet:
            self.selector.unregister(self.server)
            self.server.close()
            self.server = None
            return
        verb, *lines = packet.decode().split("\n")
        fields = dict(line.split("=", 1) for line in lines if line)
        if verb == "session":
            self.start(fields, list(descriptors))
        elif verb in ("status", "compute"):
            state = "running" if self.session else "idle"
            self.send("status", {"state": state, "pid": str(os.getpid()), **self.ids()})
        elif verb == "end" and self.mode != "stubborn":
            self.finish(fields.get("reason", ""))

    def start(self, fields: dict[str, str], descriptors: list[int]) -> None:
        if self.mode == "broken":
            self.send("error", {"message": "FakeWorker was told to be broken"})
            return
        self.session = fields
        print(f"FakeWorker runs session {fields['id']}", file=sys.stderr, flush=True)
        named = dict(zip(fields["descriptors"].split(","), descriptors, strict=True))
        self.held = descriptors
        if "client_pidfd" in named:
            self.selector.register(
                named["client_pidfd"], selectors.EVENT_READ, lambda: self.finish("client ended")
            )
        reply = struct.pack(
            "<IHHIIIIQ480s", 512, 2, 0, 0, 0, 0, 0, int(fields["id"], 16), b"FakeWorker"
        )
        if "socket" in named:
            self.socket = socket.socket(fileno=named["socket"])
            self.socket.sendall(reply)
            self.selector.register(self.socket, selectors.EVENT_READ, self.socket_readable)
        elif fields["channel"] == "shm":
            os.pwrite(named["region"], reply, 0)
        self.send("started", {})

    def socket_readable(self) -> None:
        if not self.socket.recv(1 << 16):
            self.finish("the connection was lost")

    def finish(self, reason: str) -> None:
        self.send("ended", {"reason": reason, "commands": "0"})
        os._exit(0)

    def ids(self) -> dict[str, str]:
        return {key: self.session[key] for key in ("id", "grant", "channel") if key in self.session}

    def send(self, verb: str, fields: dict[str, str]) -> None:
        if self.server:
            lines = [verb, *(f"{key}={value}" for key, value in fields.items())]
            self.server.send("\n".join(lines).encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--visible-devices", default="")
    parser.add_argument("--beside", default="")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--confine", choices=["session", "ready"])
    parser.add_argument("--sandbox", choices=["on", "off"])
    FakeWorker(parser.parse_args()).run()


if __name__ == "__main__":
    main()
