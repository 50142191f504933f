# SPDX-License-Identifier: Apache-2.0
"""What bare TCP connections over loopback carry, as the floor of our copies over TCP."""

from __future__ import annotations

import socket
import threading
import time

PIECE_MIB = 4


def touched(mib: int) -> memoryview:
    """Memory that is there, every page of it."""
    block = bytearray(mib << 20)
    block[::4096] = b"\1" * (mib << 8)
    return memoryview(block)


def socket_gib_s(
    mib: int, from_mib: int = PIECE_MIB, to_mib: int = PIECE_MIB, connections: int = 1
) -> float:
    """What so many connections carry together, GiB/s, 4 MiB at a time, a thread at each end.

    Each has its part of `mib`, and of a buffer of `from_mib` that is sent and one of `to_mib` that
    is received into: with 4 both stay in the caches, with as much as is sent the sockets read or
    write memory as a copy of that size has to.
    """
    piece, each = PIECE_MIB << 20, mib // connections
    sources = [touched(max(from_mib // connections, PIECE_MIB)) for _ in range(connections)]
    targets = [touched(max(to_mib // connections, PIECE_MIB)) for _ in range(connections)]

    def send(source: memoryview) -> None:
        with socket.create_connection(listener.getsockname()) as out:
            for i in range(each // PIECE_MIB):
                at = i * piece % len(source)
                out.sendall(source[at : at + piece])

    def receive(target: memoryview) -> None:
        with listener.accept()[0] as into:
            at = 0
            while count := into.recv_into(target[at : at + piece]):
                at = (at + count) % len(target)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=send, args=[source]) for source in sources]
        threads += [threading.Thread(target=receive, args=[target]) for target in targets]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - begun
    return each * connections / 1024 / took
