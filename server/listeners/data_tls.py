# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 on the data port: the handshake is made here, the records by whoever gets the socket.

Used by listeners.data_port, and on the client's side by sessions.node_links. The node's key is read
here and goes nowhere else: a worker, which has a hostile client at its other end, gets what is left
of one handshake, the traffic secrets of its own session and the numbers of the next records. For
that, records are read one by one, never beyond what is asked for, and the secrets are taken from
OpenSSL's key log, written to memory that has no name. The certificate is read anew for each
connection, so a renewed one needs no restart.

What a handshake costs (files, signatures, key exchange) is paid in a few threads, so that no flood
of them holds up the event loop, which sends and receives. Each connection has one step there at a
time and they are served in order, so that none is passed over.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from cryptography import x509

HANDSHAKE = 22  # the type of a client's first record
_HEADER_BYTES = 5
_MOST_RECORD_BYTES = (16 << 10) + 256
_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384")
_TCP_ULP = 31
#: In a key log, the secrets of what either side sends after the handshake.
CLIENT_SECRET, SERVER_SECRET = "CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"
#: OpenSSL lets Python go on meanwhile, so this many of the host's processors can be kept busy.
HANDSHAKE_THREADS = 2


class DataTlsError(Exception):
    """The certificate cannot be used; the message says why and what to do."""


class NotTls(Exception):
    """The client did not begin with a handshake; `begin` is what it sent instead."""

    def __init__(self, begin: bytes) -> None:
        super().__init__("it does not speak TLS")
        self.begin = begin


class PlainLine:
    """A connection without TLS, up to its first frame."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def read_exactly(self, count: int) -> bytes:
        """The next bytes and no more; raises EOFError."""
        return await receive_exactly(self._socket, count)

    def seal(self, data: bytes) -> bytes:
        """What has to be sent for the client to read this."""
        return data

    def rest(self) -> Mapping[str, str]:
        """What the worker has to know to go on."""
        return {}


class TlsLine:
    """A connection after its handshake, up to its first frame."""

    def __init__(
        self,
        connected: socket.socket,
        tls: ssl.SSLObject,
        bios: tuple[ssl.MemoryBIO, ssl.MemoryBIO],
        secrets: tuple[str, str],
    ) -> None:
        """`bios` and traffic `secrets`: of what comes in, and of what goes out."""
        self._socket = connected
        self._tls = tls
        self._in, self._out = bios
        self._secrets = secrets
        self._records_in = self._records_out = 0

    async def read_exactly(self, count: int) -> bytes:
        """The next bytes, which have to end with a record: others are the worker's to open."""
        data = b""
        while len(data) < count:
            try:
                data += self._tls.read(count - len(data))
            except ssl.SSLWantReadError:
                self._in.write(await receive_record(self._socket))
                self._records_in += 1
            else:
                if not data:
                    raise EOFError("it closed its TLS connection")
        return data

    def seal(self, data: bytes) -> bytes:
        """What has to be sent for the client to read this."""
        self._tls.write(data)
        sealed = self._out.read()
        self._records_out += _records(sealed)
        return sealed

    def rest(self) -> Mapping[str, str]:
        """What the worker has to know to go on; raises EOFError if it could not."""
        if self._tls.pending() or self._in.pending:
            raise EOFError("its first record holds more than its first frame")
        cipher = self._tls.cipher()
        return {
            "tls": cipher[0] if cipher else "",
            "tls_in": self._secrets[0],
            "tls_out": self._secrets[1],
            "tls_in_sequence": str(self._records_in),
            "tls_out_sequence": str(self._records_out),
        }


class _Handshake:
    """One handshake, a step at a time; its steps run in a thread and know nothing of the socket.

    Whoever makes it closes it, after its last step.
    """

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self._files = cert_file, key_file
        self._context: ssl.SSLContext | None = None
        self._key_log = -1
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject
        self.secrets: dict[str, str] = {}
        self.done = False

    def begin(self) -> None:
        """Reads the certificate; raises DataTlsError."""
        self._context = _context(*self._files)
        self._key_log = os.memfd_create("data-tls")
        self._context.keylog_filename = f"/proc/self/fd/{self._key_log}"
        self.tls = self._context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def step(self, record: bytes) -> None:
        """Takes the client's next record; raises ssl.SSLError. What to send then is in outgoing."""
        self.incoming.write(record)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        cipher = self.tls.cipher()
        if cipher is None or cipher[0] not in _SUITES:
            raise ssl.SSLError(f"{cipher} is no cipher that workers have")
        self.secrets = _secrets(self._key_log)
        self.done = True

    def first_step(self, record: bytes) -> None:
        """begin and step: a client's first record is what costs, so it costs one place in line."""
        self.begin()
        self.step(record)

    def close(self) -> None:
        """Gives the key log back, OpenSSL's end of it too."""
        if self._context:
            self._context.keylog_filename = None  # type: ignore[assignment]
        if self._key_log >= 0:
            os.close(self._key_log)
            self._key_log = -1


class DataTls:
    """The data port's certificate, and the threads that show it."""

    def __init__(self, cert_file: Path, key_file: Path, threads: Executor | None = None) -> None:
        self._cert_file, self._key_file = cert_file, key_file
        self._threads = threads or ThreadPoolExecutor(HANDSHAKE_THREADS, "handshake")

    def close(self) -> None:
        """Begins no step any more; the connections have been let go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, node: str) -> str:
        """Whether clients can accept it; returns a warning or "", raises DataTlsError."""
        _context(self._cert_file, self._key_file)
        try:
            certificate = x509.load_pem_x509_certificate(self._cert_file.read_bytes())
        except (OSError, ValueError) as error:
            raise DataTlsError(f"{self._cert_file}: {error}") from None
        names = _names(certificate)
        if node not in names:
            raise DataTlsError(
                f"{self._cert_file} is for {', '.join(names) or 'nobody'}, and clients look for "
                f"the node's name, {node}; `sluice ca issue {node}` makes one"
            )
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
            return f"{self._cert_file} has expired: clients refuse it until there is another"
        return ""

    async def welcome(self, connected: socket.socket) -> TlsLine:
        """Shakes hands; raises NotTls, DataTlsError, OSError, EOFError."""
        first = await receive_exactly(connected, _HEADER_BYTES)
        if first[0] != HANDSHAKE:
            raise NotTls(first)
        record = first + await _body(connected, first)
        handshake = _Handshake(self._cert_file, self._key_file)
        step = self._threads.submit(handshake.first_step, record)
        try:
            while True:
                try:
                    await asyncio.wrap_future(step)
                except ssl.SSLError:
                    await _send(connected, handshake.outgoing)  # the alert that tells why
                    raise
                await _send(connected, handshake.outgoing)
                if handshake.done:
                    secrets = handshake.secrets[CLIENT_SECRET], handshake.secrets[SERVER_SECRET]
                    bios = handshake.incoming, handshake.outgoing
                    return TlsLine(connected, handshake.tls, bios, secrets)
                record = await receive_record(connected)
                step = self._threads.submit(handshake.step, record)
        finally:
            # where a client is given up while a thread is at its step, that one has it to the end
            step.add_done_callback(lambda _: handshake.close())


async def greet(connected: socket.socket, name: str, ca_file: Path | None) -> TlsLine:
    """Shakes hands with the data port of the node `name`, whose certificate is the CA's.

    None: one of the system's. Raises ssl.SSLError, OSError, EOFError.
    """
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    key_log = os.memfd_create("data-tls")
    try:
        context.keylog_filename = f"/proc/self/fd/{key_log}"
        tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await _send(connected, outgoing)
                incoming.write(await receive_record(connected))
            except ssl.SSLError:
                await _send(connected, outgoing)  # the alert that tells why
                raise
        await _send(connected, outgoing)
        cipher = tls.cipher()
        if cipher is None or cipher[0] not in _SUITES:
            raise ssl.SSLError(f"{cipher} is no cipher that workers have")
        secrets = _secrets(key_log)
    finally:
        context.keylog_filename = None  # type: ignore[assignment]
        os.close(key_log)
    return TlsLine(
        connected, tls, (incoming, outgoing), (secrets[SERVER_SECRET], secrets[CLIENT_SECRET])
    )


def _secrets(key_log: int) -> dict[str, str]:
    """What OpenSSL has written there, by its names for it."""
    lines = os.pread(key_log, 1 << 16, 0).decode().splitlines()
    words = (line.split() for line in lines if not line.startswith("#"))
    return {each[0]: each[2] for each in words if len(each) == 3}


def _records(sealed: bytes) -> int:
    """How many TLS records these bytes are."""
    count = at = 0
    while at < len(sealed):
        at += _HEADER_BYTES + int.from_bytes(sealed[at + 3 : at + _HEADER_BYTES])
        count += 1
    return count


def _context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # records after the handshake are counted, and nobody comes back
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE  # clients know what is fast for them
    try:
        context.load_cert_chain(cert_file, key_file)
    except OSError as error:  # ssl's own errors are some
        raise DataTlsError(f"{cert_file}, {key_file}: {error}") from None
    return context


def load_kernel_tls() -> bool:
    """Whether this kernel has TLS; asking loads its module, which workers may not."""
    with socket.socket() as any_socket:
        try:
            any_socket.setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
        except FileNotFoundError:
            return False
        except OSError:
            return True  # it is not connected
    return True


async def _send(connected: socket.socket, outgoing: ssl.MemoryBIO) -> None:
    if data := outgoing.read():
        await asyncio.get_running_loop().sock_sendall(connected, data)


async def receive_exactly(connected: socket.socket, count: int) -> bytes:
    """The next bytes of a socket and no more; raises EOFError."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count:
        part = await loop.sock_recv(connected, count - len(data))
        if not part:
            raise EOFError(f"after {len(data)} of {count} bytes")
        data += part
    return data


async def receive_record(connected: socket.socket) -> bytes:
    """The next TLS record of a socket and no more; raises EOFError."""
    header = await receive_exactly(connected, _HEADER_BYTES)
    return header + await _body(connected, header)


async def _body(connected: socket.socket, header: bytes) -> bytes:
    length = int.from_bytes(header[3:])
    if header[1] != 3 or length > _MOST_RECORD_BYTES:
        raise EOFError(f"{header.hex()} begins no TLS record")
    return await receive_exactly(connected, length)


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses: list[ipaddress._IPAddressBase] = names.get_values_for_type(x509.IPAddress)  # type: ignore[assignment]
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]
