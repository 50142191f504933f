# SPDX-License-Identifier: Apache-2.0
"""A server with a static grant, where the control plane is not what is measured or tested.

Speaks OpenSession on a Unix socket (and TCP when asked) and the worker control protocol, with the
standard library alone. Every session gets a fresh warm worker and the same vGPUs, as many as it
asks for up to `--vgpus`. Sessions of one user that present one job's token share a ledger of their
memory, as under the real server. With `--relay` clients of SOCKET.relay get a sluice-relay to the
TCP door. `python static_server.py --help` lists the options.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import itertools
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

# Parts of the server that want the standard library alone: a GPU host may have no more.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from sluice.server.gpus.cuda_libraries import search_folders
from sluice.server.sessions.grant_ledgers import GrantLedgers

OPEN_BYTES = 512
REGION_PAGE = 4096
HOLD_JOB = 2
STARTED = itertools.count()


class Ending:
    """SIGTERM ends this process at once, or after what must not be left half done."""

    def __init__(self) -> None:
        self._is_due = False
        self._must_wait = False
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, *_: object) -> None:
        self._is_due = True
        if not self._must_wait:
            sys.exit(0)

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """Until the block is left."""
        self._must_wait = True
        try:
            yield
        finally:
            self._must_wait = False
            if self._is_due:
                sys.exit(0)


class StaticWorker:
    """A warm sluice-worker and its control connection."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.id = secrets.token_hex(4)
        self.path = Path(args.run_dir) / f"{self.id}.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.path))
        listener.listen(2)
        command = [args.worker, "--id", self.id, "--control", str(listener.fileno())]
        command += ["--driver", args.driver, "--sandbox", args.sandbox]
        if args.libraries:
            command += ["--libraries", args.libraries]
        if args.visible_devices:
            command += ["--visible-devices", args.visible_devices]
        if args.uid:
            uid = args.uid + (next(STARTED) if args.own_users else 0)
            command += ["--uid", str(uid), "--gid", str(args.uid)]
        with contextlib.ExitStack() as files:
            self.process = subprocess.Popen(
                command,
                pass_fds=[listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=files.enter_context(Path(args.log).open("ab")) if args.log else None,
            )
        listener.close()
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.connect(str(self.path))
        self.path.unlink()
        self.early: list[tuple[bytes, list[int]]] = []  # what its session said before it began

    def wait_ready(self) -> None:
        """Waits for the worker's first word."""
        verb = self._receive()
        if not verb.startswith("ready"):
            raise SystemExit(f"the worker is not ready: {verb!r}")

    def _receive(self) -> str:
        return self.control.recv(65536).decode()

    def start(self, fields: dict[str, object], fds: list[int]) -> None:
        """Gives it its session."""
        text = "session\n" + "".join(f"{key}={value}\n" for key, value in fields.items())
        socket.send_fds(self.control, [text.encode()], fds)
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self.control, 65536, 8)
            if packet.startswith(b"started"):
                return
            if packet.startswith((b"error", b"ended")) or not packet:
                raise RuntimeError(packet.decode())
            self.early.append((packet, descriptors))


class StaticRelay:
    """A sluice-relay between one client on this host and the TCP door."""

    def __init__(self, args: argparse.Namespace, connection: socket.socket) -> None:
        self.connection = connection
        request = connection.recv(4096)
        pid, _, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        name = secrets.token_hex(4)
        path = Path(args.run_dir) / f"{name}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(2)
            command = [args.relay, "--id", name, "--control", str(listener.fileno())]
            self.process = subprocess.Popen(
                [*command, "--sandbox", args.sandbox], pass_fds=[listener.fileno()]
            )
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.connect(str(path))
        path.unlink()
        self.memory = os.memfd_create("sluice", os.MFD_CLOEXEC)
        os.ftruncate(self.memory, REGION_PAGE + (args.arena_mib + 8 << 20))
        tcp = request[:68] + (3).to_bytes(4, "little") + request[72:OPEN_BYTES]
        fields = {"id": secrets.token_hex(8), "grant": "static", "channel": "shm", "node": "static"}
        fields |= {"address": "127.0.0.1", "port": str(args.tcp_port), "request": tcp.hex()}
        fields |= {"descriptors": "region,client_pidfd"}
        text = "\n".join(["session", *(f"{key}={value}" for key, value in fields.items())])
        pidfd = os.pidfd_open(pid)
        assert self.control.recv(65536).startswith(b"ready")
        socket.send_fds(self.control, [text.encode()], [self.memory, pidfd])
        os.close(pidfd)

    def answer(self) -> None:
        """The relay has said whether the session is open: so is its client told."""
        said = self.control.recv(65536).decode()
        with self.connection:
            if not said.startswith("started"):
                self.connection.send(refusal(said))
                return
            pidfd = os.pidfd_open(self.process.pid)
            rights = array.array("i", [self.memory, pidfd])
            self.connection.sendmsg(
                [(512).to_bytes(4, "little") + (2).to_bytes(2, "little") + bytes(506)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
            )
            os.close(pidfd)
        os.close(self.memory)


class SharedThings:
    """What workers share by CUDA IPC, for clients of one user each (server/sessions/sharing.py is
    real)."""

    def __init__(self) -> None:
        self.domains: dict[StaticWorker, str] = {}
        self.things: dict[str, tuple[StaticWorker, dict[str, str], int]] = {}
        self.readers: dict[str, set[StaticWorker]] = {}

    def take(self, worker: StaticWorker) -> bool:
        """Answers one message; False when the worker is gone, and what it shared with it."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(worker.control, 65536, 8)
        except ConnectionResetError:
            packet, descriptors = b"", []
        if packet:
            self.answer(worker, packet, descriptors)
            return True
        for old, (owner, _, _) in list(self.things.items()):
            if owner is worker:
                self.forget(old, worker)
        return False

    def answer(self, worker: StaticWorker, packet: bytes, descriptors: list[int]) -> None:
        """Answers one message, and closes its descriptors."""
        verb, *lines = packet.decode().splitlines() or [""]
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        key = fields.get("key", "")
        if verb == "share" and len(descriptors) == 1:
            self.things[key] = (worker, fields, descriptors.pop())
            self.tell(worker, "shared", fields)
        elif verb == "unshare":
            self.forget(key, worker)
        elif verb == "fetch":
            owner, thing, descriptor = self.things.get(key, (None, {}, -1))
            if owner and self.domains[owner] == self.domains[worker]:
                self.readers.setdefault(key, set()).add(worker)
                self.tell(worker, "fetched", {**thing, **fields}, [descriptor])
            else:
                self.tell(worker, "refused", {**fields, "message": "nobody shares it"})
        for descriptor in descriptors:
            os.close(descriptor)

    def forget(self, key: str, worker: StaticWorker) -> None:
        """Closes what the worker shared under the key; its readers are told."""
        if key in self.things and self.things[key][0] is worker:
            os.close(self.things.pop(key)[2])
            for reader in self.readers.pop(key, ()):
                with contextlib.suppress(OSError):
                    self.tell(reader, "gone", {"key": key})

    @staticmethod
    def tell(
        worker: StaticWorker, verb: str, fields: dict[str, str], descriptors: Sequence[int] = ()
    ) -> None:
        """Says something to a worker."""
        text = "\n".join([verb, *(f"{key}={value}" for key, value in fields.items())])
        socket.send_fds(worker.control, [text.encode()], descriptors)


class StaticJobs:
    """Ledgers by user and token."""

    def __init__(self) -> None:
        self.ledgers = GrantLedgers()
        self.slots: dict[StaticWorker, tuple[str, int]] = {}

    def join(self, worker: StaticWorker, job: str) -> int:
        """The descriptor of the job's ledger; the worker has a slot in it."""
        descriptor, slot = self.ledgers.join(job)
        self.slots[worker] = (job, slot)
        return descriptor

    def leave(self, worker: StaticWorker) -> None:
        """The worker's process has ended."""
        if worker in self.slots:
            worker.process.wait()
            self.ledgers.leave(*self.slots.pop(worker))


def refusal(message: str) -> bytes:
    """An OpenReply that says no."""
    head = (512).to_bytes(4, "little") + (2).to_bytes(2, "little") + bytes(10)
    return head + (100).to_bytes(4, "little") + bytes(12) + message.encode()[:479].ljust(480, b"\0")


class StaticServer:
    """Hands each client a session of its own."""

    def __init__(self, args: argparse.Namespace, ending: Ending) -> None:
        self.args = args
        self.ending = ending
        self.warm: StaticWorker | None = None
        self.workers: list[StaticWorker] = []
        self.shared = SharedThings()
        self.jobs = StaticJobs()
        self.relays: list[StaticRelay] = []
        self.selector = selectors.DefaultSelector()

    def warm_up(self) -> None:
        """Starts a worker, which is known before this process can end."""
        with self.ending.waits():
            self.warm = StaticWorker(self.args)

    def take(self) -> StaticWorker:
        """The warm worker; the next one starts warming."""
        worker = self.warm
        assert worker
        worker.wait_ready()
        for ended in self.workers:
            self.say_signal(ended)
        self.workers = [w for w in self.workers if w.process.poll() is None] + [worker]
        return worker

    def say_signal(self, worker: StaticWorker) -> None:
        """A worker that ended by a signal could not say so itself: here it is in its log."""
        code = worker.process.poll()
        if code is None or code >= 0 or not self.args.log:
            return
        with Path(self.args.log).open("a") as log:
            log.write(f"worker {worker.process.pid} ended by signal {-code}\n")

    def follow(self, worker: StaticWorker, domain: str) -> None:
        """From now on the worker of a session is listened to."""
        self.shared.domains[worker] = domain
        for packet, descriptors in worker.early:
            self.shared.answer(worker, packet, descriptors)
        self.selector.register(worker.control, selectors.EVENT_READ, worker)

    def start(
        self,
        worker: StaticWorker,
        channel: str,
        named: list[tuple[str, int]],
        request: bytes,
        domain: str,
    ) -> None:
        """Gives a worker a session of the static grant."""
        args = self.args
        asked = int.from_bytes(request[24:28], "little") or 1
        places = list(range(min(asked, args.vgpus)))
        fields: dict[str, object] = {"id": secrets.token_hex(8), "grant": "static"}
        if token := request[328:392].rstrip(b"\0").decode():
            job = f"{domain} {token}"
            named = [*named, ("ledger", self.jobs.join(worker, job))]
            chosen = request[400 : 400 + int.from_bytes(request[396:400], "little")]
            places = list(chosen) or list(range(args.vgpus))
            fields |= {
                "grant": job.replace(token, token[:8]),
                "ledger_slot": self.jobs.slots[worker][1],
            }
        if args.own_users:
            fields["grant_vgpus"] = args.vgpus
        fields |= {
            "channel": channel,
            "vgpus": len(places),
            "descriptors": ",".join(name for name, _ in named),
        }
        devices = args.visible_devices.split(",") if args.visible_devices else [""]
        for i, place in enumerate(places):
            fields[f"vgpu.{i}.place"] = place
            fields[f"vgpu.{i}.device"] = devices[place % len(devices)]
            fields[f"vgpu.{i}.memory_mib"] = args.memory_mib
            fields[f"vgpu.{i}.compute_percent"] = 100
        worker.start(fields, [descriptor for _, descriptor in named])

    def serve_unix(self, connection: socket.socket) -> None:
        """One client on this host."""
        request = connection.recv(4096)
        pid, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if len(request) != OPEN_BYTES:
            connection.send(refusal("OpenSession has the wrong size"))
            return
        if int.from_bytes(request[36:40], "little") & HOLD_JOB:
            self.hold(connection)
            return
        memory = os.memfd_create("sluice", os.MFD_CLOEXEC)
        os.ftruncate(memory, REGION_PAGE + (self.args.arena_mib + 8 << 20))
        pidfd = os.pidfd_open(pid)
        worker = self.take()
        try:
            named = [("region", memory), ("client_pidfd", pidfd)]
            self.start(worker, "shm", named, request, f"user {uid}")
        except RuntimeError as error:
            connection.send(refusal(str(error)))
            worker.process.kill()
            self.jobs.leave(worker)
            self.warm_up()
            return
        self.follow(worker, f"user {uid}")
        worker_pidfd = os.pidfd_open(worker.process.pid)
        rights = array.array("i", [memory, worker_pidfd])
        connection.sendmsg(
            [(512).to_bytes(4, "little") + (2).to_bytes(2, "little") + bytes(506)],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
        )
        for fd in (memory, pidfd, worker_pidfd):
            os.close(fd)
        self.warm_up()

    def serve_relay(self, connection: socket.socket) -> None:
        """One client on this host, as if the GPU were elsewhere."""
        relay = StaticRelay(self.args, connection.dup())
        self.relays.append(relay)
        self.selector.register(relay.control, selectors.EVENT_READ, relay)

    def hold(self, connection: socket.socket) -> None:
        """Leaves it open for as long as its launcher does: static grants stay anyway."""
        status = (600).to_bytes(4, "little")
        connection.send((512).to_bytes(4, "little") + b"\2\0" + bytes(10) + status + bytes(492))
        self.selector.register(connection.dup(), selectors.EVENT_READ, "hold")

    def serve_tcp(self, connection: socket.socket) -> None:
        """One client on the network; no key is asked for."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = b""
        while len(request) < OPEN_BYTES:
            piece = connection.recv(OPEN_BYTES - len(request))
            if not piece:
                return
            request += piece
        worker = self.take()
        self.start(worker, "tcp", [("socket", connection.fileno())], request, "network")
        self.follow(worker, "network")
        self.warm_up()

    def serve_http(self, connection: socket.socket) -> None:
        """The one answer of the controller that a TCP client needs."""
        connection.recv(65536)
        body = f'{{"address":"127.0.0.1","port":{self.args.tcp_port},"key":"static"}}'
        connection.sendall(
            f"HTTP/1.1 201 Created\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )

    def run(self) -> None:
        """Until the process is ended."""
        for port, serve in (
            (self.args.tcp_port, self.serve_tcp),
            (self.args.http_port, self.serve_http),
        ):
            if port:
                door = socket.create_server(("127.0.0.1", port))
                self.selector.register(door, selectors.EVENT_READ, serve)
        if self.args.relay:
            relayed = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            relayed.bind(self.args.socket + ".relay")
            relayed.listen(64)
            self.selector.register(relayed, selectors.EVENT_READ, self.serve_relay)
        # Last, and under its name when it can be connected to: whoever waits for it finds the rest.
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unix.bind(self.args.socket + "~")
        unix.listen(64)
        self.selector.register(unix, selectors.EVENT_READ, self.serve_unix)
        Path(self.args.socket + "~").rename(self.args.socket)
        while True:
            for key, _ in self.selector.select():
                if isinstance(key.data, StaticWorker):
                    if not self.shared.take(key.data):
                        self.selector.unregister(key.fileobj)
                        self.jobs.leave(key.data)
                    continue
                if isinstance(key.data, StaticRelay):
                    self.selector.unregister(key.fileobj)
                    key.data.answer()
                    continue
                if key.data == "hold":
                    if not key.fileobj.recv(4096):  # type: ignore[union-attr]
                        self.selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                    continue
                connection, _ = key.fileobj.accept()  # type: ignore[union-attr]
                with connection:
                    key.data(connection)


def found_libraries() -> str:
    """What a real server finds."""
    return ":".join(map(str, search_folders()))


def main() -> None:
    """Reads the options and serves."""
    build = os.environ.get("SLUICE_NATIVE_DIR", "build/native")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--libraries", help="folders, with colons (default: as the server looks)")
    parser.add_argument("--worker", default=f"{build}/bin/sluice-worker")
    parser.add_argument("--relay", default="", help="the program sluice-relay")
    parser.add_argument("--memory-mib", type=int, default=1024)
    parser.add_argument("--vgpus", type=int, default=1)
    parser.add_argument("--visible-devices", default="")
    parser.add_argument("--arena-mib", type=int, default=1024)
    parser.add_argument("--sandbox", default="on")
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument(
        "--own-users", action="store_true", help="each worker is a user of its own, from --uid up"
    )
    parser.add_argument("--log", default="")
    parser.add_argument("--tcp-port", type=int, default=0)
    parser.add_argument("--http-port", type=int, default=0)
    args = parser.parse_args()
    if args.libraries is None:
        args.libraries = "" if "softgpu" in args.driver else found_libraries()
    ending = Ending()
    with tempfile.TemporaryDirectory() as run_dir:
        args.run_dir = run_dir
        server = StaticServer(args, ending)
        try:
            server.warm_up()
            server.run()
        finally:
            if server.warm:
                server.warm.process.kill()


if __name__ == "__main__":
    main()
