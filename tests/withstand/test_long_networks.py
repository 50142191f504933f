# SPDX-License-Identifier: Apache-2.0
"""A network that is long, or narrow: it takes its time, and a session over it computes the same."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from delaying_network import DelayingNetwork
from free_ports import free_port
from static_pool import StaticPool, build_programs

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
NETWORK = find_native("sluice-worker").parent / "delaying_network"
ADDRESS = "127.0.0.4"


@contextmanager
def echoing(port: int) -> Iterator[None]:
    """Sends back what comes, from one connection, until its end."""

    def serve() -> None:
        with listener.accept()[0] as one:
            while piece := one.recv(1 << 16):
                one.sendall(piece)

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(30)


def test_it_takes_its_time_and_changes_nothing() -> None:
    """The times are what it promises at least: a busy host makes them longer."""
    port, sent = free_port(), bytes(range(256)) * 8192  # 2 MiB
    with (
        echoing(port),
        DelayingNetwork(NETWORK, ADDRESS, port, 20_000, gbit_s=0.2),
        socket.create_connection((ADDRESS, port)) as one,
    ):
        begun = time.monotonic()
        one.sendall(b"x")
        assert one.recv(10) == b"x"
        assert time.monotonic() - begun > 0.04, "there and back"
        begun = time.monotonic()
        writer = threading.Thread(target=one.sendall, args=(sent,))
        writer.start()
        back = bytearray()
        while len(back) < len(sent):
            back += one.recv(1 << 16)
        writer.join()
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b"", "the end of a connection passes, too"
        assert back == sent
        assert time.monotonic() - begun > len(sent) * 8 / 0.2e9


@pytest.mark.parametrize("name", ["other_streams", "bulk_copies"])
def test_a_session_over_it_computes_the_same(tmp_path: Path, name: str) -> None:
    program = build_programs(name) / name
    with (
        StaticPool(tmp_path, tcp=True, way=ADDRESS) as pool,
        DelayingNetwork(NETWORK, ADDRESS, pool.data_port, 300, gbit_s=10),
    ):
        done = pool.run(program)
    expected = ROOT / "tests" / "programs" / "expected" / f"{name}.out"
    assert done.stdout == expected.read_text(), done.stderr


@pytest.mark.parametrize(("delay_us", "tensors"), [(5_000, 300), (50_000, 40)])
def test_moving_a_model_over_it_waits_for_nobody(
    tmp_path: Path, delay_us: int, tensors: int
) -> None:
    program = ROOT / "tests" / "harness" / "waits_program.py"
    with (
        StaticPool(tmp_path, tcp=True, way=ADDRESS) as pool,
        DelayingNetwork(NETWORK, ADDRESS, pool.data_port, delay_us),
    ):
        done = pool.run(sys.executable, program, str(tensors))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["waits"], said["same"]) == (0, True)
